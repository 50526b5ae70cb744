package cas

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKillNine kills a committing process at random instants. Each time the
// store opens, verifies, and holds every commit that was acknowledged.
func TestKillNine(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	var last Head
	for round := range rounds {
		cmd := reexec(t, "committer", "DIR="+dir, "WORK="+work)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The child speaks after each commit: kill it a while after its
		// first word, at a place that differs from round to round.
		acked := make([]byte, 0, 1<<16)
		buf := make([]byte, 4096)
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("round %d: the child said nothing: %v", round, err)
		}
		acked = append(acked, buf[:n]...)
		timer := time.AfterFunc(time.Duration(round*7+round*round)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		rest, _ := io.ReadAll(out)
		timer.Stop()
		_ = cmd.Wait()
		acked = append(acked, rest...)
		last = checkAcked(t, dir, last, acked)
	}
}

// checkAcked opens the store after the kill and compares its head with the
// last commit that the child reported.
func checkAcked(t *testing.T, dir string, before Head, acked []byte) Head {
	t.Helper()
	lines := bytes.Split(acked, []byte("\n"))
	var seq uint64
	var digest string
	for _, line := range lines[:len(lines)-1] {
		if _, err := fmt.Sscan(string(line), &seq, &digest); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
	}
	s := openStore(t, dir, Config{MaxPackBytes: 64 << 10})
	h, err := s.Head(t.Context(), "ws")
	if err != nil {
		t.Fatal(err)
	}
	if h.Seq < seq || h.Seq > seq+1 || h.Seq < before.Seq {
		t.Fatalf("head is at %d, the child reported %d", h.Seq, seq)
	}
	if h.Seq == seq && h.Commit.String() != digest {
		t.Fatalf("head is %s, the child reported %s", h.Commit, digest)
	}
	if rep := verify(t, s); !rep.OK() || rep.Commits != int64(h.Seq) {
		t.Fatalf("verify at %d: %+v", h.Seq, rep)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return h
}

// childCommitter changes a workspace, snapshots and commits it for ever.
func childCommitter() error {
	dir, work := os.Getenv("DIR"), os.Getenv("WORK")
	ctx, cancel := testContext()
	defer cancel()
	s, err := Open(ctx, dir, Config{MaxPackBytes: 64 << 10, StatCacheFlush: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	d, err := os.Open(work)
	if err != nil {
		return err
	}
	h, err := s.Head(ctx, "ws")
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	for {
		n := h.Seq + 1
		if n%3 != 0 { // every third commit is of an unchanged tree
			name := filepath.Join(work, fmt.Sprintf("f%d", n%17))
			if err := os.WriteFile(name, randomBytes(n, int(n*977%9000)), 0o644); err != nil {
				return err
			}
		}
		res, err := s.Snapshot(ctx, d, SnapshotOptions{CacheKey: "ws"})
		if err != nil {
			return err
		}
		if h, err = s.Commit(ctx, CommitRequest{Head: "ws", Expect: h.Commit, Tree: res.Tree, Source: fmt.Sprint("n", n)}); err != nil {
			return err
		}
		fmt.Println(h.Seq, h.Commit)
	}
}
