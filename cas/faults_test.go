package cas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var errCrash = errors.New("crashed here")

// crash ends a store's life at its n-th step on the disk: the directory as it
// is then is copied, and nothing succeeds any more.
type crash struct {
	t     *testing.T
	dir   string
	n     int
	steps int
	step  string // the one it crashed at
	image string
}

func (c *crash) at(step string) error {
	c.steps++
	if c.image == "" && c.steps >= c.n {
		c.step, c.image = step, copyStore(c.t, c.dir)
	}
	if c.image != "" {
		return fmt.Errorf("%s: %w", step, errCrash)
	}
	return nil
}

// crashRun works on a store until it ends or crashes, and returns the head as
// it was acknowledged last.
func crashRun(t *testing.T, c *crash) (acked Head, err error) {
	s, err := Open(t.Context(), c.dir, Config{MaxPackBytes: 8 << 10, faults: c.at, mergeByHand: true})
	if err != nil {
		return acked, err
	}
	defer func() { _ = s.Close() }()
	work := t.TempDir()
	for i := range uint64(6) {
		writeFile(t, filepath.Join(work, fmt.Sprint("f", i%3)), string(randomBytes(i%4, 3000)))
		writeFile(t, filepath.Join(work, "sub/same"), "the same in all")
		if i == 2 {
			writeFile(t, filepath.Join(work, "large"), string(randomBytes(9, 300_000)))
		}
		if i == 4 {
			if err := os.Remove(filepath.Join(work, "large")); err != nil {
				return acked, err
			}
		}
		res, err := snapshotPath(s, work, "")
		if err != nil {
			return acked, err
		}
		h, err := s.Commit(t.Context(), CommitRequest{Head: "ws", Expect: acked.Commit, Tree: res.Tree, Source: fmt.Sprint(i)})
		if err != nil {
			return acked, err
		}
		acked = h
		if err := s.mergeIndex(goOn); err != nil {
			return acked, err
		}
		if i >= 2 {
			s.touches = newTouches()
			if _, err := s.GC(t.Context(), GCOptions{Keep: keepOne, NoGrace: i != 3}); err != nil {
				return acked, err
			}
		}
		if i == 3 {
			if err := s.Rebuild(t.Context()); err != nil {
				return acked, err
			}
		}
	}
	return acked, nil
}

// TestCrashAtEveryStep crashes a store at each of its steps on the disk, once
// with all that was written kept, once with what was not synced lost: what it
// acknowledged is there, what is there is whole, and it works on.
func TestCrashAtEveryStep(t *testing.T) {
	steps := make(map[string]int)
	for n := 1; ; n++ {
		c := &crash{t: t, dir: t.TempDir(), n: n}
		acked, err := crashRun(t, c)
		if err == nil {
			t.Logf("%d steps: %v", n-1, steps)
			break
		}
		if !errors.Is(err, errCrash) || n > 2000 {
			t.Fatalf("step %d: %v", n, err)
		}
		steps[c.step]++
		for _, torn := range []bool{false, true} {
			image := c.image
			if torn {
				image = copyStore(t, c.image)
				loseUnsynced(t, image)
			}
			checkCrashed(t, image, acked, fmt.Sprintf("step %d, %q, torn %v", n, c.step, torn))
		}
	}
	for _, step := range []string{"create pack", "write pack", "fsync pack", "fsync full pack", "write index run", "index run written",
		"commit meta.db", "meta.db committed", "fsync index run", "rename index run",
		"fsync index directory", "merge index runs", "remove merged run", "merged runs removed", "remove old run", "thin index run", "index thinned", "move pack to trash", "remove index run", "free pack", "large payload written"} {
		if steps[step] == 0 {
			t.Errorf("never crashed at %q", step)
		}
	}
}

// loseUnsynced cuts the open pack where meta.db says that it is durable.
func loseUnsynced(t *testing.T, dir string) {
	t.Helper()
	seqs, err := listPacks(filepath.Join(dir, "packs"))
	if err != nil || len(seqs) == 0 {
		return
	}
	last := seqs[len(seqs)-1]
	runs, err := filepath.Glob(filepath.Join(dir, "index", "*.idx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range runs {
		if _, top, ok := parseIndexName(filepath.Base(run)); ok && top >= last {
			return
		}
	}
	m, err := openMeta(filepath.Join(dir, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	end, err := m.durableEnd(last)
	if err = errors.Join(err, m.close()); err != nil {
		t.Fatal(err)
	}
	top := max(end, packHeaderSize)
	if info, err := os.Stat(onlyPack(t, dir, last)); err == nil && info.Size() > top {
		if err := os.Truncate(onlyPack(t, dir, last), top); err != nil {
			t.Fatal(err)
		}
	}
}

func checkCrashed(t *testing.T, dir string, acked Head, where string) {
	t.Helper()
	s, err := Open(t.Context(), dir, Config{MaxPackBytes: 8 << 10})
	if err != nil {
		t.Fatalf("%s: open: %v", where, err)
	}
	h, err := s.Head(t.Context(), "ws")
	if acked.Seq > 0 && (err != nil || h.Seq < acked.Seq || h.Seq == acked.Seq && h != acked) {
		t.Errorf("%s: head %+v, %v; acknowledged %+v", where, h, err, acked)
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("%s: verify %+v", where, rep)
	}
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "f0"), string(randomBytes(1, 3000)))
	writeFile(t, filepath.Join(work, "sub/same"), "the same in all")
	commit(t, s, "ws", snapshot(t, s, work, "").Tree, "after the crash")
	collect(t, s, GCOptions{Keep: keepOne, NoGrace: true})
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("%s: verify after going on %+v", where, rep)
	}
	if err := s.Close(); err != nil {
		t.Errorf("%s: close: %v", where, err)
	}
}
