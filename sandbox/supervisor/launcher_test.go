package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skerry.internal/sandbox/sandboxtest"
)

// More executions at once than warm shims: each runs once, with its own verdict.
func TestLauncherRunsEachOnce(t *testing.T) {
	f := newFixture(t, "bash", "-c", "echo x >> /workspace/count; exit 3")
	l := NewLauncher(shimBinary, 2)
	defer l.Close()
	var wg sync.WaitGroup
	const n = 12
	for i := range n {
		dir := filepath.Join(f.dir, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			h, err := l.Start(t.Context(), dir, f.spec)
			if err != nil {
				t.Error(err)
				return
			}
			if e, err := h.Wait(t.Context()); err != nil || e.Kind != KindExited || code(e) != 3 {
				t.Errorf("got %+v, %v", e, err)
			}
		})
	}
	wg.Wait()
	if b, _ := os.ReadFile(filepath.Join(f.workspace, "count")); len(b) != 2*n {
		t.Errorf("%d runs, want %d", len(b)/2, n)
	}
}

// A warm shim that died does no harm.
func TestLauncherSurvivesDeadShims(t *testing.T) {
	f := newFixture(t, "true")
	l := NewLauncher(shimBinary, 1)
	defer l.Close()
	s := <-l.warm
	for _, pid := range children(t) {
		var n int
		if _, err := fmt.Sscan(pid, &n); err == nil {
			_ = unix.Kill(n, unix.SIGKILL)
		}
	}
	<-s.end.reaped
	l.warm <- s
	h, err := l.Start(t.Context(), f.dir, f.spec)
	if err != nil {
		t.Fatal(err)
	}
	if e := wait(t, h); e.Kind != KindExited {
		t.Errorf("got %+v", e)
	}
}

// Closing, like the daemon's end, ends the waiting shims and nothing else.
func TestLauncherCloseLeavesNothing(t *testing.T) {
	sandboxtest.RequireBwrap(t)
	f := newFixture(t, "sleep", "1000")
	l := NewLauncher(shimBinary, 3)
	h, err := l.Start(t.Context(), f.dir, f.spec)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	left := children(t)
	for deadline := time.Now().Add(10 * time.Second); len(left) != 1 && time.Now().Before(deadline); left = children(t) {
		time.Sleep(time.Millisecond) // a shim of the test before may not be reaped yet
	}
	if len(left) != 1 {
		t.Errorf("children after close: %v, want the running execution's shim alone", left)
	}
	if err := h.Cancel(t.Context(), "over"); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, h); e.Kind != KindCancelled {
		t.Errorf("got %+v", e)
	}
	<-h.end.reaped
}
