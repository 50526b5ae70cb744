package supervisor

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// burn is shell for a process that uses the given time of a processor.
func burn(d time.Duration) string {
	return fmt.Sprintf(`python3 -c 'import time
while time.process_time() < %f: pass'`, d.Seconds())
}

// What a command uses is told exactly, however its processes end: waited for,
// orphaned, left behind and killed after it, or killed with it.
func TestUsageOfProcessorTime(t *testing.T) {
	const each = 400 * time.Millisecond
	forever := `python3 -c 'import signal, time, os
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while time.process_time() < 0.4: pass
os.close(os.open("burnt", os.O_CREAT))
time.sleep(60)'`
	await := "until [ -e burnt ]; do sleep 0.02; done; "
	for name, tc := range map[string]struct {
		script string
		kind   Kind
		loads  int
	}{
		"the leader and its children": {burn(each) + "; " + burn(each) + " & wait; " + burn(each), KindExited, 3},
		"orphans":                     {"(" + burn(each) + ") & exit 0", KindExited, 1},
		"left behind and killed":      {"setsid " + forever + " & " + await + "exit 0", KindExited, 1},
		"killed by the time limit":    {"trap '' TERM; " + forever, KindTimedOut, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "sh", "-c", tc.script)
			if f.spec.Drain = 300 * time.Millisecond; name == "orphans" {
				f.spec.Drain = 30 * time.Second // it ends with the last of them
			}
			if tc.kind == KindTimedOut {
				f.spec.Timeout = 6 * time.Second
			}
			began := time.Now()
			e := f.run(t)
			used := time.Duration(e.Usage.UserMicros+e.Usage.SystemMicros) * time.Microsecond
			// Beside its load, each process starts an interpreter or a shell.
			most := time.Since(began) * time.Duration(runtime.NumCPU())
			if want := time.Duration(tc.loads) * each; e.Kind != tc.kind || used < want-10*time.Millisecond || used > most {
				t.Errorf("%s: used %v, at least %v and at most %v (%s)", e.Kind, used, want, most, e.Detail)
			}
		})
	}
}

// Bytes that reach storage are told: written, and read past the page cache.
func TestUsageOfStorage(t *testing.T) {
	const size = 8 << 20
	f := newFixture(t, "sh", "-c", `dd if=/dev/zero of=big bs=1M count=8 conv=fsync 2>/dev/null
dd if=big of=/dev/null bs=1M iflag=direct 2>/dev/null || echo no direct reads`)
	var fs unix.Statfs_t
	if err := unix.Statfs(f.workspace, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is in memory: nothing reaches storage ", err)
	}
	e := f.run(t)
	if out, _ := f.output(t); out != "" {
		t.Skip("the temporary directory's file system: ", out)
	}
	near := func(n int64) bool { return n >= size && n < size+(4<<20) }
	if code(e) != 0 || !near(e.Usage.WrittenBytes) || !near(e.Usage.ReadBytes) {
		t.Errorf("read %d, written %d of %d each (%+v)", e.Usage.ReadBytes, e.Usage.WrittenBytes, size, e)
	}
}

// The largest process counts, not the sum.
func TestUsageOfMemory(t *testing.T) {
	f := newFixture(t, "sh", "-c", `python3 -c 'x = bytearray(100 << 20)'; python3 -c 'x = bytearray(10 << 20)'`)
	e := f.run(t)
	if rss := e.Usage.MaxRSSBytes; rss < 100<<20 || rss > 130<<20 {
		t.Errorf("largest resident set %d of a process that took 100 MiB", rss)
	}
}

// What init sends is what the shim reads.
func TestUsageEncoding(t *testing.T) {
	want := Usage{UserMicros: 1, SystemMicros: 2, MaxRSSBytes: 3, ReadBytes: 4, WrittenBytes: 5}
	if got, ok := parseUsage(want.encode()); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	if _, ok := parseUsage([]byte{msgUsage, 1}); ok {
		t.Error("a short message was taken")
	}
}
