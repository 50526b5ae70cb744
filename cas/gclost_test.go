package cas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lostPackStore is a store of three commits, each in a pack of its own. The
// directory s2, which all but the first have, lies in the second pack, its file
// in the first; the second pack was moved to keep and every index made anew.
func lostPackStore(t *testing.T) (dir, keep string, s *Store, h Head) {
	t.Helper()
	dir, keep = t.TempDir(), filepath.Join(t.TempDir(), "keep")
	work := t.TempDir()
	s = openStore(t, dir, Config{})
	content := string(randomBytes(7, 5000))
	writeFile(t, filepath.Join(work, "1"), content)
	for i := range 3 {
		switch i {
		case 1:
			must(t, errors.Join(os.Mkdir(filepath.Join(work, "s2"), 0o755), os.Rename(filepath.Join(work, "1"), filepath.Join(work, "s2/only"))))
		case 2:
			writeFile(t, filepath.Join(work, "n"), "new")
		}
		h = commit(t, s, "ws", snapshot(t, s, work, "").Tree, fmt.Sprint(i))
		collect(t, s, GCOptions{NoGrace: true})
	}
	must(t, s.Close())
	must(t, os.Rename(onlyPack(t, dir, 2), keep))
	s = openStore(t, dir, Config{})
	must(t, s.Rebuild(t.Context()))
	return dir, keep, s, h
}

// TestGCRefusesLostPack: what a lost pack had is not taken for naming nothing.
// The collection names it, and the pack put back makes all whole.
func TestGCRefusesLostPack(t *testing.T) {
	dir, keep, s, h := lostPackStore(t)
	for _, o := range []GCOptions{{NoGrace: true, Keep: keepOne}, {NoGrace: true}, {Keep: keepOne}} {
		rep, err := s.GC(t.Context(), o)
		var lack *LackError
		if !errors.As(err, &lack) || !errors.Is(err, ErrCorrupt) || rep.Removed != 0 {
			t.Fatalf("collection %+v, %v", rep, err)
		}
		if o.Keep != nil && (lack.By != h.Tree || lack.What != "directory") || o.Keep == nil && lack.By != h.Commit && lack.By != h.Tree {
			t.Errorf("names %+v", lack)
		}
	}
	must(t, s.Close())
	must(t, os.Rename(keep, filepath.Join(dir, "packs", packName(2))))
	s = openStore(t, dir, Config{})
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify %+v", rep)
	}
	collect(t, s, GCOptions{NoGrace: true, Keep: keepOne})
	if got := readCommitted(t, s, h.Tree, "s2/only"); string(got) != string(randomBytes(7, 5000)) {
		t.Errorf("%d bytes", len(got))
	}
}

// TestGCAfterLettingGo: once the head that needs what was lost is deleted,
// collections work again.
func TestGCAfterLettingGo(t *testing.T) {
	_, _, s, _ := lostPackStore(t)
	must(t, s.DeleteHead(t.Context(), "ws"))
	if rep := collect(t, s, GCOptions{NoGrace: true}); rep.Kept != 0 {
		t.Errorf("collected %+v", rep)
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify %+v", rep)
	}
}

// TestGCMissingContent: content that is lacking names nothing. The collection
// goes on and says so.
func TestGCMissingContent(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "a"), "lost")
	commit(t, s, "old", snapshot(t, s, work, "").Tree, "x")
	must(t, s.sealOpenPack())
	writeFile(t, filepath.Join(work, "b"), "kept")
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	must(t, s.DeleteHead(t.Context(), "old"))
	must(t, s.Close())
	must(t, os.Remove(onlyPack(t, dir, 1)))
	s = openStore(t, dir, Config{})
	must(t, s.Rebuild(t.Context()))
	if rep := collect(t, s, GCOptions{NoGrace: true}); rep.Missing != 1 || rep.Kept != 3 {
		t.Errorf("collected %+v", rep)
	}
	if got := readCommitted(t, s, h.Tree, "b"); string(got) != "kept" {
		t.Errorf("content %q", got)
	}
}

// TestGCYoungLack: a tree that nothing keeps and that lacks a directory does not
// keep collections from working, and the rest of it stays whole.
func TestGCYoungLack(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "lost/f"), "in the lost pack")
	snapshot(t, s, work, "")
	must(t, s.sealOpenPack())
	writeFile(t, filepath.Join(work, "kept/sub/g"), "kept")
	tree := snapshot(t, s, work, "").Tree
	kept, err := s.Lookup(t.Context(), tree, "kept")
	must(t, err)
	must(t, s.Close())
	must(t, os.Remove(onlyPack(t, dir, 1)))
	s = openStore(t, dir, Config{})
	must(t, s.Rebuild(t.Context()))
	collect(t, s, GCOptions{})
	if got := readCommitted(t, s, kept.Digest, "sub/g"); string(got) != "kept" {
		t.Errorf("content %q", got)
	}
	if _, err := s.Commit(t.Context(), CommitRequest{Head: "ws", Tree: tree}); !errors.Is(err, ErrNotFound) {
		t.Errorf("committing what is not whole: %v", err)
	}
}

// TestGCLostHistory: a lost commit that a newer one names makes a collection that
// keeps it refuse, and one that keeps fewer commits go on.
func TestGCLostHistory(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	var log []Head
	for i := range 2 {
		writeFile(t, filepath.Join(work, "f"), fmt.Sprint(i))
		log = append(log, commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x"))
		must(t, s.sealOpenPack())
	}
	must(t, s.Close())
	must(t, os.Remove(onlyPack(t, dir, 1)))
	s = openStore(t, dir, Config{})
	must(t, s.Rebuild(t.Context()))
	_, err := s.GC(t.Context(), GCOptions{NoGrace: true})
	var lack *LackError
	if !errors.As(err, &lack) || lack.Digest != log[0].Commit || lack.By != log[1].Commit || !strings.Contains(err.Error(), "gc --keep") {
		t.Errorf("collection: %v", err)
	}
	if s.Sound() {
		t.Error("the store is taken for sound")
	}
	collect(t, s, GCOptions{NoGrace: true, Keep: keepOne})
	collect(t, s, GCOptions{NoGrace: true}) // the history is known to be cut
	if rep := verify(t, s); !rep.OK() || rep.Commits != 1 || !s.Sound() {
		t.Errorf("verify %+v", rep)
	}
}
