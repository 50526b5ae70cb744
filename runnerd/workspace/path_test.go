package workspace

import (
	"strings"
	"testing"

	"skerry.internal/proto/problem"
)

func TestCleanPath(t *testing.T) {
	for in, want := range map[string]string{
		"": "", ".": "", "./": "", "a": "a", "a//b/./c/": "a/b/c", "..a/b..": "..a/b..", "a\xff": "a\xff",
		strings.Repeat("a/", 2000) + "b": strings.Repeat("a/", 2000) + "b",
	} {
		if got, err := CleanPath("path", in); err != nil || got != want {
			t.Errorf("CleanPath(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestF17CleanPathRefuses(t *testing.T) {
	for in, reason := range map[string]string{
		"..": problem.PathOutside, "a/../b": problem.PathOutside, "/": problem.PathOutside, "/etc/passwd": problem.PathOutside,
		"/workspace/a": problem.PathOutside, "a/..": problem.PathOutside, "a\x00b": problem.InvalidArgument,
		strings.Repeat("x", 5000): problem.LimitExceeded, "a/" + strings.Repeat("x", 256): problem.LimitExceeded,
	} {
		_, err := CleanPath("path", in)
		if p := problem.Of(err); p == nil || p.Reason != reason || p.Field != "path" || p.Remedy == "" {
			t.Errorf("CleanPath(%.20q) = %v, want %s with field and remedy", in, err, reason)
		}
	}
}

func TestFloor(t *testing.T) {
	var f Floor
	for _, p := range []string{".ssh/id_rsa", "a/.SSH/x", ".env", ".env.local", "b/.Netrc", ".config/gcloud/x", ".aws/credentials"} {
		if r := problem.Of(f.CheckRead("path", p)); r == nil || r.Reason != problem.PathSensitive {
			t.Errorf("CheckRead(%q) = %v", p, r)
		}
	}
	for _, p := range []string{"a.env", "ssh/x", "environment.yml", ".bashrc", ".git/config", "gcloud/x"} {
		if err := f.CheckRead("path", p); err != nil {
			t.Errorf("CheckRead(%q) = %v", p, err)
		}
	}
	for _, p := range []string{".git/hooks/pre-commit", "x/.GIT/config", ".bashrc", "sub/.Profile", ".netrc"} {
		if f.CheckWrite("path", p) == nil {
			t.Errorf("CheckWrite(%q) passed", p)
		}
	}
	for _, p := range []string{".gitignore", "bashrc", "profile/x", "a/.bashrc/x"} {
		if err := f.CheckWrite("path", p); err != nil {
			t.Errorf("CheckWrite(%q) = %v", p, err)
		}
	}
	if err := (Floor{AllowSecrets: true}).CheckRead("path", ".env"); err != nil {
		t.Error(err)
	}
}

func FuzzCleanPath(f *testing.F) {
	f.Add("a/../b")
	f.Add("/x")
	f.Fuzz(func(t *testing.T, p string) {
		got, err := CleanPath("path", p)
		if err != nil {
			return
		}
		if strings.HasPrefix(got, "/") || strings.ContainsRune(got, 0) || strings.HasPrefix(got, "../") || got == ".." || strings.Contains(got, "/../") {
			t.Fatalf("CleanPath(%q) = %q", p, got)
		}
		if again, err := CleanPath("path", got); err != nil || again != got {
			t.Fatalf("not idempotent: %q then %q, %v", got, again, err)
		}
	})
}
