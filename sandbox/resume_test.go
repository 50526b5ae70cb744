package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry.internal/sandbox/containerd"
	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

// A daemon may die anywhere between the supervisor's start and the container's:
// the next one finishes what it finds, and the command runs once (I2, I3).
func TestResumeFinishesWhatWasBegun(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	w := onContainerd(c)(t, nil)
	died := errors.New("the daemon died")
	for name, before := range map[string]func(ctx context.Context, id string, h *supervisor.Handle, p Policy) error{
		"nothing": func(context.Context, string, *supervisor.Handle, Policy) error { return died },
		"task created": func(ctx context.Context, id string, h *supervisor.Handle, p Policy) error {
			doc, err := w.host.document(p)
			if err != nil {
				return err
			}
			return w.host.backend.Begin(ctx, id, h.Dir(), doc, func(context.Context) error { return died })
		},
		"all": func(ctx context.Context, id string, h *supervisor.Handle, p Policy) error {
			return errors.Join(w.host.Begin(ctx, id, h, p), died)
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := w.policy
			policy.Args = []string{"bash", "-c", "echo ran >> ran; cat ran; exit 6"}
			id := fmt.Sprintf("ex_%d_r%d", os.Getpid(), executions.Add(1))
			spec, err := w.host.Command(id, policy)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(privateDir(t), "exec")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			h, err := supervisor.Start(t.Context(), shimBinary, dir, spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := before(t.Context(), id, h, policy); !errors.Is(err, died) {
				t.Fatal(err)
			}
			// Twice, for two daemons may die, too.
			for range 2 {
				if err := w.host.Resume(t.Context(), id, h, policy); err != nil {
					t.Error(err)
				}
			}
			r := (&begun{h, id, w}).end(t)
			if r.stdout != "ran\n" || r.Kind != supervisor.KindExited || *r.Code != 6 {
				t.Errorf("%+v %q", r.Exit, r.stdout)
			}
			if err := os.Remove(filepath.Join(w.workspace, "ran")); err != nil {
				t.Error(err)
			}
		})
	}
}

// What can't be made ends the execution at once, with the reason.
func TestBeginWithoutContainerd(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	w := onContainerd(c)(t, nil)
	w.policy.Args = []string{"true"}
	spec, err := w.host.Command("ex_gone", w.policy)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(privateDir(t), "exec")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Kill()
	began := time.Now()
	h, err := supervisor.Start(t.Context(), shimBinary, dir, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.host.Begin(t.Context(), "ex_gone", h, w.policy); !errors.Is(err, containerd.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	exit, err := h.Wait(t.Context())
	if err != nil || exit.Kind != supervisor.KindStartFailed || !strings.Contains(exit.Detail, "containerd is not available") {
		t.Errorf("%+v, %v", exit, err)
	}
	if d := time.Since(began); d > 40*time.Second {
		t.Errorf("it took %s", d)
	}
}

// A containerd that hangs holds nobody: a cancelled execution ends, and so does
// the attempt to make its sandbox (F01, F09).
func TestBeginWithFrozenContainerd(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	w := onContainerd(c)(t, nil)
	w.policy.Args = []string{"true"}
	for name, make := range map[string]func(ctx context.Context, id string, h *supervisor.Handle, p Policy) error{"begin": w.host.Begin, "resume": w.host.Resume} {
		t.Run(name, func(t *testing.T) {
			id := fmt.Sprintf("ex_%d_f%d", os.Getpid(), executions.Add(1))
			spec, err := w.host.Command(id, w.policy)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(privateDir(t), "exec")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			h, err := supervisor.Start(t.Context(), shimBinary, dir, spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.AwaitDoor(t.Context()); err != nil {
				t.Fatal(err)
			}
			thaw := c.Freeze()
			defer thaw()
			made := errorOf(func() error { return make(t.Context(), id, h, w.policy) })
			if err := h.Cancel(t.Context(), "enough"); err != nil {
				t.Error(err)
			}
			if exit, err := h.Wait(t.Context()); err != nil || exit.Kind != supervisor.KindCancelled {
				t.Errorf("%+v, %v", exit, err)
			}
			select {
			case err := <-made:
				if name == "begin" && err == nil {
					t.Error("no error tells of a container that was not made")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it still waits for containerd")
			}
			thaw()
			if err := w.host.End(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	if list := c.Ctr("skerry", "containers", "list", "-q"); list != "" {
		t.Errorf("left: %s", list)
	}
}

func errorOf(f func() error) <-chan error {
	out := make(chan error, 1)
	go func() { out <- f() }()
	return out
}

// What runc leaves when it is interrupted goes with the rest.
func TestEndRemovesGroupsOfRunc(t *testing.T) {
	w := onContainerd(sandboxtest.StartContainerd(t))(t, nil)
	roots, err := filepath.Glob("/sys/fs/cgroup/*/skerry-containerd")
	if err != nil || len(roots) == 0 {
		sandboxtest.Require(t, fmt.Errorf("no hierarchy of control groups of version 1: %w", err))
	}
	id := fmt.Sprintf("ex_%d_g%d", os.Getpid(), executions.Add(1))
	group := filepath.Join(roots[0], id)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	left := exec.Command("sleep", "100")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(fmt.Sprint(left.Process.Pid)), 0o600); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = w.host.End(t.Context(), id); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if _, gone := os.Stat(group); err != nil || gone == nil {
		t.Errorf("the group is there: %v", err)
	}
	_ = left.Process.Kill()
	if err := left.Wait(); err == nil {
		t.Error("the process ran on")
	}
}

// A sweep removes this host's containers, running ones too, and no other's.
func TestSweepRemovesWhatIsNotLive(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	w, other := onContainerd(c)(t, nil), onContainerd(c)(t, nil)
	policy := w.policy
	policy.Args = []string{"sleep", "100"}
	kept, swept := w.begin(t, policy, nil), w.begin(t, policy, nil)
	theirs := other.policy
	theirs.Args = policy.Args
	foreign := other.begin(t, theirs, nil)
	if kept.id == foreign.id {
		t.Fatal("the ids must differ")
	}
	if err := w.host.Sweep(t.Context(), func(id string) bool { return id == kept.id }); err != nil {
		t.Fatal(err)
	}
	if r := swept.end(t); r.Kind != supervisor.KindSignaled {
		t.Errorf("%+v", r.Exit)
	}
	for _, b := range []*begun{kept, foreign} {
		if s, err := b.Status(t.Context()); err != nil || s.State != supervisor.StateRunning {
			t.Errorf("%+v, %v", s, err)
		}
		if err := b.Cancel(t.Context(), "over"); err != nil {
			t.Error(err)
		}
		b.end(t)
	}
	if list := c.Ctr("skerry", "containers", "list", "-q"); list != "" {
		t.Errorf("left: %s", list)
	}
}

// The next daemon has another backend: what waits for a container ends at once
// and says why, and what runs in one goes on.
func TestResumeWithAnotherBackend(t *testing.T) {
	w := onContainerd(sandboxtest.StartContainerd(t))(t, nil)
	next := newWorld(t, nil)
	start := func() (*supervisor.Handle, string, Policy) {
		policy := w.policy
		policy.Args = []string{"sh", "-c", "sleep 1; exit 6"}
		id := fmt.Sprintf("ex_%d_o%d", os.Getpid(), executions.Add(1))
		spec, err := w.host.Command(id, policy)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(privateDir(t), "exec")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		h, err := supervisor.Start(t.Context(), shimBinary, dir, spec)
		if err != nil {
			t.Fatal(err)
		}
		return h, id, policy
	}
	waiting, id, policy := start()
	if err := next.host.Resume(t.Context(), id, waiting, policy); err == nil {
		t.Error("nothing is said")
	}
	if e, err := waiting.Wait(t.Context()); err != nil || e.Kind != supervisor.KindStartFailed || !strings.Contains(e.Detail, "sandbox.backends") {
		t.Errorf("%+v, %v", e, err)
	}
	running, id, policy := start()
	if err := w.host.Begin(t.Context(), id, running, policy); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !running.Begun() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if err := next.host.Resume(t.Context(), id, running, policy); err != nil {
		t.Error(err)
	}
	if r := (&begun{running, id, w}).end(t); r.Kind != supervisor.KindExited || *r.Code != 6 {
		t.Errorf("%+v", r.Exit)
	}
}
