package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
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
	sandboxtest.AsOrdinaryUser(t, shimBinary, "Conformance|I7Sealed|I7Escape|SystemCalls|F15|F16|F21|F22|Granted|Probe|ProcessLimit|OldBwrap|NeverRoot|Rootfs|Allowlist")
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
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
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

// executions numbers those of all worlds: ids are names on the host.
var executions atomic.Int32

// world is a host and what an execution on it needs.
type world struct {
	host      *Host
	workspace string
	policy    Policy
	// containerd is the one that makes the sandboxes, nil for bubblewrap.
	containerd *sandboxtest.Containerd
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
	return w.begin(t, policy, nil).end(t)
}

func (w *world) shell(t testing.TB, script string) result {
	t.Helper()
	return w.run(t, "bash", "-c", script)
}

func benchmarkHost(b *testing.B, open opener, change func(*Config), prepare func(*Policy)) {
	w := open(b, change)
	w.policy.Args = []string{"true"}
	if prepare != nil {
		prepare(&w.policy)
	}
	base := privateDir(b)
	defer reportCPU(b)()
	var spent []time.Duration
	defer func() {
		slices.Sort(spent)
		b.ReportMetric(float64(spent[len(spent)/2].Microseconds())/1000, "p50-ms")
	}()
	for i := 0; b.Loop(); i++ {
		began := time.Now()
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
		if err := w.host.Begin(b.Context(), spec.ID, h, w.policy); err != nil {
			b.Fatal(err)
		}
		exit, err := h.Wait(b.Context())
		if err != nil || exit.Kind != supervisor.KindExited {
			b.Fatalf("%+v, %v", exit, err)
		}
		spent = append(spent, time.Since(began))
		if err := w.host.End(b.Context(), spec.ID); err != nil {
			b.Fatal(err)
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
	b.Run("rlimits", func(b *testing.B) { benchmarkHost(b, newWorld, func(c *Config) { c.NoCgroups = true }, nil) })
	b.Run("cgroups", func(b *testing.B) {
		benchmarkHost(b, newWorld, nil, func(p *Policy) { p.Limits = Limits{CPUs: 2, MemoryBytes: 1 << 30} })
	})
	b.Run("containerd", func(b *testing.B) {
		benchmarkHost(b, onContainerd(sandboxtest.StartContainerd(b)), func(c *Config) { c.NoCgroups = true }, nil)
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
