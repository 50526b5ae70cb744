package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hydra ignores SIGTERM, forks twice, changes session and holds the pipe, and
// goes on writing into the workspace; so do two brothers of it.
const hydra = `
trap '' TERM
for i in 1 2; do
  ( setsid sh -c 'trap "" TERM; (while :; do echo x >> /workspace/ghost; sleep 0.02; done) & (sleep 1000 & exit) ' & )
done
touch /workspace/up
`

// waitForFile returns when name exists in the workspace.
func (f *fixture) waitForFile(t testing.TB, name string) {
	t.Helper()
	w, err := newWatch(watchOn{f.workspace, unix.IN_CREATE})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		if _, err := os.Lstat(filepath.Join(f.workspace, name)); err == nil {
			return
		}
		if err := w.wait(ctx); err != nil {
			t.Fatalf("waiting for %s: %v", name, err)
		}
	}
}

// assertNoGhost fails if any process still has the workspace mounted as its
// sandbox, which is how every process of the sandbox can be told.
func (f *fixture) assertNoGhost(t testing.TB) {
	t.Helper()
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range tables {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile, or a zombie
		}
		if strings.Contains(string(b), f.workspace+" /workspace ") {
			comm, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "comm"))
			t.Errorf("I1: %s (%s) is still alive", filepath.Dir(path), strings.TrimSpace(string(comm)))
		}
	}
}

// F01, F03: cancel ends the whole tree, whatever it did to escape.
func TestF01CancelEndsTheTree(t *testing.T) {
	f := newFixture(t, "bash", "-c", hydra+"sleep 1000")
	h := f.start(t)
	f.waitForFile(t, "up")
	f.waitForFile(t, "ghost")
	for range 3 { // idempotent
		if err := h.Cancel(t.Context(), "no longer needed"); err != nil {
			t.Fatal(err)
		}
	}
	e := wait(t, h)
	if e.Kind != KindCancelled || !strings.Contains(e.Detail, "no longer needed") || e.Code != nil {
		t.Errorf("got %+v, want cancelled with the reason", e)
	}
	f.assertNoGhost(t)
}

// F02: the leader's exit ends the execution, background processes or not.
func TestF02LeaderExitEndsIt(t *testing.T) {
	f := newFixture(t, "bash", "-c", hydra+"sleep 1000 & exec 3>&1; echo done; exit 5")
	f.spec.Timeout = 0
	start := time.Now()
	e := f.run(t)
	if e.Kind != KindExited || code(e) != 5 {
		t.Errorf("got %+v, want exit 5", e)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %s in spite of a drain time of %s", d, f.spec.Drain)
	}
	if out, _ := f.output(t); out != "done\n" {
		t.Errorf("output %q", out)
	}
	f.assertNoGhost(t)
}

// What is left behind may finish within the drain time, and its output counts.
func TestDrainLetsBackgroundFinish(t *testing.T) {
	f := newFixture(t, "bash", "-c", "(sleep 0.1; echo late) & echo early")
	f.spec.Drain = 20 * time.Second
	start := time.Now()
	e := f.run(t)
	if out, _ := f.output(t); out != "early\nlate\n" || code(e) != 0 {
		t.Errorf("output %q, exit %+v", out, e)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("waited %s: the end of the last process must end the drain", d)
	}
}

// F08: the time-out fires while the command runs, and its verdict stands even
// if the command then exits with 0.
func TestF08Timeout(t *testing.T) {
	for name, tc := range map[string]struct{ script, detail string }{
		"obeys":   {"trap 'exit 0' TERM; touch /workspace/up; while :; do sleep 0.05; done", "exited with 0"},
		"ignores": {hydra + "while :; do sleep 1; done", "time limit"},
		"stopped": {"kill -STOP $$", "SIGTERM"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "bash", "-c", tc.script)
			f.spec.Timeout = 400 * time.Millisecond
			e := f.run(t)
			if e.Kind != KindTimedOut || !strings.Contains(e.Detail, tc.detail) || e.Code != nil {
				t.Errorf("got %+v, want timed_out with %q", e, tc.detail)
			}
			f.assertNoGhost(t)
		})
	}
}

func TestCancelBeforeTheStart(t *testing.T) {
	f := newFixture(t, "touch", "/workspace/ran")
	if err := os.WriteFile(filepath.Join(f.dir, cancelFile), []byte("changed my mind"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := f.run(t)
	if e.Kind != KindCancelled || e.Detail != "changed my mind" {
		t.Errorf("got %+v", e)
	}
	if _, err := os.Stat(filepath.Join(f.workspace, "ran")); err == nil {
		t.Error("the command ran all the same")
	}
}

// A cancel may strike at any moment of the set-up; none leaves anything behind.
func TestCancelDuringSetUp(t *testing.T) {
	for i := range 40 {
		f := newFixture(t, "sleep", "1000")
		h := f.start(t)
		time.Sleep(time.Duration(i) * 300 * time.Microsecond) // the moment is the input
		if err := h.Cancel(t.Context(), "now"); err != nil {
			t.Fatal(err)
		}
		if e := wait(t, h); e.Kind != KindCancelled {
			t.Fatalf("after %d00 us: %+v", 3*i, e)
		}
		f.assertNoGhost(t)
	}
}

func TestCancelAfterTheEndKeepsTheVerdict(t *testing.T) {
	f := newFixture(t, "sh", "-c", "exit 4")
	h := f.start(t)
	wait(t, h)
	if err := h.Cancel(t.Context(), "too late"); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, h); e.Kind != KindExited || code(e) != 4 {
		t.Errorf("got %+v", e)
	}
}

// F04: orphans do not pile up as zombies under pid 1.
func TestF04OrphansAreReaped(t *testing.T) {
	f := newFixture(t, "bash", "-c", `
for i in $(seq 100); do ( (exit 0) & ); done
for i in $(seq 200); do
  n=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true)
  [ "$n" = 0 ] && break
  sleep 0.02
done
echo "zombies $n"`)
	f.run(t)
	if out, _ := f.output(t); out != "zombies 0\n" {
		t.Errorf("output %q", out)
	}
}

// F09: no exit code is made up for an init that was killed.
func TestF09KilledInitIsNoSuccess(t *testing.T) {
	f := newFixture(t, "sh", "-c", "touch /workspace/up; sleep 1000")
	h := f.start(t)
	f.waitForFile(t, "up")
	id, found, err := readIdentity(f.dir)
	if err != nil || !found {
		t.Fatalf("identity: %v %v", found, err)
	}
	if err := unix.Kill(id.Init.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := wait(t, h)
	if e.Kind != KindSignaled || e.Code != nil || e.Detail == "" {
		t.Errorf("got %+v, want signaled with a detail and no code", e)
	}
	f.assertNoGhost(t)
}

// Hostile code can neither signal init to death nor reach its descriptors.
func TestInitIsOutOfReach(t *testing.T) {
	f := newFixture(t, "bash", "-c", `
for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done
ls /proc/1/fd >/dev/null 2>&1 && echo "init's descriptors are readable"
cat /proc/1/environ >/dev/null 2>&1 && echo "init's memory is readable"
ls /proc/self/fd | grep -vx '[0-3]'
echo still here; exit 7`)
	e := f.run(t)
	if out, _ := f.output(t); out != "still here\n" || code(e) != 7 {
		t.Errorf("output %q, exit %+v", out, e)
	}
}

func TestLimitsReachTheLeader(t *testing.T) {
	f := newFixture(t, "bash", "-c", "ulimit -n; ulimit -c; ulimit -u; ulimit -f")
	f.spec.Limits = Limits{NoFile: 333, MaxProcs: 77, FileSize: 2 << 20}
	f.run(t)
	out, _ := f.output(t)
	if want := "333\n0\n77\n2048\n"; out != want {
		t.Errorf("limits %q, want %q", out, want)
	}
}

// A leader that passes the file size limit gets a verdict that names it.
func TestFileSizeLimitIsNamed(t *testing.T) {
	f := newFixture(t, "dd", "if=/dev/zero", "of=/workspace/big", "bs=1M", "count=3")
	f.spec.Limits.FileSize = 1 << 20
	e := f.run(t)
	if e.Kind != KindQuotaExceeded || e.Limit != "file_size" {
		t.Errorf("got %+v", e)
	}
}

// A fork bomb runs into its limit; init, which is not subject to it, goes on.
func TestForkBombIsContained(t *testing.T) {
	f := newFixture(t, "bash", "-c", "for i in $(seq 200); do sleep 1000 & done 2>/dev/null; echo unreachable?; exit 3")
	f.spec.Limits.MaxProcs = 20
	f.spec.Timeout = 3 * time.Second
	e := f.run(t)
	if e.Kind != KindTimedOut && e.Kind != KindExited {
		t.Errorf("got %+v", e)
	}
	f.assertNoGhost(t)
}

// When the host's memory ends, the kernel ends the sandbox, not its supervisor.
func TestKilledFirstWhenMemoryEnds(t *testing.T) {
	f := newFixture(t, "/bin/sh", "-c", "cat /proc/self/oom_score_adj >score; touch up; sleep 60")
	h := f.start(t)
	f.waitForFile(t, "up")
	if score, err := os.ReadFile(filepath.Join(f.workspace, "score")); err != nil || string(score) != "1000\n" {
		t.Fatalf("the command's score is %q (%v), want 1000", score, err)
	}
	status, err := h.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mine, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	shim, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", status.ShimPID))
	if err != nil || string(shim) != string(mine) {
		t.Fatalf("the supervisor's score is %q (%v), want %q", shim, err, mine)
	}
}

// A canceller that is too slow to say what it wants has left its wish: a
// connection without a word is enough.
func TestSlowCancelIsObeyed(t *testing.T) {
	f := newFixture(t, "sh", "-c", "touch up; sleep 1000")
	h := f.start(t)
	f.waitForFile(t, "up")
	if err := writeFileDurably(f.dir, cancelFile, []byte("slow")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(f.dir)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: sockFile}); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, h); e.Kind != KindCancelled || !strings.Contains(e.Detail, "slow") {
		t.Errorf("%+v", e)
	}
}
