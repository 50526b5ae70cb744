package cas

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRacyEdit (F25): an edit that keeps size and mtime, made at once after
// the snapshot, is never missed; and a file at rest is not read again.
func TestRacyEdit(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	path := filepath.Join(work, "f")
	for i := range 200 {
		content := fmt.Sprintf("content %04d", i)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
		res := snapshot(t, s, work, "k")
		if got := readCommitted(t, s, res.Tree, "f"); string(got) != content {
			t.Fatalf("round %d: snapshot holds %q, the file %q", i, got, content)
		}
	}
	waitUntilSettled(t, s, work)
	if res := snapshot(t, s, work, "k"); res.NewFiles != 0 {
		t.Errorf("%d files at rest were read", res.NewFiles)
	}
}

// waitUntilSettled snapshots until the file system's clock has moved past the
// last change.
func waitUntilSettled(t *testing.T, s *Store, work string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if res := snapshot(t, s, work, "k"); res.NewFiles == 0 {
			return
		}
	}
	t.Fatal("files at rest are read again and again")
}

// TestTouchedFileSettles (F25): neither a touch nor a time far in the future
// makes a file be read for ever, and a touch alone is no change.
func TestTouchedFileSettles(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	path := filepath.Join(work, "f")
	writeFile(t, path, "content")
	before := snapshot(t, s, work, "k")
	future := time.Now().AddDate(50, 0, 0)
	if err := os.Chtimes(path, future, future); err != nil {
		t.Fatal(err)
	}
	after := snapshot(t, s, work, "k")
	if after.Tree == before.Tree {
		t.Error("the new time is not in the tree")
	}
	err := s.Diff(t.Context(), before.Tree, after.Tree, func(c Change) error { return fmt.Errorf("change %+v", c) })
	if err != nil {
		t.Error(err)
	}
	waitUntilSettled(t, s, work)
}

// TestStatCacheSurvivesReopen: after a restart nothing is read again; a
// damaged cache, or one that names objects the store lost, is ignored.
func TestStatCacheSurvivesReopen(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(work, "sub/f"), "content")
	s := openStore(t, dir, Config{})
	waitUntilSettled(t, s, work)
	want := snapshot(t, s, work, "k")
	commit(t, s, "ws", want.Tree, "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	if res := snapshot(t, s, work, "k"); res.NewFiles != 0 || res.Tree != want.Tree {
		t.Errorf("after reopening: %+v", res)
	}
	cache := s.caches.path("k")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	flipBit(t, cache, 60)
	s = openStore(t, dir, Config{})
	if res := snapshot(t, s, work, "k"); res.NewFiles != 1 || res.Tree != want.Tree {
		t.Errorf("with a damaged cache: %+v", res)
	}
}

func TestStatCacheOfLostObjects(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	tree := snapshot(t, s, t.TempDir(), "").Tree
	commit(t, s, "ws", tree, "x")
	durable := s.writer.end().off
	writeFile(t, filepath.Join(work, "f"), "lost with the tail")
	waitUntilSettled(t, s, work)
	s.caches.flush()
	crashed := copyStore(t, dir)
	if err := os.Truncate(onlyPack(t, crashed, 1), durable); err != nil {
		t.Fatal(err)
	}
	s2 := openStore(t, crashed, Config{})
	res := snapshot(t, s2, work, "k")
	commit(t, s2, "ws2", res.Tree, "y")
	if got := readCommitted(t, s2, res.Tree, "f"); string(got) != "lost with the tail" {
		t.Errorf("content %q", got)
	}
	if rep := verify(t, s2); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
}
