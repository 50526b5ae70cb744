package cas

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// TestEverythingAtOnce: workspaces are changed, snapshotted and committed
// while packs are sealed all the time, caches evicted and flushed, the store
// verified and its indexes rebuilt.
func TestEverythingAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{MaxPackBytes: 16 << 10, StatCacheEntries: 30, StatCacheFlush: 1e6})
	const agents, rounds = 4, 30
	trees := make([]string, agents)
	var wg, side sync.WaitGroup
	var stop atomic.Bool
	side.Go(func() {
		for !stop.Load() {
			rep, err := s.Verify(t.Context(), VerifyOptions{Reachable: true})
			if err != nil || !rep.OK() {
				t.Errorf("verify: %+v, %v", rep, err)
			}
			if err := s.Rebuild(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := s.Stats(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	for a := range agents {
		trees[a] = t.TempDir()
		wg.Go(func() { agentLoop(t, s, trees[a], fmt.Sprint("ws", a), rounds) })
	}
	wg.Wait()
	stop.Store(true)
	side.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	for a := range agents {
		h, err := s.Head(t.Context(), fmt.Sprint("ws", a))
		if err != nil || h.Seq != rounds {
			t.Fatalf("head %+v, %v", h, err)
		}
		if now := snapshot(t, s, trees[a], ""); now.Tree != h.Tree {
			t.Errorf("head of agent %d is not what its workspace holds", a)
		}
	}
}

func agentLoop(t *testing.T, s *Store, work, head string, rounds int) {
	var h Head
	for i := range rounds {
		for j := range 3 {
			path := filepath.Join(work, fmt.Sprint("d", (i+j)%4), fmt.Sprint("f", i%7))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(path, randomBytes(uint64(i*j), 100+i*50), 0o644); err != nil {
				t.Error(err)
			}
		}
		res, err := snapshotPath(s, work, head)
		if err != nil {
			t.Error(err)
			return
		}
		h, err = s.Commit(t.Context(), CommitRequest{Head: head, Expect: h.Commit, Tree: res.Tree, Source: fmt.Sprint(head, i), Stats: res.TreeStats})
		if err != nil {
			t.Error(err)
			return
		}
	}
}
