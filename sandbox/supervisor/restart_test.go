package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// I1: with the shim, everything in the sandbox dies; the verdict is lost.
func TestShimKilledTakesTheSandboxAlong(t *testing.T) {
	f := newFixture(t, "bash", "-c", hydra+"sleep 1000")
	h := f.start(t)
	f.waitForFile(t, "ghost")
	s, err := h.Status(t.Context())
	if err != nil || s.State != StateRunning || s.LeaderPID == 0 {
		t.Fatalf("status %+v, %v", s, err)
	}
	if err := unix.Kill(s.ShimPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := wait(t, h)
	if e.Kind != KindLost || e.Code != nil {
		t.Errorf("F09: got %+v, want lost without a code", e)
	}
	f.assertNoGhost(t)
	if _, state, err := Attach(t.Context(), f.dir); err != nil || state != StateLost {
		t.Errorf("attach: %s, %v", state, err)
	}
	if s, err := h.Status(t.Context()); err != nil || s.State != StateLost {
		t.Errorf("status: %+v, %v", s, err)
	}
}

// Whenever the shim is killed, nothing of its sandbox stays, and either the
// command never ran or its end is unknown.
func TestShimKilledDuringSetUp(t *testing.T) {
	for i := range 40 {
		f := newFixture(t, "sleep", "1000")
		f.spec.Version = SpecVersion
		f.spec.applyDefaults()
		if err := writeSpec(f.dir, f.spec); err != nil {
			t.Fatal(err)
		}
		shim := exec.Command(shimBinary, "supervise", f.dir)
		if err := shim.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 300 * time.Microsecond) // the moment is the input
		if err := shim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = shim.Wait()
		h, _, err := Attach(t.Context(), f.dir)
		if err != nil {
			t.Fatal(err)
		}
		// For a moment, a child between fork and exec may still hold the lock.
		exit, err := h.Wait(t.Context())
		if !errors.Is(err, ErrNeverStarted) && exit.Kind != KindLost {
			t.Fatalf("after %d us: %+v, %v", 300*i, exit, err)
		}
		f.assertNoGhost(t)
		if n := strayCount(t, f.dir); n != 0 {
			t.Fatalf("after %d us: %d processes left", 300*i, n)
		}
	}
}

func strayCount(t *testing.T, dir string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && hasMark(pid, dir) {
			n++
		}
	}
	return n
}

// F05, I2: another daemon finds the execution, waits for it, can cancel it.
func TestF05AttachToARunningExecution(t *testing.T) {
	f := newFixture(t, "bash", "-c", "touch /workspace/up; until [ -e /workspace/go ]; do sleep 0.02; done; echo out; exit 9")
	f.start(t)
	f.waitForFile(t, "up")
	h, state, err := Attach(t.Context(), f.dir)
	if err != nil || state != StateRunning {
		t.Fatalf("attach: %s, %v", state, err)
	}
	var wg sync.WaitGroup
	for range 5 { // any number may wait
		wg.Go(func() {
			if e := wait(t, h); e.Kind != KindExited || code(e) != 9 {
				t.Errorf("got %+v", e)
			}
		})
	}
	if err := os.WriteFile(filepath.Join(f.workspace, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if out, _ := f.output(t); out != "out\n" {
		t.Errorf("output %q", out)
	}
	if _, state, err := Attach(t.Context(), f.dir); err != nil || state != StateExited {
		t.Errorf("attach after the end: %s, %v", state, err)
	}
}

func TestCancelThroughAttach(t *testing.T) {
	f := newFixture(t, "sleep", "1000")
	f.start(t)
	h := attachRunning(t, f.dir)
	if err := h.Cancel(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, h); e.Kind != KindCancelled || !strings.Contains(e.Detail, "SIGTERM") {
		t.Errorf("got %+v", e)
	}
}

// attachRunning waits until the command runs, then attaches.
func attachRunning(t *testing.T, dir string) *Handle {
	t.Helper()
	w, err := newWatch(watchOn{dir, unix.IN_MOVED_TO})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	for {
		if _, found, err := readIdentity(dir); err != nil {
			t.Fatal(err)
		} else if found {
			break
		}
		if err := w.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	h, state, err := Attach(t.Context(), dir)
	if err != nil || state != StateRunning {
		t.Fatalf("attach: %s, %v", state, err)
	}
	return h
}

// F06: what was never started is declared void, and can't start later.
func TestNeverStartedIsVoid(t *testing.T) {
	for name, withSpec := range map[string]bool{"spec written": true, "no spec": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "touch", "/workspace/ran")
			if withSpec {
				f.spec.Version = SpecVersion
				f.spec.applyDefaults()
				if err := writeSpec(f.dir, f.spec); err != nil {
					t.Fatal(err)
				}
			}
			h, state, err := Attach(t.Context(), f.dir)
			if err != nil || state != StateNeverStarted {
				t.Fatalf("attach: %s, %v", state, err)
			}
			if _, err := h.Wait(t.Context()); !errors.Is(err, ErrNeverStarted) {
				t.Errorf("wait: %v", err)
			}
			superviseAgain(t, f.dir)
			if _, err := os.Stat(filepath.Join(f.workspace, "ran")); err == nil {
				t.Error("it started after it was declared void")
			}
			if s, err := h.Status(t.Context()); err != nil || s.State != StateNeverStarted {
				t.Errorf("status: %+v, %v", s, err)
			}
		})
	}
}

// A recycled pid is not taken for the sandbox's init, let alone killed.
func TestF05RecycledPidIsSpared(t *testing.T) {
	f := newFixture(t, "true")
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	self, _, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self.StartTicks-- // someone who had our pid before us
	to, err := newPendingFile(f.dir, shimFile)
	if err != nil {
		t.Fatal(err)
	}
	defer to.close()
	if err := (shimIdentity{BootID: boot, Shim: self, Init: self}).publish(to); err != nil {
		t.Fatal(err)
	}
	if _, state, err := Attach(t.Context(), f.dir); err != nil || state != StateLost {
		t.Errorf("attach: %s, %v", state, err)
	}
}

// A verdict torn by a power cut counts as none.
func TestTornExitIsNone(t *testing.T) {
	dir := t.TempDir()
	for _, content := range []string{"", `{"kind":"exi`, "\x00\x00\x00"} {
		if err := os.WriteFile(filepath.Join(dir, exitFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, found, err := ReadExit(dir); found || err != nil {
			t.Errorf("%q: %+v, %v, %v", content, e, found, err)
		}
	}
}

// F10 and more: many launches leave no process, zombie or descriptor behind.
func TestF10ManyLaunchesLeaveNothing(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 20
	}
	f := newFixture(t, "true")
	launch := func(i int) *Handle {
		dir := filepath.Join(f.dir, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		h, err := Start(t.Context(), shimBinary, dir, f.spec)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	wait(t, launch(-1)) // what the runtime opens once is not a leak
	before := openDescriptors(t)
	for i := 0; i < n; i += 4 {
		handles := []*Handle{launch(i), launch(i + 1), launch(i + 2), launch(i + 3)}
		for _, h := range handles {
			if e := wait(t, h); e.Kind != KindExited {
				t.Fatalf("launch %d: %+v", i, e)
			}
		}
		for _, h := range handles {
			<-h.end.reaped
		}
	}
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("children left: %v", left)
	}
	f.assertNoGhost(t)
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// children lists this process's children, zombies included.
func children(t *testing.T) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err == nil {
			pids = append(pids, strings.Fields(string(b))...)
		}
	}
	return pids
}

// The shim stays small while it waits.
func TestIdleShimIsSmall(t *testing.T) {
	f := newFixture(t, "sh", "-c", "head -c 20000000 /dev/zero; echo up; sleep 1000")
	h := f.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := uint64(0)
	for page, err := range OpenLog(f.dir).Follow(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = page.Next; seen >= 20000003 {
			break
		}
	}
	s, err := h.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rss := residentBytes(t, s.ShimPID)
	t.Logf("resident set of the shim: %d KiB", rss>>10)
	if rss > 8<<20 {
		t.Errorf("resident set %d bytes, want at most 8 MiB", rss)
	}
}

func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}
