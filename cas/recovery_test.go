package cas

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// copyStore copies a store's directory as a crash would leave it.
func copyStore(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func onlyPack(t testing.TB, dir string, seq uint64) string {
	t.Helper()
	return filepath.Join(dir, "packs", packName(seq))
}

// TestTornTail cuts and damages the end of the open pack at every byte: Open
// succeeds, what was committed is there, and the store works on.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	committed := []byte("committed content")
	d, err := s.PutBytes(t.Context(), committed)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	durable := s.writer.end().off
	tail := []byte("never made durable")
	if _, err := s.PutBytes(t.Context(), tail); err != nil {
		t.Fatal(err)
	}
	if err := s.writer.flush(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(onlyPack(t, dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	end := durable + recordHeaderSize + int64(len(tail))
	try := func(t *testing.T, pack []byte, wantTail bool) {
		crashed := copyStore(t, dir)
		if err := os.WriteFile(onlyPack(t, crashed, 1), pack, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, crashed, Config{})
		if got, err := s.GetBytes(t.Context(), d); err != nil || !bytes.Equal(got, committed) {
			t.Fatalf("committed object: %q, %v", got, err)
		}
		if has, _ := s.Has(t.Context(), DigestOf(tail)); has != wantTail {
			t.Errorf("tail present: %v, want %v", has, wantTail)
		}
		if _, err := s.PutBytes(t.Context(), []byte("after the crash")); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rep := verify(t, s); !rep.OK() {
			t.Errorf("verify: %+v", rep)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for cut := durable; cut <= end; cut += 3 {
		try(t, whole[:cut], cut == end)
	}
	for at := durable; at < end; at += 7 {
		flipped := bytes.Clone(whole)
		flipped[at] ^= 0x10
		try(t, flipped, false)
	}
	try(t, whole, true)
}

// TestDamageBeforeTheDurableEnd: a flipped bit in what was committed is never
// taken for a torn tail: nothing behind it is cut, and it is named.
func TestDamageBeforeTheDurableEnd(t *testing.T) {
	for _, part := range []string{"header", "payload"} {
		t.Run(part, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir, Config{})
			var digests []Digest
			var offs []int64
			for i := range 3 {
				d, err := s.PutBytes(t.Context(), fmt.Appendf(nil, "object number %d", i))
				if err != nil {
					t.Fatal(err)
				}
				l, _ := s.index.find(d)
				digests, offs = append(digests, d), append(offs, l.off)
			}
			if err := s.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			at := offs[1] + 10
			if part == "payload" {
				at = offs[1] + recordHeaderSize + 2
			}
			flipBit(t, onlyPack(t, dir, 1), at)
			s = openStore(t, dir, Config{})
			for _, i := range []int{0, 2} {
				if _, err := s.GetBytes(t.Context(), digests[i]); err != nil {
					t.Errorf("object %d: %v", i, err)
				}
			}
			rep := verify(t, s)
			if len(rep.Damaged) != 1 || rep.Damaged[0].Offset != offs[1] || rep.Damaged[0].Pack != 1 {
				t.Errorf("damaged %+v", rep.Damaged)
			}
			if _, err := s.PutBytes(t.Context(), []byte("more")); err != nil {
				t.Errorf("put after damage: %v", err)
			}
		})
	}
}

func flipBit(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// TestBitFlip flips a bit in each record of a committed tree in turn; the
// read that needs it and Verify both name the object.
func TestBitFlip(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "sub/file"), "some content")
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	type record struct {
		d Digest
		l loc
	}
	var records []record
	for _, e := range s.index.openEntries() {
		records = append(records, record{e.digest, e.loc})
	}
	if len(records) != 4 { // file, sub, root, commit
		t.Fatalf("%d records", len(records))
	}
	for _, rec := range records {
		for _, at := range []int64{rec.l.off + 9, rec.l.off + recordHeaderSize + 1} {
			flipBit(t, onlyPack(t, dir, 1), at)
			_, err := s.GetBytes(t.Context(), rec.d)
			var c *CorruptError
			if !errors.As(err, &c) || c.Digest != rec.d || c.Pack != 1 || c.Offset != rec.l.off {
				t.Errorf("read of damaged %s: %v", rec.d, err)
			}
			rep := verify(t, s)
			if len(rep.Damaged) != 1 || rep.Damaged[0].Digest != rec.d || len(rep.Missing) != 1 || rep.Missing[0].Digest != rec.d || rep.Missing[0].Head != "ws" {
				t.Errorf("verify of damaged %s: %+v", rec.d, rep)
			}
			flipBit(t, onlyPack(t, dir, 1), at)
		}
	}
	if rep := verify(t, s); !rep.OK() || rep.Heads != 1 || rep.Commits != 1 || rep.Reached != 4 {
		t.Errorf("healed: %+v", rep)
	}
	if got := readCommitted(t, s, h.Tree, "sub/file"); string(got) != "some content" {
		t.Errorf("content %q", got)
	}
}

// TestIndexRebuilds: a damaged, missing or stale index run costs a scan.
func TestIndexRebuilds(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{MaxPackBytes: 4096, mergeByHand: true})
	var digests []Digest
	for i := range 40 {
		d, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 500))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	runs, err := filepath.Glob(filepath.Join(dir, "index", "*.idx"))
	if err != nil || len(runs) < 3 {
		t.Fatalf("runs %v, %v", runs, err)
	}
	flipBit(t, runs[0], 1200)
	if err := os.Truncate(runs[1], 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(runs[2]); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{MaxPackBytes: 4096})
	for i, d := range digests {
		if _, err := s.GetBytes(t.Context(), d); err != nil {
			t.Errorf("object %d: %v", i, err)
		}
	}
	if rep := verify(t, s); !rep.OK() || rep.Records != 40 {
		t.Errorf("verify: %+v", rep)
	}
}

// TestRidingCommitSurvives: a commit of which the pack lost the record is put
// back from meta.db.
func TestRidingCommitSurvives(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	tree := snapshot(t, s, t.TempDir(), "").Tree
	commit(t, s, "ws", tree, "first") // syncs the pack
	durable := s.writer.end().off
	rider := commit(t, s, "ws", tree, "second")
	rider2 := commit(t, s, "ws", tree, "third")
	if s.writer.end().off != durable || s.riding.Load() != 2 {
		t.Fatalf("the commits did not ride: end %d, durable %d, riding %d", s.writer.end().off, durable, s.riding.Load())
	}
	crashed := copyStore(t, dir)
	if err := os.Truncate(onlyPack(t, crashed, 1), durable); err != nil {
		t.Fatal(err)
	}
	s2 := openStore(t, crashed, Config{})
	log, err := s2.Log(t.Context(), rider2.Commit, 0)
	if err != nil || len(log) != 3 || log[1].Digest != rider.Commit {
		t.Fatalf("log after the crash: %+v, %v", log, err)
	}
	if err := s2.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pending, err := s2.meta.pendingCommits(); err != nil || len(pending) != 0 {
		t.Errorf("%d commits pending after sync, %v", len(pending), err)
	}
	if rep := verify(t, s2); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
}

// TestDurableEndCoversWhatIsKept: whatever made the objects durable (here the
// end of another process, and the reopening), a head, a pin or a Sync puts the
// durable end behind them, so that a bit flip is not taken for a torn tail.
func TestDurableEndCoversWhatIsKept(t *testing.T) {
	work := t.TempDir()
	for i := range 20 {
		writeFile(t, filepath.Join(work, fmt.Sprint(i)), string(randomBytes(uint64(i), 1000)))
	}
	for how, keep := range map[string]func(s *Store, tree Digest) error{
		"commit": func(s *Store, tree Digest) error {
			_, err := s.Commit(t.Context(), CommitRequest{Head: "h", Tree: tree})
			return err
		},
		"pin":   func(s *Store, tree Digest) error { return s.Pin(t.Context(), "p", tree) },
		"lease": func(s *Store, tree Digest) error { return s.Lease(t.Context(), "l", tree, 9) },
		"sync":  func(s *Store, _ Digest) error { return s.Sync(t.Context()) },
		"recovered": func(s *Store, tree Digest) error {
			_, err := s.Commit(t.Context(), CommitRequest{Head: "h", Tree: tree})
			if err = errors.Join(err, s.Close(), os.Remove(s.metaPath())); err != nil {
				return err
			}
			return openStore(t, s.dir, Config{RecoverMeta: true}).Close()
		},
	} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir, Config{})
			tree := snapshot(t, s, work, "").Tree
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, dir, Config{})
			if err := errors.Join(keep(s, tree), s.Close()); err != nil {
				t.Fatal(err)
			}
			flipBit(t, onlyPack(t, dir, 1), packHeaderSize+recordHeaderSize+5)
			s = openStore(t, dir, Config{})
			if _, err := s.ReadDir(t.Context(), tree); err != nil {
				t.Errorf("the pack was cut: %v", err)
			}
			if rep := verify(t, s); len(rep.Damaged) != 1 {
				t.Errorf("damage is not named: %+v", rep)
			}
		})
	}
}

// A pin makes durable what lies before it, as a commit does: damage to one
// object is then no unfinished end, at which the pack is cut.
func TestDamageBeforeAPinCostsOneObject(t *testing.T) {
	for name, keep := range map[string]func(*Store, Digest) error{
		"pin":   func(s *Store, tree Digest) error { return s.Pin(t.Context(), "p", tree) },
		"lease": func(s *Store, tree Digest) error { return s.Lease(t.Context(), "p", tree, 9) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, work := t.TempDir(), t.TempDir()
			writeFile(t, filepath.Join(work, "a"), "the first object of the pack")
			writeFile(t, filepath.Join(work, "b"), "the second one")
			s := openStore(t, dir, Config{Workers: 1})
			tree := snapshot(t, s, work, "").Tree
			must(t, keep(s, tree))
			must(t, s.Close())
			pack := filepath.Join(dir, "packs", packName(1))
			content, err := os.ReadFile(pack)
			must(t, err)
			content[packHeaderSize+recordHeaderSize] ^= 1
			must(t, os.WriteFile(pack, content, 0o600))
			s = openStore(t, dir, Config{})
			readable := 0
			for _, file := range []string{"a", "b"} {
				x, err := s.Lookup(t.Context(), tree, file)
				if err != nil {
					t.Fatalf("the tree is lost: %v", err)
				}
				if _, err := s.GetBytes(t.Context(), x.Digest); err == nil {
					readable++
				}
			}
			if readable != 1 {
				t.Fatalf("%d of 2 files are readable", readable)
			}
		})
	}
}
