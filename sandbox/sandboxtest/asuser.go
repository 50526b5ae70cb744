package sandboxtest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// OrdinaryUID is who AsOrdinaryUser runs tests as.
const OrdinaryUID = 54377

// AsOrdinaryUser runs the tests that match pattern once more, in a process of a
// user without privileges, as a daemon of such a user would run. It needs root;
// without, the tests run as an ordinary user anyway.
func AsOrdinaryUser(t *testing.T, shim, pattern string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: all tests run as an ordinary user already")
	}
	RequireBwrap(t)
	dir, err := os.MkdirTemp("", "ordinary")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary, tmp := filepath.Join(dir, "test"), filepath.Join(dir, "tmp")
	err = errors.Join(os.Chmod(dir, 0o755), copyFile(binary, os.Args[0]), os.Mkdir(tmp, 0o700), os.Chown(tmp, OrdinaryUID, OrdinaryUID))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", pattern, "-test.v")
	cmd.Dir = tmp
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, shimEnv + "=" + shim, RequireProbesEnv + "=" + os.Getenv(RequireProbesEnv)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: OrdinaryUID, Gid: OrdinaryUID}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	passed := regexp.MustCompile(`(?m)^--- PASS`).FindAll(out, -1)
	if len(passed) == 0 {
		t.Fatalf("no test matched %s:\n%s", pattern, out)
	}
	t.Logf("%d tests passed as uid %d", len(passed), OrdinaryUID)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}
