package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

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

// F20: the CPU limit is enforced and told to the code.
func TestF20CPULimitIsTold(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		requireLimit(t, w.host, CPULimit)
		w.policy.Limits.CPUs = 0.5
		r := w.shell(t, `echo $OMP_NUM_THREADS $MAKEFLAGS; read -r a b < /proc/uptime; end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do :; done`)
		if r.stdout != "1 -j1\n" {
			t.Errorf("stdout %q", r.stdout)
		}
		wall := r.Ended.Sub(r.Started).Microseconds()
		if used := r.Usage.UserMicros + r.Usage.SystemMicros; used > wall*7/10 {
			t.Errorf("used %d of %d us with half a CPU", used, wall)
		}
		assertNoGroups(t, w.host)
	})
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
