package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A shim whose command does not read, or is about to end and does not, waits
// without work.
func TestFullInputIsNoWork(t *testing.T) {
	for name, terminal := range map[string]*WindowSize{"pipe": nil, "terminal": size24x80} {
		t.Run(name, func(t *testing.T) {
			f := interactive(t, terminal, "python3", "-c", "import signal, time, tty, os\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nif os.isatty(0): tty.setraw(0)\nprint('up', flush=True)\ntime.sleep(60)")
			h := f.start(t)
			f.await(t, "up")
			var offset uint64
			for full := false; !full; {
				s, err := h.WriteInput(t.Context(), InputChunk{Writer: "t", Offset: offset, Data: make([]byte, MaxInputChunk)})
				if err != nil {
					t.Fatal(err)
				}
				full, offset = s.Written < MaxInputChunk || s.Accepted >= inputBuffer+64<<10, s.Accepted
			}
			status, err := h.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before := ticks(t, status.ShimPID)
			time.Sleep(2 * time.Second) // what is measured
			if used := ticks(t, status.ShimPID) - before; used > 10 {
				t.Errorf("the shim worked for %d hundredths of 2 s", used)
			}
		})
	}
}

// ticks of processor time that a process has used.
func ticks(t testing.TB, pid int) (sum int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	for _, text := range strings.Fields(rest)[11:13] {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
