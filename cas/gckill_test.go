package cas

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKillNineCollecting kills a process that commits and collects at random
// instants: each time the store opens, and all that its head names is whole.
func TestKillNineCollecting(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	rounds := 25
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		cmd := reexec(t, "collector", "DIR="+dir, "WORK="+work)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var seq uint64
		if _, err := fmt.Fscanln(out, &seq); err != nil {
			t.Fatalf("round %d: the child said nothing: %v", round, err)
		}
		timer := time.AfterFunc(time.Duration(round*5+round%4*3)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_, _ = io.Copy(io.Discard, out)
		timer.Stop()
		_ = cmd.Wait()
		s := openStore(t, dir, Config{MaxPackBytes: 16 << 10})
		h, err := s.Head(t.Context(), "ws")
		if err != nil || h.Seq < seq {
			t.Fatalf("head %+v, %v; the child reported %d", h, err, seq)
		}
		if rep := verify(t, s); !rep.OK() {
			t.Fatalf("round %d, head at %d: %+v", round, h.Seq, rep)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// childCollector commits a workspace that returns to earlier contents, and
// collects after every other commit.
func childCollector() error {
	ctx, cancel := testContext()
	defer cancel()
	s, err := Open(ctx, os.Getenv("DIR"), Config{MaxPackBytes: 16 << 10})
	if err != nil {
		return err
	}
	work := os.Getenv("WORK")
	h, err := s.Head(ctx, "ws")
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	for {
		n := h.Seq + 1
		for j := range uint64(3) {
			if err := os.WriteFile(filepath.Join(work, fmt.Sprint("f", (n+j)%5)), randomBytes((n*3+j)%11, 3000), 0o644); err != nil {
				return err
			}
		}
		res, err := snapshotPath(s, work, "ws")
		if err != nil {
			return err
		}
		if h, err = s.Commit(ctx, CommitRequest{Head: "ws", Expect: h.Commit, Tree: res.Tree, Source: fmt.Sprint("n", n)}); err != nil {
			return err
		}
		fmt.Println(h.Seq)
		if n%2 == 0 {
			if _, err := s.GC(ctx, GCOptions{Keep: keepOne, NoGrace: n%4 == 0}); err != nil {
				return err
			}
		}
	}
}
