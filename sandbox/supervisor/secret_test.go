package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// secretFile is an operator's file, closed to everyone else.
func secretFile(t *testing.T, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSecretsReachTheCommandAlone(t *testing.T) {
	big := strings.Repeat("k", MaxSecretBytes-1)
	f := newFixture(t, "sh", "-c", `echo "$TOKEN"; cat /tmp/secrets/netrc; stat -c '%a %u' /tmp/secrets /tmp/secrets/netrc; printf %s "$BIG" | wc -c; tr '\0' '\n' < /proc/1/environ | grep -c TOKEN`)
	f.spec.Secrets = []Secret{
		{Path: secretFile(t, "s3cr3t-value\n"), Env: "TOKEN"},
		{Path: secretFile(t, "machine a\x00b\n"), File: "/tmp/secrets/netrc"},
		{Path: secretFile(t, big), Env: "BIG"},
	}
	e := f.run(t)
	out, errs := f.output(t)
	want := "s3cr3t-value\nmachine a\x00b\n700 1000\n400 1000\n32767\n"
	if !strings.HasPrefix(out, want) || strings.TrimPrefix(out, want) == "1\n" {
		t.Errorf("output %q, errors %q, exit %+v", out, errs, e)
	}
	// No file of the execution but its log has a value.
	err := filepath.WalkDir(f.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, segmentSuffix) {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte("s3cr3t-value")) {
			t.Errorf("%s has the value", filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What is wrong with a secret ends the execution before its command runs, with
// a reason that has neither a value nor a host path.
func TestBadSecretsStartNothing(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := mkfifo(fifo); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		secrets []Secret
		want    string
	}{
		"missing":   {[]Secret{{Path: filepath.Join(dir, "none"), Env: "A"}}, "secret A: its value can't be read"},
		"directory": {[]Secret{{Path: dir, Env: "A"}}, "not in a regular file"},
		"FIFO":      {[]Secret{{Path: fifo, Env: "A"}}, "not in a regular file"},
		"NUL":       {[]Secret{{Path: secretFile(t, "hidden\x00"), Env: "A"}}, "NUL byte"},
		"too large": {[]Secret{{Path: secretFile(t, strings.Repeat("x", MaxSecretBytes+1)), File: "/tmp/a"}}, "over 32768 bytes"},
		"all too large": {[]Secret{{Path: secretFile(t, strings.Repeat("x", MaxSecretBytes)), File: "/tmp/a"},
			{Path: secretFile(t, strings.Repeat("x", MaxSecretBytes)), File: "/tmp/b"}, {Path: secretFile(t, "x"), File: "/tmp/c"}}, "secret /tmp/c: all secrets together are over 65536 bytes"},
		"not writable": {[]Secret{{Path: secretFile(t, "hidden"), File: "/usr/secret"}}, "/usr/secret"},
		"there twice":  {[]Secret{{Path: secretFile(t, "hidden"), File: "/tmp/a"}, {Path: secretFile(t, "hidden"), File: "/tmp/a"}}, "file exists"},
		"both":         {[]Secret{{Path: "/a", Env: "A", File: "/tmp/a"}}, "either a variable or a file"},
		"relative":     {[]Secret{{Path: "a", Env: "A"}}, "not absolute"},
		"a bad name":   {[]Secret{{Path: "/a", Env: "A=B"}}, "can't be one"},
		"upwards":      {[]Secret{{Path: "/a", File: "/tmp/../a"}}, "not a clean"},
		"too many":     {make([]Secret, MaxSecrets+1), "more than 16"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "touch", "ran")
			f.spec.Secrets = tc.secrets
			if err := f.spec.validateSecrets(); err != nil {
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v", err)
				}
				return
			}
			e := f.run(t)
			if e.Kind != KindStartFailed || !strings.Contains(e.Detail, tc.want) || strings.Contains(e.Detail, dir) || strings.Contains(e.Detail, "hidden") {
				t.Errorf("%+v", e)
			}
			if _, err := os.Stat(filepath.Join(f.workspace, "ran")); err == nil {
				t.Error("the command ran")
			}
		})
	}
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }
