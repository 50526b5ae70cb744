package cas

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
)

// metaStore makes a store whose meta.db has several pages, branch pages among
// them, and closes it.
func metaStore(t *testing.T) (dir string, heads []Head) {
	t.Helper()
	dir = t.TempDir()
	s := openStore(t, dir, Config{})
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "f"), "content")
	tree := snapshot(t, s, work, "").Tree
	for i := range 120 {
		commit(t, s, fmt.Sprintf("agent%02d/workspace%03d", i%7, i), tree, fmt.Sprint("source ", i))
	}
	for i := range 20 {
		if err := errors.Join(s.Pin(t.Context(), fmt.Sprint("pin", i), tree), s.Fence(t.Context(), fmt.Sprint("fenced", i), 9)); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, s, "agent00/workspace000", tree, "the last one")
	var err error
	if heads, err = s.Heads(t.Context()); err != nil || len(heads) != 120 {
		t.Fatalf("%d heads, %v", len(heads), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, heads
}

// TestFlipMetaDB flips bytes of meta.db, on every page: either opening names
// the damage, or the byte did not matter and every head reads as it was.
func TestFlipMetaDB(t *testing.T) {
	dir, heads := metaStore(t)
	path := filepath.Join(dir, "meta.db")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	step := 29
	if testing.Short() {
		step = 101
	}
	named, harmless := 0, 0
	try := func(at int, flip byte) {
		bad := bytes.Clone(good)
		bad[at] ^= flip
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := openMeta(path)
		var damage *MetaError
		switch {
		case errors.As(err, &damage):
			named++
			return
		case err != nil:
			t.Fatalf("byte %d: %v", at, err)
		}
		harmless++
		s := &Store{meta: m}
		now, err := s.heads()
		if err = errors.Join(err, m.check(), m.close()); err != nil || !slices.Equal(now, heads) {
			t.Fatalf("byte %d ^ %#x: %d heads, %v", at, flip, len(now), err)
		}
	}
	used := usedPages(t, path)
	if len(used) < 6 {
		t.Fatalf("used pages %v", used)
	}
	for _, page := range used { // each byte of the headers and first elements
		for at := range 120 {
			for _, flip := range []byte{1 << (at % 8), 1 << ((at + 3) % 8), 0xff} {
				try(page*os.Getpagesize()+at, flip)
			}
		}
	}
	for at := 0; at < len(good); at += step {
		try(at, byte(1<<(at%8)))
		try(at, 0xff)
	}
	t.Logf("%d flips were named, %d did not matter", named, harmless)
	if named < 1000 || harmless == 0 {
		t.Errorf("%d flips were named, %d did not matter", named, harmless)
	}
}

func usedPages(t *testing.T, path string) []int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m := newMetaFile(f, info.Size())
	root, err := m.readRoots()
	if err == nil {
		err = m.buckets(root.root, func(string) {}, func(string, []byte, []byte) error { return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	used := []int{0, 1}
	for id := range maps.Keys(m.seen) {
		used = append(used, int(id))
	}
	return used
}

// indexInUse finds text in a page that is in use: older ones may have it too.
func indexInUse(t *testing.T, path string, content []byte, text string) int {
	t.Helper()
	for _, page := range usedPages(t, path) {
		at := page * os.Getpagesize()
		if i := bytes.Index(content[at:min(at+os.Getpagesize(), len(content))], []byte(text)); i >= 0 {
			return at + i
		}
	}
	t.Fatalf("%q is in no page", text)
	return 0
}

// TestDamagedMetaDB: a store whose meta.db is cut, emptied, stale or damaged
// names that, and recovering brings heads, pins and fences back.
func TestDamagedMetaDB(t *testing.T) {
	dir, heads := metaStore(t)
	good, err := os.ReadFile(filepath.Join(dir, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	at := indexInUse(t, filepath.Join(dir, "meta.db"), good, "agent03/workspace010")
	tests := []struct {
		name     string
		damage   func(b []byte) []byte
		salvaged bool // fences too
	}{
		{"a head", func(b []byte) []byte { b[at+25] ^= 1; return b }, true},
		{"the newer meta page", func(b []byte) []byte { b[newerMeta(b)*os.Getpagesize()+40] ^= 1; return b }, true},
		{"cut", func(b []byte) []byte { return b[:len(b)/2] }, false},
		{"cut within the meta pages", func(b []byte) []byte { return b[:50] }, false},
		{"empty", func([]byte) []byte { return nil }, false},
		{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }, false},
		{"missing", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := copyStore(t, dir)
			path := filepath.Join(image, "meta.db")
			err := os.Remove(path)
			if tt.damage != nil {
				err = os.WriteFile(path, tt.damage(bytes.Clone(good)), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), image, Config{})
			if !errors.Is(err, ErrCorrupt) && (tt.damage != nil || !errors.Is(err, ErrMetaLost)) {
				t.Fatalf("open: %v", err)
			}
			s := openStore(t, image, Config{RecoverMeta: true})
			if now, err := s.Heads(t.Context()); err != nil || !slices.Equal(now, heads) {
				t.Fatalf("recovered %d heads, %v", len(now), err)
			}
			fenced := errors.Is(s.Fence(t.Context(), "fenced3", 8), ErrFenced)
			if pinned := s.Unpin(t.Context(), "pin4") == nil; tt.salvaged && (!fenced || !pinned) {
				t.Errorf("fenced %v, pinned %v", fenced, pinned)
			}
			if rep := verify(t, s); !rep.OK() {
				t.Errorf("verify %+v", rep)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, image, Config{})
			if h, err := s.Head(t.Context(), heads[5].Name); err != nil || h != heads[5] {
				t.Errorf("head %+v, %v", h, err)
			}
		})
	}
}

func newerMeta(b []byte) int {
	m := newMetaFile(bytes.NewReader(b), int64(len(b)))
	root, err := m.readRoots()
	if err != nil {
		return 0
	}
	return int(root.txid % 2)
}

// TestDamageWhileOpen: damage of a file in use is found by Verify and by the
// read that meets it; a file that is cut fails reads and does not end the
// process.
func TestDamageWhileOpen(t *testing.T) {
	dir, heads := metaStore(t)
	path := filepath.Join(dir, "meta.db")
	s := openStore(t, dir, Config{})
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bad int64 = -1
	h := heads[17]
	for at := 0; ; at++ { // of whatever page is in use
		i := bytes.Index(good[at:], []byte(h.Name))
		if i < 0 {
			break
		}
		at += i
		flipBit(t, path, int64(at+len(h.Name)+5))
		bad = int64(at)
	}
	if bad < 0 {
		t.Fatal("the head is not in the file")
	}
	if _, err := s.Head(t.Context(), h.Name); !errors.Is(err, ErrCorrupt) {
		t.Errorf("read of the damaged head: %v", err)
	}
	if _, err := s.Head(t.Context(), heads[90].Name); err != nil {
		t.Errorf("read of another head: %v", err)
	}
	if rep := verify(t, s); rep.OK() || rep.Meta == "" || rep.Records == 0 {
		t.Errorf("verify %+v", rep)
	}
	if err := s.Fence(t.Context(), h.Name, 3); !errors.Is(err, ErrCorrupt) {
		t.Errorf("write on the damaged head: %v", err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Heads(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("read of a cut file: %v", err)
	}
	if _, err := s.GetBytes(t.Context(), DigestOf([]byte("content"))); err != nil {
		t.Errorf("read from a pack: %v", err)
	}
}

// TestRecoverAfterCollection: with meta.db goes the knowledge of what was
// collected. Records that come back without what they name are not relied on,
// and histories end where they were cut.
func TestRecoverAfterCollection(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{MaxPackBytes: 8 << 10})
	big := string(randomBytes(1, 12<<10)) // fills a pack that goes as a whole
	writeFile(t, filepath.Join(work, "sub/big"), big)
	first := snapshot(t, s, work, "").Tree
	writeFile(t, filepath.Join(work, "keep"), "stays in the pack of the first tree")
	commit(t, s, "ws", snapshot(t, s, work, "").Tree, "1")
	if err := os.RemoveAll(filepath.Join(work, "sub")); err != nil {
		t.Fatal(err)
	}
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "2")
	s.touches = newTouches()
	if rep := collect(t, s, GCOptions{Keep: keepOne, NoGrace: true, RewriteBelow: 1}); rep.PacksRemoved != 1 {
		t.Fatalf("collected %+v", rep)
	}
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(dir, "meta.db")), os.RemoveAll(filepath.Join(dir, "index"))); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{MaxPackBytes: 8 << 10, RecoverMeta: true})
	if now, err := s.Head(t.Context(), "ws"); err != nil || now != h {
		t.Fatalf("head %+v, %v", now, err)
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify %+v", rep)
	}
	if _, err := s.Commit(t.Context(), CommitRequest{Head: "new", Tree: first}); !errors.Is(err, ErrNotFound) {
		t.Errorf("commit of a tree of which a part was collected: %v", err)
	}
	writeFile(t, filepath.Join(work, "sub/big"), big)
	h = commit(t, s, "ws", snapshot(t, s, work, "").Tree, "3")
	if got := readCommitted(t, s, h.Tree, "sub/big"); string(got) != big {
		t.Errorf("%d bytes", len(got))
	}
	s.touches = newTouches()
	collect(t, s, GCOptions{Keep: keepOne, NoGrace: true})
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify after collection %+v", rep)
	}
}

// TestRecoveryInterrupted: a recovery that a crash interrupted is gone on with.
func TestRecoveryInterrupted(t *testing.T) {
	dir, heads := metaStore(t)
	flipBit(t, filepath.Join(dir, "meta.db"), int64(os.Getpagesize()+30))
	image := ""
	s := openStore(t, dir, Config{RecoverMeta: true, faults: func(step string) error {
		if step == "commit meta.db" && image == "" {
			image = copyStore(t, dir)
		}
		return nil
	}})
	if err := s.Close(); err != nil || image == "" {
		t.Fatalf("image %q, %v", image, err)
	}
	s = openStore(t, image, Config{})
	if now, err := s.Heads(t.Context()); err != nil || !slices.Equal(now, heads) {
		t.Fatalf("recovered %d heads, %v", len(now), err)
	}
	if err := s.Fence(t.Context(), "fenced3", 8); !errors.Is(err, ErrFenced) {
		t.Errorf("fence %v", err)
	}
}

// TestMetaSums: the buckets' sums are right after every kind of change, and a
// value that another program puts there shows.
func TestMetaSums(t *testing.T) {
	dir, _ := metaStore(t)
	s := openStore(t, dir, Config{})
	err := errors.Join(s.DeleteHead(t.Context(), "agent01/workspace001"), s.Unpin(t.Context(), "pin2"), s.Fence(t.Context(), "fenced3", 20))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.meta.check(); err != nil {
		t.Fatal(err)
	}
	err = s.meta.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketPins).Delete([]byte("pin5")) })
	if err != nil {
		t.Fatal(err)
	}
	var damage *MetaError
	if err := s.meta.check(); !errors.As(err, &damage) || damage.Bucket != "pins" {
		t.Errorf("check: %v", err)
	}
}

// TestUpgradeMeta: a meta.db of version 1, without checksums, gets them.
func TestUpgradeMeta(t *testing.T) {
	dir, heads := metaStore(t)
	path := filepath.Join(dir, "meta.db")
	now, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := bbolt.Open(path+".1", 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = old.Update(func(to *bbolt.Tx) error {
		return now.View(func(from *bbolt.Tx) error {
			var errs []error
			for _, name := range allBuckets {
				b, err := to.CreateBucket(name)
				errs = append(errs, err, from.Bucket(name).ForEach(func(k, v []byte) error {
					return b.Put(bytes.Clone(k), bytes.Clone(v[:len(v)-4]))
				}))
			}
			return errors.Join(append(errs, to.Bucket(bucketMeta).Put([]byte("version"), leBytes(1)))...)
		})
	})
	if err = errors.Join(err, now.Close(), old.Close(), os.Rename(path+".1", path)); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir, Config{})
	if got, err := s.Heads(t.Context()); err != nil || !slices.Equal(got, heads) {
		t.Errorf("%d heads, %v", len(got), err)
	}
	if err := s.Fence(t.Context(), "fenced3", 8); !errors.Is(err, ErrFenced) {
		t.Errorf("fence: %v", err)
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify %+v", rep)
	}
}

// TestRecoverAfterDeletedHead: a head that was deleted and collected, whose
// records still lie in a pack, does not come back to keep collections from
// working.
func TestRecoverAfterDeletedHead(t *testing.T) {
	base := t.TempDir()
	s := openStore(t, filepath.Join(base, "store"), Config{})
	for i, head := range []string{"gone", "stays"} {
		work := filepath.Join(base, head)
		writeFile(t, filepath.Join(work, "sub/f"), string(randomBytes(uint64(i), 5000)))
		commit(t, s, head, snapshot(t, s, work, "").Tree, "")
	}
	if err := errors.Join(s.DeleteHead(t.Context(), "gone"), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.dir, Config{})
	collect(t, s, GCOptions{NoGrace: true, RewriteBelow: 1})
	if err := errors.Join(s.Close(), os.Remove(s.metaPath())); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, s.dir, Config{RecoverMeta: true})
	if heads, err := s.Heads(t.Context()); err != nil || len(heads) != 1 || heads[0].Name != "stays" {
		t.Errorf("heads %+v, %v", heads, err)
	}
	if rep := verify(t, s); len(rep.Missing)+len(rep.Damaged) != 0 {
		t.Errorf("verify: %+v", rep)
	}
	collect(t, s, GCOptions{NoGrace: true})
}
