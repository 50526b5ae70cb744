package workspace

import (
	"os"
	"testing"

	"skerry.internal/proto/problem"
)

func TestDelete(t *testing.T) {
	w := newBed(t).workspace(t)
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/victim", []byte("safe"), 0o644); err != nil {
		t.Fatal(err)
	}
	shell(t, w, `mkdir -p d/locked/deep .git; echo x > d/locked/deep/f; echo x > .git/config; echo x > f; ln -s `+outside+` out; chmod 000 d/locked/deep; chmod 500 d/locked`)
	for path, want := range map[string]string{
		"out/victim": problem.PathOutside, "../x": problem.PathOutside, "": problem.InvalidArgument, ".": problem.InvalidArgument,
		".git/config": problem.PathSensitive, "none": problem.NotFound, "f/x": problem.NotAFile, "d": problem.NotAFile,
	} {
		if err := w.Delete(path, false); reason(err) != want {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
	for _, path := range []string{"d", "f", "out"} {
		if err := w.Delete(path, path == "d"); err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if _, err := os.Lstat(w.Tree() + "/" + path); !os.IsNotExist(err) {
			t.Errorf("%q is still there: %v", path, err)
		}
	}
	if b, err := os.ReadFile(outside + "/victim"); err != nil || string(b) != "safe" {
		t.Fatalf("outside: %q %v", b, err)
	}
	if left, err := os.ReadDir(w.dir + "/tmp"); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}
