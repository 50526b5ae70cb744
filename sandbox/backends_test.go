package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

// opener makes a world on the backend under test.
type opener func(t testing.TB, change func(*Config)) *world

// perBackend runs the test against every backend of this machine. An ordinary
// user's machine has bubblewrap alone: containerd is for a daemon that is root.
func perBackend(t *testing.T, test func(t *testing.T, open opener)) {
	t.Run(Bubblewrap, func(t *testing.T) { test(t, newWorld) })
	t.Run(Containerd, func(t *testing.T) { test(t, onContainerd(sandboxtest.StartContainerd(t))) })
}

func onContainerd(c *sandboxtest.Containerd) opener {
	return func(t testing.TB, change func(*Config)) *world {
		t.Helper()
		w := newWorld(t, func(config *Config) {
			config.Backend, config.Containerd.Address = Containerd, c.Address
			if change != nil {
				change(config)
			}
		})
		w.containerd = c
		return w
	}
}

// begun is an execution that was started.
type begun struct {
	*supervisor.Handle
	id string
	w  *world
}

// begin starts an execution of the policy.
func (w *world) begin(t testing.TB, policy Policy, change func(dir string, spec *supervisor.Spec)) *begun {
	t.Helper()
	id := fmt.Sprintf("ex_%d_%d", os.Getpid(), executions.Add(1))
	spec, err := w.host.Command(id, policy)
	if err != nil {
		t.Fatal(err)
	}
	spec.Timeout, spec.Grace, spec.Drain = 30*time.Second, 300*time.Millisecond, 300*time.Millisecond
	dir := filepath.Join(privateDir(t), "exec")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(dir, &spec)
	}
	h, err := supervisor.Start(t.Context(), shimBinary, dir, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.host.Begin(t.Context(), id, h, policy); err != nil {
		t.Error(err)
	}
	return &begun{h, id, w}
}

// end waits for the verdict and removes what is left.
func (b *begun) end(t testing.TB) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := b.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.w.host.End(ctx, b.id); err != nil {
		t.Error(err)
	}
	out, errs, err := supervisor.Summary(b.Dir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return result{exit, string(out.Head) + string(out.Tail), string(errs.Head) + string(errs.Tail)}
}

func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
