package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func restore(t testing.TB, s *Store, tree Digest, dest string, o RestoreOptions) RestoreResult {
	t.Helper()
	o.UID, o.GID = -1, -1
	res, err := s.Restore(t.Context(), tree, dest, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestRestoreSeedsTheCache: a snapshot of what was just restored reads no
// file and has the tree's own digest; and a change made at once afterwards is
// found all the same.
func TestRestoreSeedsTheCache(t *testing.T) {
	base := t.TempDir()
	zoo, out := filepath.Join(base, "zoo"), filepath.Join(base, "out")
	skipped, err := buildZoo(zoo, 200)
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t, filepath.Join(base, "store"), Config{})
	tree := snapshot(t, s, zoo, "").Tree
	restore(t, s, tree, out, RestoreOptions{CacheKey: "out"})
	plain := snapshot(t, s, out, "")
	got := snapshot(t, s, out, "out")
	if got.NewFiles != 0 || got.Tree != plain.Tree || got.TreeStats != plain.TreeStats {
		t.Errorf("snapshot after restore %+v, without cache %+v", got, plain)
	}
	want, err1 := describe(zoo, skipped)
	made, err2 := describe(out, nil)
	if err := errors.Join(err1, err2, compareTrees(want, made)); err != nil {
		t.Error(err)
	}
	for round := range 20 {
		dest := filepath.Join(base, fmt.Sprint("dest", round))
		restore(t, s, tree, dest, RestoreOptions{CacheKey: dest})
		if err := os.WriteFile(filepath.Join(dest, "new\nline and \\ and 'quote'"), []byte("odd NAME"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := readCommitted(t, s, snapshot(t, s, dest, dest).Tree, "new\nline and \\ and 'quote'"); string(got) != "odd NAME" {
			t.Fatalf("round %d: a change after the restore was missed: %q", round, got)
		}
		if err := RemoveTree(dest); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPartialRestore: one directory of a tree, of whose hard-linked files one
// name lies outside of it.
func TestPartialRestore(t *testing.T) {
	base := t.TempDir()
	work, out := filepath.Join(base, "work"), filepath.Join(base, "out")
	writeFile(t, filepath.Join(work, "sub/deep/f"), "content")
	writeFile(t, filepath.Join(work, "sub/x"), "linked")
	if err := os.Link(filepath.Join(work, "sub/x"), filepath.Join(work, "outside")); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, filepath.Join(base, "store"), Config{})
	tree := snapshot(t, s, work, "").Tree
	res := restore(t, s, tree, out, RestoreOptions{Path: "sub", CacheKey: "out"})
	if res.Files != 2 || res.Dirs != 1 || res.Links != 0 {
		t.Errorf("restored %+v", res)
	}
	want, err1 := describe(filepath.Join(work, "sub/deep"), nil)
	got, err2 := describe(filepath.Join(out, "deep"), nil)
	if err := errors.Join(err1, err2, compareTrees(want, got)); err != nil {
		t.Error(err)
	}
	cached, plain := snapshot(t, s, out, "out"), snapshot(t, s, out, "")
	if cached.Tree != plain.Tree || cached.NewFiles != 0 {
		t.Errorf("with the seeded cache %+v, without %+v", cached, plain)
	}
	if _, err := s.Restore(t.Context(), tree, filepath.Join(base, "no"), RestoreOptions{Path: "sub/x"}); !errors.Is(err, ErrNotDir) {
		t.Errorf("a file's path: %v", err)
	}
}

// TestRestoreReplaces: the destination's content is exchanged when asked for,
// kept when not, and kept when the restore fails.
func TestRestoreReplaces(t *testing.T) {
	base := t.TempDir()
	work, dest := filepath.Join(base, "work"), filepath.Join(base, "dest")
	writeFile(t, filepath.Join(work, "a"), "from the tree")
	writeFile(t, filepath.Join(work, "b"), string(randomBytes(4, 3000)))
	writeFile(t, filepath.Join(dest, "mine"), "was here")
	s := openStore(t, filepath.Join(base, "store"), Config{})
	tree := snapshot(t, s, work, "").Tree
	if _, err := s.Restore(t.Context(), tree, dest, RestoreOptions{UID: -1, GID: -1}); !errors.Is(err, ErrExist) {
		t.Errorf("restore over a directory in use: %v", err)
	}
	l, _ := s.index.find(DigestOf(randomBytes(4, 3000)))
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	flipBit(t, onlyPack(t, s.dir, l.pack), l.off+recordHeaderSize)
	if _, err := s.Restore(t.Context(), tree, dest, RestoreOptions{UID: -1, GID: -1, Replace: true}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("restore of a damaged tree: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "mine")); string(b) != "was here" {
		t.Errorf("what was there: %q, %v", b, err)
	}
	flipBit(t, onlyPack(t, s.dir, l.pack), l.off+recordHeaderSize)
	restore(t, s, tree, dest, RestoreOptions{Replace: true})
	if _, err := os.Lstat(filepath.Join(dest, "mine")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old content is still there: %v", err)
	}
	names, err := os.ReadDir(base)
	var left []string
	for _, n := range names {
		left = append(left, n.Name())
	}
	if slices.Sort(left); err != nil || !slices.Equal(left, []string{"dest", "store", "work"}) {
		t.Errorf("beside dest lie %q, %v", left, err)
	}
}

// TestTheStoreItself: neither is the store overwritten by a restore, nor does
// a snapshot take it in.
func TestTheStoreItself(t *testing.T) {
	base := t.TempDir()
	dir, work := filepath.Join(base, "above/store"), filepath.Join(base, "work")
	writeFile(t, filepath.Join(work, "f"), "content")
	s := openStore(t, dir, Config{})
	tree := snapshot(t, s, work, "").Tree
	link := filepath.Join(base, "link")
	if err := os.Symlink("above", link); err != nil {
		t.Fatal(err)
	}
	for _, dest := range []string{dir, filepath.Dir(dir), filepath.Join(dir, "packs"), filepath.Join(dir, "new"), filepath.Join(link, "store")} {
		o := RestoreOptions{UID: -1, GID: -1, Replace: true}
		if _, err := s.Restore(t.Context(), tree, dest, o); !errors.Is(err, ErrInvalid) {
			t.Errorf("restore to %s: %v", dest, err)
		}
	}
	for _, path := range []string{dir, filepath.Dir(dir), base} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Snapshot(t.Context(), f, SnapshotOptions{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("snapshot of %s: %v", path, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []RestoreOptions{{UID: -2, GID: -1}, {UID: -1, GID: 1<<32 - 1}, {UID: 99999999999, GID: -1}} {
		if _, err := s.Restore(t.Context(), tree, filepath.Join(base, "out"), o); !errors.Is(err, ErrInvalid) {
			t.Errorf("restore as %d:%d: %v", o.UID, o.GID, err)
		}
	}
	if rep := verify(t, s); !rep.OK() || rep.Packs != 1 {
		t.Errorf("verify: %+v", rep)
	}
}
