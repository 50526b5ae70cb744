package cas

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestCommitRules holds I6: one writer, and a fenced one cannot commit.
func TestCommitRules(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	ctx := t.Context()
	tree := snapshot(t, s, t.TempDir(), "").Tree
	other, err := (&Directory{Root: true, Mode: 0o700, MTime: time.Unix(1, 0)}).marshal()
	if err != nil {
		t.Fatal(err)
	}
	tree2, err := s.PutBytes(ctx, other)
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.Commit(ctx, CommitRequest{Head: "ws", Epoch: 3, Tree: tree, Source: "a"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Commit(ctx, CommitRequest{Head: "ws", Epoch: 3, Tree: tree, Source: "a"})
	if err != nil || again != first {
		t.Errorf("the same request again: %+v, %v; want %+v", again, err, first)
	}
	for _, tc := range []struct {
		name string
		req  CommitRequest
		want error
	}{
		{"stale epoch", CommitRequest{Head: "ws", Expect: first.Commit, Epoch: 2, Tree: tree2, Source: "b"}, ErrFenced},
		{"stale epoch, same request", CommitRequest{Head: "ws", Epoch: 2, Tree: tree, Source: "a"}, ErrFenced},
		{"wrong parent", CommitRequest{Head: "ws", Expect: tree, Epoch: 3, Tree: tree2, Source: "b"}, ErrConflict},
		{"expects no head", CommitRequest{Head: "ws", Epoch: 3, Tree: tree2, Source: "b"}, ErrConflict},
		{"unknown tree", CommitRequest{Head: "ws", Expect: first.Commit, Epoch: 3, Tree: DigestOf([]byte("no")), Source: "b"}, ErrNotFound},
		{"no name", CommitRequest{Tree: tree}, ErrInvalid},
		{"long name", CommitRequest{Head: strings.Repeat("x", maxHeadName+1), Tree: tree}, ErrInvalid},
		{"long source", CommitRequest{Head: "ws2", Tree: tree, Source: strings.Repeat("x", maxSource+1)}, ErrInvalid},
	} {
		if _, err := s.Commit(ctx, tc.req); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if h, err := s.Head(ctx, "ws"); err != nil || h != first {
		t.Errorf("head moved to %+v, %v", h, err)
	}
	if err := s.Fence(ctx, "ws", 5); err != nil {
		t.Fatal(err)
	}
	if err := s.Fence(ctx, "ws", 4); !errors.Is(err, ErrFenced) {
		t.Errorf("lowering the fence: %v", err)
	}
	var fenced *FencedError
	if _, err := s.Commit(ctx, CommitRequest{Head: "ws", Expect: first.Commit, Epoch: 4, Tree: tree2}); !errors.As(err, &fenced) || fenced.Current != 5 {
		t.Errorf("commit below the fence: %v", err)
	}
	if _, err := s.Commit(ctx, CommitRequest{Head: "ws", Expect: first.Commit, Epoch: 5, Tree: tree2}); err != nil {
		t.Errorf("commit at the fence: %v", err)
	}
}

func TestDeletedHeadStaysFenced(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	tree := snapshot(t, s, t.TempDir(), "").Tree
	if _, err := s.Commit(t.Context(), CommitRequest{Head: "ws", Epoch: 9, Tree: tree}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteHead(t.Context(), "ws"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteHead(t.Context(), "ws"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second delete: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	if _, err := s.Head(t.Context(), "ws"); !errors.Is(err, ErrNotFound) {
		t.Errorf("head: %v", err)
	}
	if _, err := s.Commit(t.Context(), CommitRequest{Head: "ws", Epoch: 8, Tree: tree}); !errors.Is(err, ErrFenced) {
		t.Errorf("stale commit: %v", err)
	}
	if _, err := s.Commit(t.Context(), CommitRequest{Head: "ws", Epoch: 9, Tree: tree}); err != nil {
		t.Errorf("new commit: %v", err)
	}
}

// TestConcurrentCommits: many writers on many heads, with packs so small that
// they are sealed all the time; of two that race on one head, one wins.
func TestConcurrentCommits(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{MaxPackBytes: 8 << 10})
	tree := snapshot(t, s, t.TempDir(), "").Tree
	const writers, rounds = 8, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			var last Head
			for i := range rounds {
				if _, err := s.PutBytes(t.Context(), randomBytes(uint64(w*1000+i), 700)); err != nil {
					t.Error(err)
					return
				}
				req := CommitRequest{Head: fmt.Sprint("h", w), Expect: last.Commit, Tree: tree, Source: fmt.Sprint(w, i)}
				h, err := s.Commit(t.Context(), req)
				if err != nil {
					t.Error(err)
					return
				}
				last = h
			}
		})
	}
	var won sync.Map
	for w := range writers {
		wg.Go(func() {
			if _, err := s.Commit(t.Context(), CommitRequest{Head: "one", Tree: tree, Source: fmt.Sprint("racer", w)}); err == nil {
				won.Store(w, true)
			} else if !errors.Is(err, ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	winners := 0
	won.Range(func(_, _ any) bool { winners++; return true })
	if winners != 1 {
		t.Errorf("%d of the racing commits won", winners)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	if rep := verify(t, s); !rep.OK() || rep.Heads != writers+1 || rep.Commits != writers*rounds+1 {
		t.Errorf("verify: %+v", rep)
	}
}
