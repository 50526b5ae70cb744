package cas

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestReadStored: all records come, in the order of the packs, whether they
// are still buffered, in the open pack or in sealed ones.
func TestReadStored(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{MaxPackBytes: 64 << 10})
	contents := map[Digest][]byte{}
	var digests []Digest
	for i := range uint64(200) {
		content := randomBytes(i, 1+int(i*i)%5000)
		d, err := s.PutBytes(t.Context(), content)
		if err != nil {
			t.Fatal(err)
		}
		contents[d] = content
		digests = append(digests, d)
	}
	absent := DigestOf([]byte("absent"))
	var last loc
	seen := map[Digest]bool{}
	err := s.ReadStored(t.Context(), append(digests, absent), func(rec StoredRecord) error {
		if seen[rec.Digest] {
			t.Errorf("%s comes twice", rec.Digest)
		}
		seen[rec.Digest] = true
		if rec.Digest == absent {
			if !errors.Is(rec.Err, ErrNotFound) {
				t.Errorf("absent: %v", rec.Err)
			}
			return nil
		}
		l, _ := s.index.find(rec.Digest)
		if l.pack < last.pack || l.pack == last.pack && l.off <= last.off {
			t.Errorf("%v comes behind %v", l, last)
		}
		last = l
		h, err := ParseRecordHeader(rec.Record)
		if err != nil {
			return err
		}
		content, err := h.Open(rec.Record[RecordHeaderSize:])
		if err != nil || !bytes.Equal(content, contents[rec.Digest]) {
			t.Errorf("%s: %v", rec.Digest, err)
		}
		if n, ok := s.StoredSize(rec.Digest); !ok || n != int64(len(rec.Record)) {
			t.Errorf("%s: stored size %d, %v; want %d", rec.Digest, n, ok, len(rec.Record))
		}
		return nil
	})
	if err != nil || len(seen) != len(contents)+1 || last.pack < 3 {
		t.Fatalf("%d of %d came, the last from pack %d: %v", len(seen), len(contents)+1, last.pack, err)
	}
}

// TestReadStoredNamesDamage: a record whose bytes changed is ErrCorrupt, and
// its neighbours come all the same.
func TestReadStoredNamesDamage(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	var digests []Digest
	for i := range uint64(3) {
		d, err := s.PutBytes(t.Context(), randomBytes(i, 1000))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, _ := s.index.find(digests[1])
	f, err := os.OpenFile(filepath.Join(dir, "packs", packName(l.pack)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff, 0xff}, l.off+recordHeaderSize+500); err != nil {
		t.Fatal(err)
	}
	bad, good := 0, 0
	err = s.ReadStored(t.Context(), digests, func(rec StoredRecord) error {
		switch {
		case rec.Err == nil:
			good++
		case errors.Is(rec.Err, ErrCorrupt) && rec.Digest == digests[1]:
			bad++
		}
		return nil
	})
	if err != nil || bad != 1 || good != 2 {
		t.Errorf("%d bad, %d good, %v", bad, good, err)
	}
	session, err := s.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.End()
	if _, ok := session.Has(digests[1], KindBlob); ok {
		t.Error("a damaged object counts as there")
	}
}

// copyRecord puts an object of one store into another.
func copyRecord(t *testing.T, from *Store, to *Session, d Digest) (fresh bool) {
	t.Helper()
	err := from.ReadStored(t.Context(), []Digest{d}, func(rec StoredRecord) error {
		h, err := ParseRecordHeader(rec.Record)
		if err == nil {
			fresh, err = to.PutRecord(t.Context(), KindBlob, h, rec.Record[RecordHeaderSize:])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fresh
}

// TestSessionKeepsWhatItFound and what it put, until it ends.
func TestSessionKeepsWhatItFound(t *testing.T) {
	a, b := openStore(t, t.TempDir(), Config{}), openStore(t, t.TempDir(), Config{})
	found, err := b.PutBytes(t.Context(), []byte("found"))
	if err != nil {
		t.Fatal(err)
	}
	put, err := a.PutBytes(t.Context(), []byte("put"))
	if err != nil {
		t.Fatal(err)
	}
	session, err := b.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := session.Missing([]Ref{{Kind: KindBlob, Digest: found, Size: 5}, {Kind: KindBlob, Digest: put, Size: 3}}); err != nil || len(missing) != 1 || missing[0].Digest != put {
		t.Fatalf("missing %v, %v", missing, err)
	}
	if _, err := session.Missing([]Ref{{Kind: KindBlob, Digest: found, Size: 6}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("another size: %v", err)
	}
	for _, want := range []bool{true, false} {
		if fresh := copyRecord(t, a, session, put); fresh != want {
			t.Errorf("put is new: %v, want %v", fresh, want)
		}
	}
	has := func() (n int) {
		for _, d := range []Digest{found, put} {
			if ok, _ := b.Has(t.Context(), d); ok {
				n++
			}
		}
		return n
	}
	for range 3 {
		if _, err := b.GC(t.Context(), GCOptions{NoGrace: true}); err != nil {
			t.Fatal(err)
		}
		if has() != 2 {
			t.Fatal("a collection removed what the session relies on")
		}
	}
	session.End()
	session.End()
	for range 3 {
		if _, err := b.GC(t.Context(), GCOptions{NoGrace: true}); err != nil {
			t.Fatal(err)
		}
	}
	if has() != 0 {
		t.Error("what nobody needs stays after the session")
	}
}

func TestReferences(t *testing.T) {
	dir := &Directory{Entries: []Entry{
		{Name: "big", Type: TypeFile, Size: 5 << 20, Digest: DigestOf([]byte("b")), Chunks: DigestOf([]byte("l"))},
		{Name: "dir", Type: TypeDir, Digest: DigestOf([]byte("d"))},
		{Name: "empty", Type: TypeFile, Digest: DigestOf(nil)},
		{Name: "file", Type: TypeFile, Size: 1, Digest: DigestOf([]byte("f"))},
		{Name: "link", Type: TypeSymlink, Target: "x"},
	}}
	content, err := dir.marshal()
	if err != nil {
		t.Fatal(err)
	}
	refs, err := References(KindDirectory, content)
	want := []Ref{
		{Kind: KindChunkList, Digest: DigestOf([]byte("l")), Size: 5 << 20, File: DigestOf([]byte("b"))},
		{Kind: KindDirectory, Digest: DigestOf([]byte("d")), Size: -1, Name: "dir"},
		{Kind: KindBlob, Digest: DigestOf([]byte("f")), Size: 1},
	}
	if err != nil || len(refs) != len(want) {
		t.Fatalf("%v, %v", refs, err)
	}
	for i := range want {
		if refs[i] != want[i] {
			t.Errorf("%v, want %v", refs[i], want[i])
		}
	}
	for _, kind := range []Kind{KindBlob, KindChunkList, KindCommit} {
		if _, err := References(kind, content); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrCorrupt) {
			t.Errorf("as kind %d: %v", kind, err)
		}
	}
}

// TestAskingForAFileAsATree: whoever takes a file's digest for a tree's is
// told so, and keeps no collection from working.
func TestAskingForAFileAsATree(t *testing.T) {
	base := t.TempDir()
	s := openStore(t, filepath.Join(base, "store"), Config{})
	for _, content := range []string{"just a file", "SKD\x01", "SKD\x02 of a later version"} {
		d, err := s.PutBytes(t.Context(), []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		x, err := s.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := x.Complete(t.Context(), KindDirectory, d); ok || err != nil {
			t.Errorf("a file is a complete tree: %v, %v", ok, err)
		}
		x.End()
		dir := &Directory{Entries: []Entry{{Name: "sub", Type: TypeDir, Digest: d}}}
		_, err1 := s.Restore(t.Context(), d, filepath.Join(base, "out"), RestoreOptions{UID: -1, GID: -1})
		_, err2 := s.Commit(t.Context(), CommitRequest{Head: "h", Tree: d})
		_, err3 := s.PutDirectory(t.Context(), dir)
		for i, err := range []error{err1, err2, err3, s.Pin(t.Context(), "p", d)} {
			if err == nil {
				t.Errorf("%q: step %d took a file for a tree", content, i)
			}
		}
		collect(t, s, GCOptions{NoGrace: true})
		collect(t, s, GCOptions{NoGrace: true})
	}
}

// TestBytesOfATreeInAFile: a file that holds what was a directory object keeps
// these bytes from being collected, and nothing that they name. No snapshot,
// commit, pin or directory takes them for the tree.
func TestBytesOfATreeInAFile(t *testing.T) {
	base := t.TempDir()
	s := openStore(t, filepath.Join(base, "store"), Config{})
	work, other := filepath.Join(base, "work"), filepath.Join(base, "other")
	writeFile(t, filepath.Join(work, "sub/f"), "precious")
	tree := snapshot(t, s, work, "key").Tree
	raw, err := s.GetBytes(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(other, "copy"), string(raw))
	commit(t, s, "other", snapshot(t, s, other, "").Tree, "")
	for range 4 {
		collect(t, s, GCOptions{})
	}
	if has, err := s.Has(t.Context(), tree); !has || err != nil {
		t.Fatalf("the file's bytes: %v, %v", has, err)
	}
	dir := &Directory{Entries: []Entry{{Name: "sub", Type: TypeDir, Digest: tree}}}
	_, err1 := s.Commit(t.Context(), CommitRequest{Head: "work", Tree: tree})
	_, err2 := s.PutDirectory(t.Context(), dir)
	for i, err := range []error{err1, err2, s.Pin(t.Context(), "p", tree), s.Lease(t.Context(), "l", tree, 1)} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("step %d relies on a tree that was collected: %v", i, err)
		}
	}
	got := snapshot(t, s, work, "key")
	commit(t, s, "work", got.Tree, "")
	if rep := verify(t, s); got.Tree != tree || got.NewFiles != 1 || !rep.OK() {
		t.Errorf("snapshot %+v\nverify %+v", got, rep)
	}
}

// TestSessionInAnEmptyStore: what a session writes that began before there was
// any pack stays like that of any other, alone or beside a later one.
func TestSessionInAnEmptyStore(t *testing.T) {
	for others := range 4 {
		s := openStore(t, t.TempDir(), Config{})
		x, err := s.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer x.End()
		d, err := s.PutBytes(t.Context(), []byte("written in the session"))
		if err != nil {
			t.Fatal(err)
		}
		for range others {
			y, err := s.NewSession(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer y.End()
		}
		for range 3 {
			collect(t, s, GCOptions{NoGrace: true})
		}
		if has, err := s.Has(t.Context(), d); !has || err != nil {
			t.Errorf("beside %d other sessions: %v, %v", others, has, err)
		}
	}
}
