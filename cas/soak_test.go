package cas

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// soakLength is how long the test below runs: SKERRY_SOAK, such as 5m, or a
// few seconds.
func soakLength(t *testing.T) time.Duration {
	t.Helper()
	if v := os.Getenv("SKERRY_SOAK"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("SKERRY_SOAK: %v; want a duration such as 5m", err)
		}
		return d
	}
	if testing.Short() {
		return time.Second
	}
	return 6 * time.Second
}

// soakCounts is what happened beside the writers.
type soakCounts struct {
	collections, removed, moved, verified, rebuilt, reopened int64
}

// TestGCWithWriters (F30): collections run without pause, keeping one commit
// a head, while four writers snapshot trees that go back to earlier contents,
// so that they rely on what is just being removed. Index runs are merged,
// verified and rebuilt meanwhile, and the store is closed and opened several
// times. The sequence of changes is seeded; SKERRY_SOAK sets how long it goes.
func TestGCWithWriters(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{MaxPackBytes: 32 << 10, StatCacheEntries: 40}
	end := time.Now().Add(soakLength(t))
	works, heads := make([]string, 4), make([]Head, 4)
	for a := range works {
		works[a] = t.TempDir()
	}
	var n soakCounts
	for round := uint64(1); time.Now().Before(end) && !t.Failed(); round++ {
		s := openStore(t, dir, cfg)
		until := time.Now().Add(max(time.Until(end)/8, 500*time.Millisecond))
		soakRound(t, s, works, heads, round, until, &n)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		n.reopened++
	}
	t.Logf("%+v; commits %d, %d, %d, %d", n, heads[0].Seq, heads[1].Seq, heads[2].Seq, heads[3].Seq)
	if n.removed == 0 {
		t.Error("nothing was ever removed")
	}
	s := openStore(t, dir, cfg)
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
	for a, work := range works {
		checkSoaked(t, s, fmt.Sprint("ws", a), work)
	}
}

// soakRound lets the writers work until the time, and collects beside them.
func soakRound(t *testing.T, s *Store, works []string, heads []Head, round uint64, until time.Time, n *soakCounts) {
	t.Helper()
	var writers, side sync.WaitGroup
	stop := make(chan struct{})
	side.Go(func() {
		r := rand.New(rand.NewPCG(round, 99))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := soakBeside(t, s, r, n); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for a, work := range works {
		writers.Go(func() { heads[a] = gcWriter(t, s, work, fmt.Sprint("ws", a), heads[a], round, until) })
	}
	writers.Wait()
	close(stop)
	side.Wait()
}

// soakBeside collects mostly, and verifies or rebuilds now and then.
func soakBeside(t *testing.T, s *Store, r *rand.Rand, n *soakCounts) error {
	switch r.IntN(20) {
	case 0:
		n.verified++
		rep, err := s.Verify(t.Context(), VerifyOptions{Reachable: true})
		if err == nil && !rep.OK() {
			err = fmt.Errorf("verify: %+v", rep)
		}
		return err
	case 1:
		n.rebuilt++
		return s.Rebuild(t.Context())
	default:
		rep, err := s.GC(t.Context(), GCOptions{Keep: keepOne, NoGrace: r.IntN(3) == 0})
		n.collections++
		n.removed += int64(rep.PacksRemoved)
		n.moved += int64(rep.PacksMoved)
		return err
	}
}

// checkSoaked compares all that a head holds with its workspace.
func checkSoaked(t *testing.T, s *Store, head, work string) {
	t.Helper()
	h, err := s.Head(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	restore(t, s, h.Tree, out, RestoreOptions{})
	want, err1 := describe(work, nil)
	got, err2 := describe(out, nil)
	if err := errors.Join(err1, err2, compareTrees(want, got)); err != nil {
		t.Errorf("head %s: %v", head, err)
	}
}

// gcWriter changes a workspace among few contents, some shared with the other
// writers, and commits it; each commit must be readable at once.
func gcWriter(t *testing.T, s *Store, work, head string, h Head, seed uint64, deadline time.Time) Head {
	r := rand.New(rand.NewPCG(seed, uint64(head[len(head)-1])))
	lost := false
	for i := 0; lost || time.Now().Before(deadline); i++ {
		for range 3 {
			path := filepath.Join(work, fmt.Sprint("d", r.IntN(3)), fmt.Sprint("f", r.IntN(5)))
			err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, randomBytes(r.Uint64N(9), 2000), 0o644))
			if err != nil {
				t.Error(err)
				return h
			}
		}
		key := head
		if i%2 == 0 {
			key = ""
		}
		res, err := snapshotPath(s, work, key)
		if err == nil {
			var now Head
			now, err = s.Commit(t.Context(), CommitRequest{Head: head, Expect: h.Commit, Tree: res.Tree, Source: fmt.Sprint(head, seed, ".", i), Stats: res.TreeStats})
			if lost = errors.Is(err, ErrNotFound); lost {
				continue // more than two collections came in between
			}
			h = now
		}
		if err != nil {
			t.Errorf("round %d: %v", i, err)
			return h
		}
		err = s.Walk(t.Context(), h.Tree, "", func(path string, x Entry) error {
			if x.Type == TypeFile {
				_, err := s.GetBytes(t.Context(), x.Digest)
				return err
			}
			return nil
		})
		if err != nil {
			t.Errorf("round %d is not readable: %v", i, err)
			return h
		}
	}
	return h
}
