package supervisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skerry.internal/sandbox/sandboxtest"
)

// guest is an execution whose sandbox the test makes, and which connects.
type guest struct {
	*fixture
	bwrap []string
	uid   uint32
}

func newGuest(t *testing.T, argv ...string) *guest {
	t.Helper()
	sandboxtest.RequireBwrap(t)
	root := t.TempDir()
	g := &guest{fixture: &fixture{dir: filepath.Join(root, "exec")}, uid: testUID}
	// The makers of real sandboxes need no way through the directory.
	if err := errors.Join(os.Mkdir(g.dir, 0o700), os.Chmod(g.dir, 0o711), os.Chmod(filepath.Dir(root), 0o755)); err != nil {
		t.Fatal(err)
	}
	g.spec = Spec{ID: "ex_guest", Launch: LaunchConnect, Timeout: time.Minute, Grace: 300 * time.Millisecond, Drain: 300 * time.Millisecond,
		Files: []FileArg{{Name: PlaceFile, Args: []string{"/tmp", "PATH=/usr/bin", Literal("{fd:place}") + "=x", "TEXT=two\nlines"}}}}
	if os.Getuid() == 0 {
		g.spec.Credential = &Credential{testUID, testGID}
	}
	g.bwrap = append([]string{"--unshare-user", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent", "--as-pid-1", "--clearenv",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--ro-bind", filepath.Join(g.dir, ControlDir), "/control", "--ro-bind", shimBinary, "/.init",
		"--", "/.init", "init", "--connect", "/control/sock", "--"}, argv...)
	return g
}

// enter starts the sandbox, as a container runtime would.
func (g *guest) enter(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/usr/bin/bwrap", g.bwrap...)
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: g.uid, Gid: testGID}}
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	return cmd
}

func (g *guest) await(t *testing.T, h *Handle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.AwaitDoor(ctx); err != nil {
		t.Fatal(err)
	}
}

func (g *guest) runGuest(t *testing.T) Exit {
	t.Helper()
	h := g.start(t)
	g.await(t, h)
	g.enter(t)
	return wait(t, h)
}

// A sandbox that connects has its streams, place and verdict as any other, and
// its command finds nothing to connect to.
func TestGuestVerdictsAndOutput(t *testing.T) {
	g := newGuest(t, "bash", "-c", `cat; pwd; printenv '{fd:place}'; echo "$TEXT"; ls /control 2>/dev/null; ls /proc/self/fd | wc -l
python3 -c '
import socket
try: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect("/control/sock")
except OSError as e: print("door", e.errno)'
echo err >&2; echo more > /dev/stdout; exit 7`)
	g.spec.Stdin = "in"
	if err := os.WriteFile(filepath.Join(g.dir, "in"), []byte("input\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	exit := g.runGuest(t)
	out, errs := g.output(t)
	if want := "input\n/tmp\nx\ntwo\nlines\n4\ndoor 2\nmore\n"; out != want || errs != "err\n" {
		t.Errorf("stdout %q, stderr %q; want %q", out, errs, want)
	}
	if exit.Kind != KindExited || *exit.Code != 7 {
		t.Errorf("verdict %+v", exit)
	}
}

func TestGuestStartFailures(t *testing.T) {
	for name, c := range map[string]struct {
		argv  string
		place string
		code  int
	}{"no program": {"/no/such", "/", 127}, "no permission": {"/etc", "/", 127}, "not executable": {"/usr/lib", "/", 126}, "no directory": {"/usr/bin/true", "/no/such", 127}} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t, c.argv)
			g.spec.Files[0].Args = []string{c.place}
			exit := g.runGuest(t)
			if exit.Kind != KindStartFailed || exit.Code == nil || *exit.Code != c.code {
				t.Errorf("verdict %+v", exit)
			}
		})
	}
}

// The filter is on the command and on init.
func TestGuestFilterIsLoaded(t *testing.T) {
	g := newGuest(t, "bash", "-c", "grep -h ^Seccomp: /proc/1/status /proc/self/status")
	allow := []byte{0x06, 0, 0, 0, 0, 0, 0xff, 0x7f} // return SECCOMP_RET_ALLOW
	g.spec.Files = append(g.spec.Files, FileArg{Name: FilterFile, Data: allow})
	exit := g.runGuest(t)
	if out, _ := g.output(t); out != "Seccomp:\t2\nSeccomp:\t2\n" {
		t.Errorf("%q (%+v)", out, exit)
	}
}

func TestGuestCancelAndTimeout(t *testing.T) {
	g := newGuest(t, "bash", "-c", "trap '' TERM; echo up; sleep 100")
	g.spec.Timeout = 500 * time.Millisecond
	if exit := g.runGuest(t); exit.Kind != KindTimedOut {
		t.Errorf("verdict %+v", exit)
	}
	g = newGuest(t, "sleep", "100")
	h := g.start(t)
	g.await(t, h)
	if err := h.Cancel(t.Context(), "not wanted"); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, h); exit.Kind != KindCancelled {
		t.Errorf("verdict %+v", exit)
	}
	// Who comes now finds nobody and goes away.
	if err := g.enter(t).Wait(); err == nil {
		t.Error("an uninvited sandbox ran")
	}
}

// A sandbox that can't be made ends the execution at once, with the reason, but
// never one that has begun.
func TestGuestAbort(t *testing.T) {
	g := newGuest(t, "true")
	h := g.start(t)
	g.await(t, h)
	began := time.Now()
	if begun, err := h.Abort(t.Context(), "the image is gone"); err != nil || begun {
		t.Fatal(begun, err)
	}
	if exit := wait(t, h); exit.Kind != KindStartFailed || exit.Detail != "the image is gone" {
		t.Errorf("verdict %+v", exit)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
	if err := h.AwaitDoor(t.Context()); !errors.Is(err, ErrNotAwaited) {
		t.Errorf("the door after the end: %v", err)
	}
	g = newGuest(t, "bash", "-c", "echo up; read -t 1 < <(sleep 9); exit 3")
	h = g.start(t)
	g.await(t, h)
	g.enter(t)
	g.untilOutput(t, "up\n")
	if begun, err := h.Abort(t.Context(), "too late"); err != nil || !begun {
		t.Fatal(begun, err)
	}
	if exit := wait(t, h); exit.Kind != KindExited || *exit.Code != 3 {
		t.Errorf("verdict %+v", exit)
	}
}

func (g *guest) untilOutput(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if out, _ := g.output(t); strings.HasPrefix(out, want) {
			return
		}
	}
	t.Fatalf("no output %q", want)
}

// Nobody but the first process of a name space, of the agent's user, comes in.
func TestGuestStrangersAreRefused(t *testing.T) {
	t.Run("no first process", func(t *testing.T) {
		g := newGuest(t, "true")
		h := g.start(t)
		g.await(t, h)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		g.spec.Credential = nil
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(g.dir, ControlDir, ControlSocket)}); err != nil {
			t.Fatal(err)
		}
		if exit := wait(t, h); exit.Kind != KindStartFailed || !strings.Contains(exit.Detail, "came for init") {
			t.Errorf("verdict %+v", exit)
		}
	})
	t.Run("another user", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("needs root: only root's executions have users of their own")
		}
		g := newGuest(t, "true")
		h := g.start(t)
		g.await(t, h)
		if err := os.Chmod(filepath.Join(g.dir, ControlDir, ControlSocket), 0o666); err != nil {
			t.Fatal(err)
		}
		g.uid = testUID + 7
		g.enter(t)
		if exit := wait(t, h); exit.Kind != KindStartFailed || !strings.Contains(exit.Detail, "came for init, not of user") {
			t.Errorf("verdict %+v", exit)
		}
	})
}

// The shim is killed: nothing of the sandbox lives on, and the outcome is lost.
func TestGuestWithoutItsShim(t *testing.T) {
	g := newGuest(t, "bash", "-c", "echo up; sleep 100")
	h := g.start(t)
	g.await(t, h)
	sandbox := g.enter(t)
	g.untilOutput(t, "up\n")
	status, err := h.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(status.ShimPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit := wait(t, h)
	if exit.Kind != KindLost {
		t.Errorf("verdict %+v", exit)
	}
	_ = sandbox.Wait() // ends because its init did
	if err := unix.Kill(status.LeaderPID, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the command lives on: %v", err)
	}
}

func TestConnectSpecTakesNoHostCommand(t *testing.T) {
	for name, s := range map[string]Spec{
		"argv":    {Argv: []string{"/usr/bin/bwrap"}},
		"env":     {Env: []string{"A=b"}},
		"stage":   {StageDir: "/mnt"},
		"file":    {Files: []FileArg{{Name: "other", Path: "/etc"}}},
		"filter":  {Files: []FileArg{{Name: FilterFile, Data: []byte("seven!!")}}},
		"unknown": {Launch: "other"},
	} {
		s.Version = SpecVersion
		if s.Launch == "" {
			s.Launch = LaunchConnect
		}
		if err := s.Validate(); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
