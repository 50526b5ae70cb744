package cas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func collect(t testing.TB, s *Store, o GCOptions) GCReport {
	t.Helper()
	rep, err := s.GC(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func keepOne(string) int { return 1 }

// TestGCFreesAndKeeps: what heads, pins and leases need stays, the rest goes,
// and both are still so after a reopening and a rebuild of every index.
func TestGCFreesAndKeeps(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{MaxPackBytes: 64 << 10})
	var trees []Digest
	for i := range 10 {
		writeFile(t, filepath.Join(work, "f"), string(randomBytes(uint64(i), 30_000)))
		writeFile(t, filepath.Join(work, "sub/same"), "the same in all")
		tree := snapshot(t, s, work, "k").Tree
		commit(t, s, "ws", tree, fmt.Sprint(i))
		trees = append(trees, tree)
	}
	if err := errors.Join(s.Pin(t.Context(), "pin", trees[2]), s.Lease(t.Context(), "lease", trees[4], 2)); err != nil {
		t.Fatal(err)
	}
	before, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rep := collect(t, s, GCOptions{}); rep.Removed != 0 {
		t.Errorf("with the whole history kept, %+v", rep)
	}
	s.touches = newTouches() // as after a reopening
	rep := collect(t, s, GCOptions{Keep: keepOne, NoGrace: true})
	if rep.PacksRemoved == 0 || rep.Removed == 0 {
		t.Fatalf("collected %+v", rep)
	}
	check := func(s *Store, want ...int) {
		t.Helper()
		for i, tree := range trees {
			kept := false
			for _, w := range want {
				kept = kept || i == w
			}
			if has, err := s.Has(t.Context(), tree); err != nil || has != kept {
				t.Errorf("tree %d is there: %v, %v", i, has, err)
			}
			if kept && string(readCommitted(t, s, tree, "f")) != string(randomBytes(uint64(i), 30_000)) {
				t.Errorf("tree %d differs", i)
			}
		}
		if rep := verify(t, s); !rep.OK() {
			t.Errorf("verify: %+v", rep)
		}
	}
	check(s, 2, 4, 9)
	h, err := s.Head(t.Context(), "ws")
	if err != nil {
		t.Fatal(err)
	}
	if log, err := s.Log(t.Context(), h.Commit, 0); err != nil || len(log) != 1 {
		t.Errorf("history %+v, %v", log, err)
	}
	s.touches = newTouches()
	after, err := s.Stats(t.Context())
	if err != nil || after.PackBytes >= before.PackBytes*3/4 {
		t.Errorf("bytes before %d, after %d, %v", before.PackBytes, after.PackBytes, err)
	}
	s.touches = newTouches()
	collect(t, s, GCOptions{Keep: keepOne, NoGrace: true}) // the lease has ended
	check(s, 2, 9)
	if err := s.Rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(s, 2, 9)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{MaxPackBytes: 64 << 10})
	check(s, 2, 9)
	if err := s.Unpin(t.Context(), "pin"); err != nil {
		t.Fatal(err)
	}
	collect(t, s, GCOptions{Keep: keepOne, NoGrace: true})
	check(s, 9)
}

// TestGCGrace: what is not committed yet survives a collection, and what is
// removed lies in the trash until the next.
func TestGCGrace(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	d, err := s.PutBytes(t.Context(), []byte("not committed yet"))
	if err != nil {
		t.Fatal(err)
	}
	has := func() bool {
		ok, err := s.Has(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if collect(t, s, GCOptions{}); !has() {
		t.Fatal("gone at the first collection")
	}
	if _, err := s.PutBytes(t.Context(), []byte("not committed yet")); err != nil { // a touch
		t.Fatal(err)
	}
	for n := range 2 {
		if collect(t, s, GCOptions{}); !has() {
			t.Fatalf("gone at collection %d after a touch", n+1)
		}
	}
	if collect(t, s, GCOptions{}); has() {
		t.Fatal("never collected")
	}
	trash := filepath.Join(dir, "trash", packName(1))
	if _, err := os.Stat(trash); err != nil {
		t.Errorf("not in the trash: %v", err)
	}
	collect(t, s, GCOptions{})
	if _, err := os.Stat(trash); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still in the trash: %v", err)
	}
}

// TestGCDropsStatCaches: a stat cache whose tree was collected is not trusted.
func TestGCDropsStatCaches(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(work, "sub/f"), "content")
	s := openStore(t, dir, Config{})
	waitUntilSettled(t, s, work)
	s.caches.flush()
	if err := s.Close(); err != nil { // and with it all touches
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	if rep := collect(t, s, GCOptions{NoGrace: true}); rep.StatCachesDropped != 1 || rep.Kept != 0 {
		t.Errorf("collected %+v", rep)
	}
	res := snapshot(t, s, work, "k")
	commit(t, s, "ws", res.Tree, "x")
	if rep := verify(t, s); res.NewFiles != 1 || !rep.OK() {
		t.Errorf("snapshot %+v, verify %+v", res, rep)
	}
}

// TestGCSameBytesTwice: a file that holds what is also a directory's object
// does not hide what the directory needs.
func TestGCSameBytesTwice(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "z/inner"), "needed")
	x, err := s.Lookup(t.Context(), snapshot(t, s, work, "").Tree, "z")
	if err != nil {
		t.Fatal(err)
	}
	object, err := s.GetBytes(t.Context(), x.Digest)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(work, "a"), string(object))
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	s.touches = newTouches()
	collect(t, s, GCOptions{NoGrace: true})
	if got := readCommitted(t, s, h.Tree, "z/inner"); string(got) != "needed" {
		t.Errorf("content %q", got)
	}
}

// TestGCRefusesDamage: when a needed directory cannot be read, nothing goes.
func TestGCRefusesDamage(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "sub/f"), "content")
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	l, _ := s.index.find(h.Tree)
	flipBit(t, onlyPack(t, dir, l.pack), l.off+recordHeaderSize+1)
	s.touches = newTouches()
	if rep, err := s.GC(t.Context(), GCOptions{NoGrace: true}); !errors.Is(err, ErrCorrupt) || rep.Removed != 0 {
		t.Errorf("collection: %+v, %v", rep, err)
	}
	if has, _ := s.Has(t.Context(), DigestOf([]byte("content"))); !has {
		t.Error("the file is gone")
	}
}

// TestGCProperties: after any series of commits, deletions, pins, collections
// and reopenings, everything that a head or pin names is whole.
func TestGCProperties(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir := rapidDir(rt, base)
		defer os.RemoveAll(dir)
		work := filepath.Join(dir, "work")
		if err := os.Mkdir(work, 0o755); err != nil {
			rt.Fatal(err)
		}
		ctx, cancel := testContext()
		defer cancel()
		cfg := Config{MaxPackBytes: 4096}
		s, err := Open(ctx, filepath.Join(dir, "store"), cfg)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			head := rapid.SampledFrom([]string{"h1", "h2", "h3"}).Draw(rt, "head")
			h, headErr := s.Head(ctx, head)
			err = nil
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0, 1, 2:
				mutate(rt, work)
				var res SnapshotResult
				if res, err = snapshotPath(s, work, head); err == nil {
					_, err = s.Commit(ctx, CommitRequest{Head: head, Expect: h.Commit, Epoch: h.Epoch, Tree: res.Tree})
				}
				var fenced *FencedError
				if errors.As(err, &fenced) {
					err = nil
				}
			case 3:
				if headErr == nil {
					err = s.DeleteHead(ctx, head)
				}
			case 4:
				_, err = s.GC(ctx, GCOptions{NoGrace: rapid.Bool().Draw(rt, "no grace"),
					Keep: func(string) int { return rapid.IntRange(0, 2).Draw(rt, "keep") }})
			case 5:
				if err = s.Close(); err == nil {
					s, err = Open(ctx, filepath.Join(dir, "store"), cfg)
				}
			case 6:
				if headErr == nil {
					err = s.Pin(ctx, "pin", h.Tree)
				} else {
					err = s.Rebuild(ctx)
				}
			}
			if err != nil {
				rt.Fatal(err)
			}
			rep, err := s.Verify(ctx, VerifyOptions{Reachable: true})
			if err != nil || !rep.OK() {
				rt.Fatalf("verify: %+v, %v", rep, err)
			}
		}
	})
}

// TestGCLongSession: a snapshot that lasted through several collections puts
// its root and ends just after a further one has sealed the packs. What the
// root names was touched generations ago and must stay all the same.
func TestGCLongSession(t *testing.T) {
	var hook func()
	s := openStore(t, t.TempDir(), Config{faults: func(step string) error {
		if f := hook; f != nil && step == "commit meta.db" {
			hook = nil
			f()
		}
		return nil
	}})
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "sub/f"), "content")
	sub, err := s.Lookup(t.Context(), snapshot(t, s, work, "").Tree, "sub")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.sealOpenPack(); err != nil {
		t.Fatal(err)
	}
	s.touches = newTouches()
	end := s.session()
	if !s.hit(sub.Digest, roleDir) {
		t.Fatal("the directory is not there")
	}
	for range 3 { // collections go by
		s.touches.watch()
		s.touches.unwatch()
	}
	root := &Directory{Root: true, Mode: 0o755, MTime: time.Unix(1, 0), Entries: []Entry{sub}}
	content, err := root.marshal()
	if err != nil {
		t.Fatal(err)
	}
	hook = func() {
		defer end()
		if _, err := s.put(KindDirectory, DigestOf(content), content); err != nil {
			t.Error(err)
		}
		s.hit(DigestOf(content), roleDir)
	}
	collect(t, s, GCOptions{NoGrace: true})
	if got := readCommitted(t, s, DigestOf(content), "sub/f"); string(got) != "content" {
		t.Errorf("content %q", got)
	}
}
