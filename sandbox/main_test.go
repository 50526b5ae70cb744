package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

var shimBinary string

func TestMain(m *testing.M) {
	code, err := sandboxtest.Main(m, &shimBinary)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The same as an ordinary user, whose agents share its uid.
func TestAsOrdinaryUser(t *testing.T) {
	sandboxtest.AsOrdinaryUser(t, shimBinary, "I7Sealed|I7Escape|SystemCalls|F15|F16|F21|F22|Granted|Probe|ProcessLimit|OldBwrap|NeverRoot|Rootfs|Allowlist")
}

const (
	testUID = 54321
	testGID = 54322
)

// openHost opens a host whose state lies below a directory that only its owner
// can enter: a daemon's data directory may.
func openHost(t testing.TB, change func(*Config)) *Host {
	t.Helper()
	sandboxtest.RequireBwrap(t)
	config := Config{Shim: shimBinary, StateDir: privateDir(t), ProbeUID: testUID, ProbeGID: testGID}
	if change != nil {
		change(&config)
	}
	h, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func privateDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private", "state")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// world is a host and what an execution on it needs.
type world struct {
	host      *Host
	workspace string
	policy    Policy
	n         int
}

func newWorld(t testing.TB, change func(*Config)) *world {
	t.Helper()
	w := &world{host: openHost(t, change), workspace: filepath.Join(privateDir(t), "ws")}
	if err := os.Mkdir(w.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	w.policy.Workspace = w.workspace
	if os.Getuid() == 0 {
		w.policy.HostUID, w.policy.HostGID = testUID, testGID
		if err := os.Chown(w.workspace, testUID, testGID); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// result of one execution.
type result struct {
	supervisor.Exit
	stdout, stderr string
}

func (w *world) run(t testing.TB, args ...string) result {
	t.Helper()
	policy := w.policy
	policy.Args = args
	w.n++
	id := fmt.Sprintf("ex_%d_%d", os.Getpid(), w.n)
	spec, err := w.host.Command(id, policy)
	if err != nil {
		t.Fatal(err)
	}
	spec.Timeout = 30 * time.Second
	spec.Grace, spec.Drain = 300*time.Millisecond, 300*time.Millisecond
	dir := filepath.Join(privateDir(t), "exec")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h, err := supervisor.Start(ctx, shimBinary, dir, spec)
	if err != nil {
		t.Fatal(err)
	}
	exit, err := h.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out, errs, err := supervisor.Summary(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return result{exit, string(out.Head) + string(out.Tail), string(errs.Head) + string(errs.Tail)}
}

func (w *world) shell(t testing.TB, script string) result {
	t.Helper()
	return w.run(t, "bash", "-c", script)
}

func benchmarkHost(b *testing.B, change func(*Config), prepare func(*Policy)) {
	w := newWorld(b, change)
	w.policy.Args = []string{"true"}
	if prepare != nil {
		prepare(&w.policy)
	}
	base := privateDir(b)
	defer reportCPU(b)()
	for i := 0; b.Loop(); i++ {
		spec, err := w.host.Command(fmt.Sprintf("ex_%d_%d", os.Getpid(), i), w.policy)
		if err != nil {
			b.Fatal(err)
		}
		dir := filepath.Join(base, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		h, err := supervisor.Start(b.Context(), shimBinary, dir, spec)
		if err != nil {
			b.Fatal(err)
		}
		exit, err := h.Wait(b.Context())
		if err != nil || exit.Kind != supervisor.KindExited {
			b.Fatalf("%+v, %v", exit, err)
		}
	}
}

// reportCPU adds the processor time of the child processes, which tells more
// than the clock on a machine that does other things as well.
func reportCPU(b *testing.B) func() {
	now := func() int64 {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano() + r.Stime.Nano()
	}
	before := now()
	return func() { b.ReportMetric(float64(now()-before)/float64(b.N)/1e6, "cpu-ms/op") }
}

// The complete sandbox, supervised, from policy to durable verdict.
func BenchmarkExecution(b *testing.B) {
	b.Run("rlimits", func(b *testing.B) { benchmarkHost(b, func(c *Config) { c.NoCgroups = true }, nil) })
	b.Run("cgroups", func(b *testing.B) {
		benchmarkHost(b, nil, func(p *Policy) { p.Limits = Limits{CPUs: 2, MemoryBytes: 1 << 30} })
	})
	b.Run("raw bwrap", func(b *testing.B) {
		sandboxtest.RequireBwrap(b)
		defer reportCPU(b)()
		for b.Loop() {
			if out, err := exec.Command("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true").CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}

// What the daemon itself spends on one command.
func BenchmarkCommand(b *testing.B) {
	w := newWorld(b, nil)
	w.policy.Args = []string{"true"}
	for b.Loop() {
		if _, err := w.host.Command("ex_1", w.policy); err != nil {
			b.Fatal(err)
		}
	}
}
