package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

func requireLimit(t *testing.T, h *Host, name string) {
	t.Helper()
	sandboxtest.Require(t, h.Report().Require(name))
}

// A memory limit holds for the execution as a whole, and its verdict names it.
func TestMemoryLimitEndsAsOOM(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		requireLimit(t, w.host, MemoryLimit)
		w.policy.Limits.MemoryBytes = 64 << 20
		r := w.run(t, "python3", "-c", "x = []\nwhile True: x.append(bytearray(8 << 20))")
		if r.Kind != supervisor.KindOOMKilled || r.Limit != "memory" {
			t.Errorf("got %+v, %s", r.Exit, r.stderr)
		}
		if r.Usage.PeakMemoryBytes < 32<<20 || r.Usage.PeakMemoryBytes > 80<<20 {
			t.Errorf("peak %d", r.Usage.PeakMemoryBytes)
		}
		assertNoGroups(t, w.host)
	})
}

// The record tells the processor time also of children that nobody waits for,
// where the control group of a limit counts it.
func TestUsageUnderLimits(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		requireLimit(t, w.host, CPULimit)
		w.policy.Limits.CPUs, w.policy.Limits.MemoryBytes = 1, 256<<20
		r := w.run(t, "python3", "-c", `
import os, signal, time
def burn():
    while time.process_time() < 0.4: pass
if os.fork() == 0:
    burn(); os._exit(0)
os.wait()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
r, w = os.pipe()
if os.fork() == 0:
    burn(); os._exit(0)
os.close(w); os.read(r, 1)`)
		want := int64(400_000)
		if len(w.host.layout.V2Controllers) > 0 {
			want *= 2
		}
		used := r.Usage.UserMicros + r.Usage.SystemMicros
		if most := r.Ended.Sub(r.Started).Microseconds() + 200_000; *r.Code != 0 || used < want-10_000 || used > most {
			t.Errorf("used %d us, at least %d (%+v %s)", used, want, r.Exit, r.stderr)
		}
	})
}

func TestProcessLimitHolds(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		for name, off := range map[string]bool{"control groups": false, "rlimits": true} {
			t.Run(name, func(t *testing.T) {
				w := open(t, func(c *Config) { c.NoCgroups = off })
				if !off {
					requireLimit(t, w.host, ProcessLimit)
				}
				w.policy.Limits.MaxProcs = 20
				r := w.run(t, "python3", "-c", `
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
        n += 1
except BlockingIOError:
    pass
print(n)`)
				// Python is one of the twenty; as an rlimit, init's threads count too.
				if n, err := strconv.Atoi(strings.TrimSpace(r.stdout)); err != nil || n < 8 || n > 19 {
					t.Errorf("%q children with a limit of 20 (%+v %s)", r.stdout, r.Exit, r.stderr)
				}
				assertNoGroups(t, w.host)
			})
		}
	})
}

// burnCPU is Python for using so much processor time, whatever else runs here.
const burnCPU = `
import os, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
`

// F20: the CPU limit is enforced and told to the code. Only a lower bound of the
// time is a fact: a busy or emulated machine takes longer.
func TestF20CPULimitIsTold(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		requireLimit(t, w.host, CPULimit)
		w.policy.Limits.CPUs = 0.5
		r := w.run(t, "python3", "-c", burnCPU+`
burn(1)
print(os.environ["OMP_NUM_THREADS"], os.environ["MAKEFLAGS"])`)
		if r.stdout != "1 -j1\n" {
			t.Errorf("stdout %q, %s", r.stdout, r.stderr)
		}
		if wall := r.Ended.Sub(r.Started); wall < 1700*time.Millisecond {
			t.Errorf("a second of processor time took %v with half a CPU", wall)
		}
		assertNoGroups(t, w.host)
	})
}

// F20: what code asks for the number of processors tells it its own, so that it
// starts as many threads; and if it takes others all the same, its quota holds.
func TestF20CodeSeesItsProcessors(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		p, err := NewProcessors()
		if err != nil {
			t.Fatal(err)
		}
		if len(p.allowed) < 2 {
			t.Skip("one processor is all that this machine has")
		}
		w.policy.Limits.CPUs, w.policy.CPUSet = 1, p.Take("ex_1", 1)
		r := w.shell(t, `echo $(env -u OMP_NUM_THREADS nproc) $(getconf _NPROCESSORS_ONLN)
env -u PYTHON_CPU_COUNT python3 -c 'import os; print(os.cpu_count(), os.sched_getaffinity(0))'`)
		if want := fmt.Sprintf("1 1\n1 {%d}\n", w.policy.CPUSet[0]); r.stdout != want {
			t.Errorf("got %q, want %q (%s)", r.stdout, want, r.stderr)
		}
		requireLimit(t, w.host, CPULimit)
		r = w.run(t, "python3", "-c", burnCPU+`
os.sched_setaffinity(0, range(1000))
n = len(os.sched_getaffinity(0))
for i in range(n):
    if os.fork() == 0:
        burn(1.6 / n); os._exit(0)
for i in range(n): os.wait()
print(n)`)
		if r.stdout != fmt.Sprintln(len(p.allowed)) {
			t.Errorf("code got %q processors of %d, %s", r.stdout, len(p.allowed), r.stderr)
		}
		if wall := r.Ended.Sub(r.Started); wall < 1360*time.Millisecond {
			t.Errorf("1.6 s of processor time took %v with one CPU", wall)
		}
	})
}

// Without a CPU limit nothing is told, unless the operator wants it; the agent's
// own value wins.
func TestThreadsHint(t *testing.T) {
	for name, tc := range map[string]struct {
		limit float64
		hint  int
		env   map[string]string
		want  string
	}{
		"nothing":    {0, 0, nil, "- -"},
		"hint":       {0, 3, nil, "3 3"},
		"limit wins": {2.5, 7, nil, "3 3"},
		"own value":  {0, 3, map[string]string{"OMP_NUM_THREADS": "9"}, "9 3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Policy{Limits: Limits{CPUs: tc.limit}, ThreadsHint: tc.hint, Env: tc.env}
			got := map[string]string{"OMP_NUM_THREADS": "-", "GOMAXPROCS": "-"}
			for _, pair := range p.environment() {
				if k, v, _ := strings.Cut(pair, "="); got[k] != "" {
					got[k] = v
				}
			}
			if s := got["OMP_NUM_THREADS"] + " " + got["GOMAXPROCS"]; s != tc.want {
				t.Errorf("got %s, want %s", s, tc.want)
			}
		})
	}
}

func TestProcessorsAreSpread(t *testing.T) {
	p := &Processors{allowed: []int{2, 3, 5, 7}, load: map[int]float64{}, held: map[string]share{}}
	take := func(id string, cpus float64, want ...int) {
		t.Helper()
		if got := p.Take(id, cpus); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", id, got, want)
		}
	}
	take("a", 1.5, 2, 3)
	take("b", 1, 5)
	take("c", 1, 7)
	take("d", 1, 2) // a's two processors have 0.75 each
	take("b", 1, 5)
	p.Release("c")
	take("e", 0.5, 7)
	take("all", 4)
	take("more", 9)
	take("none", 0)
	p.Resume("old", []int{7}, 1)
	take("f", 1, 3)
	for _, id := range []string{"a", "b", "d", "e", "old", "f", "unknown"} {
		p.Release(id)
	}
	if len(p.load) != 0 || len(p.held) != 0 {
		t.Errorf("left: %v %v", p.load, p.held)
	}
}

// assertNoGroups fails if a control group of this process's executions is left.
func assertNoGroups(t *testing.T, h *Host) {
	t.Helper()
	for _, dir := range h.layout.V1 {
		left, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("ex_%d_*", os.Getpid())))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("control groups left: %v", left)
		}
	}
}
