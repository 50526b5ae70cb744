package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"skerry.internal/sandbox/sandboxtest"
)

// shimBinary is built once for all tests.
var shimBinary string

func TestMain(m *testing.M) {
	code, err := sandboxtest.Main(m, &shimBinary)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The same as an ordinary user, without change of user or staged mounts.
func TestAsOrdinaryUser(t *testing.T) {
	sandboxtest.AsOrdinaryUser(t, shimBinary, "Guest|Verdicts|Output|Cancel|F0|Limits|Killed|Void|Reach|Fork|Usage|QuotaStops")
}

const (
	testUID = 54321
	testGID = 54322
)

// fixture is one execution's directory and a workspace beside it.
type fixture struct {
	dir       string
	workspace string
	spec      Spec
}

// newFixture prepares argv to run in a plain sandbox: as an unprivileged user
// below a private directory if the test runs as root, as the caller otherwise.
func newFixture(t testing.TB, argv ...string) *fixture {
	t.Helper()
	sandboxtest.RequireBwrap(t)
	root := t.TempDir()
	f := &fixture{dir: filepath.Join(root, "exec"), workspace: filepath.Join(root, "ws")}
	for _, d := range []string{f.dir, f.workspace} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	options := []string{
		"--unshare-user", "--unshare-pid", "--unshare-ipc", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL",
		"--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--bind-fd", "{fd:workspace}", "/workspace", "--ro-bind-fd", "{fd:shim}", "/.init", "--chdir", "/workspace",
	}
	f.spec = Spec{
		ID:   "ex_test",
		Argv: append([]string{"/usr/bin/bwrap", "--args", "{fd:args}", "--", "/.init", "init", "{fd:control}", "--"}, argv...),
		Files: []FileArg{
			{Name: "args", Args: options},
			{Name: "workspace", Path: f.workspace},
			{Name: "shim", Path: shimBinary},
		},
		Timeout: time.Minute,
		Grace:   300 * time.Millisecond,
		Drain:   300 * time.Millisecond,
	}
	if os.Getuid() == 0 {
		f.spec.Credential = &Credential{testUID, testGID}
		f.spec.StageDir = "/mnt"
		if err := os.Chown(f.workspace, testUID, testGID); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// start starts the shim and makes sure that it is gone when the test ends.
func (f *fixture) start(t testing.TB) *Handle {
	t.Helper()
	h, err := Start(t.Context(), shimBinary, f.dir, f.spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = h.Cancel(ctx, "the test is over")
		if _, err := h.Wait(ctx); err != nil && ctx.Err() != nil {
			t.Errorf("the shim outlives the test: %v", err)
		}
	})
	return h
}

func (f *fixture) run(t testing.TB) Exit {
	t.Helper()
	return wait(t, f.start(t))
}

func wait(t testing.TB, h *Handle) Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	exit, err := h.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

// output gives all that is kept of both streams.
func (f *fixture) output(t testing.TB) (stdout, stderr string) {
	t.Helper()
	out, errs, err := Summary(f.dir, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(out.Head) + string(out.Tail), string(errs.Head) + string(errs.Tail)
}

// superviseAgain runs a further shim for dir to its end and gives what it said.
func superviseAgain(t testing.TB, dir string) string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), shimBinary, "supervise", dir).CombinedOutput()
	return string(out)
}
