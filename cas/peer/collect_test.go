package peer

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"skerry.internal/cas"
)

// collect runs a collection that spares nothing it need not.
func collect(t *testing.T, s *cas.Store) {
	t.Helper()
	if _, err := s.GC(t.Context(), cas.GCOptions{NoGrace: true, Keep: func(string) int { return 1 }}); err != nil {
		t.Error(err)
	}
}

// TestCollectionsWhileATransferRuns: after each slice both stores collect; the
// source's head has left the tree behind, and the receiver has an older state
// that nothing but the transfer relies on.
func TestCollectionsWhileATransferRuns(t *testing.T) {
	from, to := openStore(t), openStore(t)
	dir := sampleTree(t)
	snapshot(t, to, dir, "old")
	writeFile(t, filepath.Join(dir, "d0/e0/f0"), noise(7000, 900))
	writeFile(t, filepath.Join(dir, "d1/new"), noise(7001, 2500<<10))
	writeFile(t, filepath.Join(dir, "big"), noise(7002, 4<<20))
	root := snapshot(t, from, dir, "ws")
	server, a := newServer(t, from, Limits{})
	server.cfg.Bandwidth = NewLimiter(256 << 20)
	var rounds atomic.Int64
	src := &direct{server: server, token: a.grant(t, root), change: func(s Slice) ([]Slice, error) {
		if rounds.Add(1) == 1 {
			writeFile(t, filepath.Join(dir, "later"), []byte("later"))
			snapshot(t, from, dir, "ws")
			if err := to.DeleteHead(t.Context(), "old"); err != nil {
				t.Error(err)
			}
		}
		collect(t, from)
		collect(t, to)
		return []Slice{s}, nil
	}}
	if _, err := Pull(t.Context(), to, src, root, PullOptions{Pin: "tree"}); err != nil {
		t.Fatal(err)
	}
	if rounds.Load() < 20 {
		t.Errorf("%d slices only", rounds.Load())
	}
	collect(t, to)
	checkSame(t, from, to, root)
	whole := objectsOf(t, to, root)
	if present := checkClosed(t, to, whole); present != len(whole) {
		t.Errorf("%d of %d objects are there", present, len(whole))
	}
}

// TestServerLetsGoOfTrees: what was kept for a receiver is collected when it
// has not asked for a while, and when the server closes.
func TestServerLetsGoOfTrees(t *testing.T) {
	for name, end := range map[string]func(*Server){
		"idle":   func(*Server) {},
		"closed": func(s *Server) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			from := openStore(t)
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "f"), noise(1, 500))
			root := snapshot(t, from, dir, "ws")
			idle := time.Hour
			if name == "idle" {
				idle = time.Millisecond
			}
			server, a := newServer(t, from, Limits{Idle: idle})
			if _, _, err := ask(server, a.grant(t, root), "rcv", Batch{Directories: []cas.Digest{root}}); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(dir, "f"), noise(2, 500))
			snapshot(t, from, dir, "ws")
			end(server)
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the timer is the server's
				collect(t, from)
				if has, err := from.Has(t.Context(), root); err != nil {
					t.Fatal(err)
				} else if !has {
					return
				}
				if time.Now().After(deadline) {
					t.Fatal("the tree is still kept")
				}
			}
		})
	}
}
