package sandbox

import (
	_ "embed"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"skerry.internal/sandbox/supervisor"
)

var (
	//go:embed testdata/escape.py
	escapeScript string
	//go:embed testdata/escape.want
	escapeWant string
)

// leastAttempts is how many the suite must have made.
const leastAttempts = 150

// I7: hostile code tries what is known to lead out of sandboxes. The file
// escape.want has what each attempt must come to, in order.
func TestI7EscapeSuite(t *testing.T) {
	perBackend(t, func(t *testing.T, open opener) {
		w := open(t, nil)
		w.policy.TmpBytes, w.policy.ShmBytes = 64<<20, 64<<20
		w.policy.Limits = Limits{MaxProcs: 100, NoFile: 1024, FileSize: 1 << 30}
		checkEscapes(t, w)
	})
}

func checkEscapes(t *testing.T, w *world) {
	t.Helper()
	got := escape(t, w)
	if len(got) < leastAttempts {
		t.Fatalf("%d attempts: %q", len(got), got)
	}
	want := strings.Split(strings.TrimSpace(escapeWant), "\n")
	for i, line := range got {
		name, outcome, _ := strings.Cut(line, ": ")
		if i >= len(want) {
			t.Errorf("%s: %s, and nothing of it in escape.want", name, outcome)
			continue
		}
		wantName, outcomes, _ := strings.Cut(want[i], ": ")
		if name != wantName || !slices.Contains(strings.Split(outcomes, "|"), outcome) {
			t.Errorf("%s: %s, want %s", name, outcome, want[i])
		}
	}
	if len(got) < len(want) {
		t.Errorf("attempts not made: %q", want[len(got):])
	}
}

// escape runs the hostile code beside things of the host that it must not reach
// and gives a line for each attempt.
func escape(t *testing.T, w *world) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	abstract := "skerry-escape-" + port
	unix, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	r := w.run(t, "python3", "-c", escapeScript, strconv.Itoa(os.Getpid()), file, port, abstract)
	if r.Kind != supervisor.KindExited || *r.Code != 0 {
		t.Errorf("the hostile code ended with %+v: %s", r.Exit, r.stderr)
	}
	return strings.Split(strings.TrimSpace(r.stdout), "\n")
}
