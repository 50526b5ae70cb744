package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.internal/cas"
)

// TestCasLostPack: a collection refuses while something that is kept is lost;
// once what needs it is let go of, it works.
func TestCasLostPack(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	put(t, filepath.Join(work, "1"), strings.Repeat("content", 700))
	snap := func() snapshotReport {
		return casJSON[snapshotReport](t, "snapshot", work, "--store", store, "--head", "ws")
	}
	snap()
	casJSON[gcReport](t, "gc", "--store", store)
	if err := os.Mkdir(filepath.Join(work, "s2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(work, "1"), filepath.Join(work, "s2/only")); err != nil {
		t.Fatal(err)
	}
	snap()
	casJSON[gcReport](t, "gc", "--store", store)
	put(t, filepath.Join(work, "n"), "new")
	last := snap()
	casJSON[gcReport](t, "gc", "--store", store)
	if err := os.Remove(filepath.Join(store, "packs", "0000000000000002.pack")); err != nil {
		t.Fatal(err)
	}
	casJSON[statsReport](t, "rebuild", "--store", store)
	if out, err := runnerdRun(t, "cas", "gc", "--keep", "1", "--store", store); err == nil || !strings.Contains(err.Error(), `head "ws"`) ||
		!strings.Contains(err.Error(), last.Digest.String()) || !strings.Contains(err.Error(), "cas rm") {
		t.Errorf("gc printed %q, %v", out, err)
	}
	if out, err := runnerdRun(t, "cas", "verify", "--store", store); err == nil || !strings.Contains(out, `which head "ws" needs for "s2"`) ||
		!strings.Contains(err.Error(), "objects missing") || strings.Contains(err.Error(), "meta.db") || strings.Contains(err.Error(), "false") {
		t.Errorf("verify printed %q, %v", out, err)
	}
	if r := casJSON[removedLine](t, "rm", "--head", "ws", "--store", store); r.Head != "ws" || r.Digest != last.Digest {
		t.Errorf("removed %+v", r)
	}
	if r := casJSON[gcReport](t, "gc", "--store", store); r.Kept != 0 {
		t.Errorf("collected %+v", r)
	}
	if r := casJSON[verifyReport](t, "verify", "--store", store); !r.OK {
		t.Errorf("verify %+v", r)
	}
}

// TestCasPins: pins and leases are listed, resolved, verified and let go of.
func TestCasPins(t *testing.T) {
	store, work := filepath.Join(t.TempDir(), "store"), t.TempDir()
	put(t, filepath.Join(work, "d/f"), "x")
	snap := casJSON[snapshotReport](t, "snapshot", work, "--store", store, "--head", "ws")
	s, err := cas.Open(t.Context(), store, cas.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.Pin(t.Context(), "p", snap.Digest), s.Lease(t.Context(), "l", snap.Digest, 3), s.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	casJSON[removedLine](t, "rm", "--head", "ws", "--store", store)
	out, err := runnerdRun(t, "cas", "ls", "--json", "--store", store)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(out))
	var pin, lease pinnedLine
	if err := dec.Decode(&pin); err != nil {
		t.Fatal(err)
	}
	if err := dec.Decode(&lease); err != nil {
		t.Fatal(err)
	}
	if (pin != pinnedLine{Pin: "p", Digest: snap.Digest}) || (lease != pinnedLine{Lease: "l", Digest: snap.Digest, Collections: 3}) {
		t.Errorf("listed %q", out)
	}
	for _, ref := range []string{"pin:p", "lease:l"} {
		if l := casJSON[entryLine](t, "ls", ref, "d", "--store", store); l.Path != "d/f" {
			t.Errorf("%s: %+v", ref, l)
		}
		to := filepath.Join(t.TempDir(), "out")
		if r := casJSON[restoreReport](t, "restore", ref, to, "--store", store); r.Files != 1 {
			t.Errorf("%s: %+v", ref, r)
		}
	}
	if r := casJSON[verifyReport](t, "verify", "--store", store); !r.OK || r.Pins != 1 || r.Leases != 1 || r.Reached != 3 {
		t.Errorf("verify %+v", r)
	}
	casJSON[removedLine](t, "rm", "--pin", "p", "--store", store)
	if r := casJSON[removedLine](t, "rm", "--lease", "l", "--store", store); r.Lease != "l" || r.Digest != snap.Digest {
		t.Errorf("removed %+v", r)
	}
	for _, args := range [][]string{{"--pin", "p"}, {"--head", "ws"}, {"--lease", "l"}, {"--pin", ""}, {}, {"--pin", "p", "--head", "ws"}} {
		if out, err := runnerdRun(t, append([]string{"cas", "rm", "--store", store}, args...)...); err == nil || out != "" {
			t.Errorf("%q: printed %q, %v", args, out, err)
		}
	}
}
