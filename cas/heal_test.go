package cas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHealing: content that is put again takes the place of its damaged
// record, also when the damage was found by an earlier process and the file
// has not changed; and a collection takes the bad record away.
func TestHealing(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(work, "f"), "content that is damaged")
	s := openStore(t, dir, Config{})
	waitUntilSettled(t, s, work)
	h := commit(t, s, "ws", snapshot(t, s, work, "k").Tree, "x")
	l, _ := s.index.find(DigestOf([]byte("content that is damaged")))
	flipBit(t, onlyPack(t, dir, l.pack), l.off+recordHeaderSize+3)
	if rep := verify(t, s); len(rep.Damaged) != 1 || len(rep.Missing) != 1 {
		t.Fatalf("verify: %+v", rep)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	if res := snapshot(t, s, work, "k"); res.Tree != h.Tree || res.NewFiles != 1 || res.NewBytes == 0 {
		t.Errorf("snapshot after the damage: %+v", res)
	}
	if got := readCommitted(t, s, h.Tree, "f"); string(got) != "content that is damaged" {
		t.Errorf("content %q", got)
	}
	if rep := verify(t, s); len(rep.Damaged) != 1 || len(rep.Missing) != 0 {
		t.Errorf("verify after healing: %+v", rep)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	collect(t, s, GCOptions{NoGrace: true})
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify after collection: %+v", rep)
	}
	if got := readCommitted(t, s, h.Tree, "f"); string(got) != "content that is damaged" {
		t.Errorf("content %q", got)
	}
}

// TestScrub finds and names damage in sealed packs, and can be stopped.
func TestScrub(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{MaxPackBytes: 8 << 10})
	var digests []Digest
	for i := range 30 {
		d, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 1000))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
	}
	l, _ := s.index.find(digests[3])
	flipBit(t, onlyPack(t, dir, l.pack), l.off+recordHeaderSize+500)
	var found []Damage
	sum, err := s.Scrub(t.Context(), ScrubOptions{Progress: func(p ScrubProgress) {
		if p.Last != nil {
			found = append(found, *p.Last)
		}
	}})
	if err != nil || sum.Packs < 2 || sum.Bytes < 20_000 || sum.Damaged != 1 {
		t.Errorf("scrub %+v, %v", sum, err)
	}
	if len(found) != 1 || found[0].Digest != digests[3] || found[0].Pack != l.pack || found[0].Offset != l.off {
		t.Errorf("found %+v", found)
	}
	if _, err := s.PutBytes(t.Context(), randomBytes(3, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetBytes(t.Context(), digests[3]); err != nil {
		t.Errorf("after healing: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.Scrub(ctx, ScrubOptions{BytesPerSecond: 1 << 20, Progress: func(ScrubProgress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("stopped scrub: %v", err)
	}
}

// TestBoundOnOpenPacks: reading many packs keeps few files open.
func TestBoundOnOpenPacks(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{MaxPackBytes: 1})
	var digests []Digest
	for i := range maxPackFiles + 40 {
		d, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 50))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
	}
	for range 2 {
		for i, d := range digests {
			if _, err := s.GetBytes(t.Context(), d); err != nil {
				t.Fatalf("object %d: %v", i, err)
			}
		}
	}
	if n := len(s.reader.files); n > maxPackFiles {
		t.Errorf("%d packs are open", n)
	}
	if _, err := os.Stat(filepath.Join(s.packDir(), packName(1))); err != nil {
		t.Error(err)
	}
}

// TestCutPacks: of a sealed pack that is gone or ends too early, Verify and a
// scrub name each record that is lost, and putting the content again heals it.
func TestCutPacks(t *testing.T) {
	for _, size := range []int64{-1, 0, 10, packHeaderSize, packHeaderSize + recordHeaderSize, 500} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := openStore(t, t.TempDir(), Config{MaxPackBytes: 1000})
			var contents [][]byte
			lost := make(map[Digest]bool)
			for i := range 20 {
				contents = append(contents, randomBytes(uint64(i), 200))
				d, err := s.PutBytes(t.Context(), contents[i])
				if err != nil {
					t.Fatal(err)
				}
				if l, _ := s.index.find(d); l.pack == 2 && l.end() > size {
					lost[d] = true
				}
			}
			path := onlyPack(t, s.dir, 2)
			err := os.Remove(path)
			if size >= 0 {
				err = os.WriteFile(path, nil, 0o600)
				err = errors.Join(err, os.Truncate(path, size))
			}
			if err != nil || len(lost) == 0 {
				t.Fatal(err, len(lost))
			}
			rep, err := s.Verify(t.Context(), VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			named := make(map[Digest]bool)
			for _, d := range rep.Damaged {
				if lost[d.Digest] {
					named[d.Digest] = true
				}
			}
			sum, err := s.Scrub(t.Context(), ScrubOptions{})
			if len(named) != len(lost) || err != nil || sum.Damaged < int64(len(lost)) {
				t.Errorf("%d objects lost, %d named, scrub: %+v, %v", len(lost), len(named), sum, err)
			}
			for _, c := range contents {
				if _, err := s.PutBytes(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				if got, err := s.GetBytes(t.Context(), DigestOf(c)); err != nil || !bytes.Equal(got, c) {
					t.Errorf("not healed: %v", err)
				}
			}
			collect(t, s, GCOptions{})
		})
	}
}

// TestDamageFoundDuringSnapshot: a snapshot that is going on when damage is
// found does not bring the stat cache back that keeps it from being healed.
func TestDamageFoundDuringSnapshot(t *testing.T) {
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "f"), "content that is damaged")
	find := func() {}
	s := openStore(t, t.TempDir(), Config{MaxPackBytes: 1, faults: func(step string) error {
		if step == "create pack" {
			find()
		}
		return nil
	}})
	waitUntilSettled(t, s, work)
	d := DigestOf([]byte("content that is damaged"))
	l, _ := s.index.find(d)
	writeFile(t, filepath.Join(work, "new"), "when this is written, the damage is found")
	find = func() { s.noteDamage(d, l) }
	snapshot(t, s, work, "k")
	find = func() {}
	if res := snapshot(t, s, work, "k"); res.NewFiles != 2 || s.isDamaged(d) {
		t.Errorf("the damage is not healed: %+v", res)
	}
}

// badSectors is a disk that cannot read two places.
type badSectors struct{ r io.ReaderAt }

func (b badSectors) ReadAt(p []byte, off int64) (int, error) {
	for _, bad := range []int64{20_000, 70_000} {
		if off <= bad && bad < off+int64(len(p)) {
			return 0, &fs.PathError{Op: "read", Path: "pack", Err: unix.EIO}
		}
	}
	return b.r.ReadAt(p, off)
}

// TestBadSectors: what a disk cannot read is damage like any other: it is named,
// what lies behind is found, and the same content heals it.
func TestBadSectors(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{MaxPackBytes: 100_000})
	var all []Digest
	bad := make(map[Digest]bool)
	for i := range 60 {
		d, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 3000))
		if err != nil {
			t.Fatal(err)
		}
		l, _ := s.index.find(d)
		if all = append(all, d); l.pack == 1 {
			for _, at := range []int64{20_000, 70_000} {
				// all that shares a sector with it is lost
				bad[d] = bad[d] || l.off < at/sectorBytes*sectorBytes+sectorBytes && l.end() > at/sectorBytes*sectorBytes
			}
		}
	}
	f, err := os.Open(onlyPack(t, s.dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	good, damaged := 0, 0
	err = newPackScanner(badSectors{f}, packHeaderSize, info.Size()).scanAll(func(rec scanned) error {
		if good++; bad[rec.header.digest] {
			t.Errorf("record at %d is good", rec.off)
		}
		return nil
	}, func(*damage) { damaged++ })
	l, _ := s.index.find(all[59])
	if err != nil || damaged == 0 || l.pack == 1 || good < 20 {
		t.Errorf("%d good, %d damaged: %v", good, damaged, err)
	}

	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.reader.drop(1)
	pack := onlyPack(t, s.dir, 1)
	if err := errors.Join(os.Remove(pack), os.Symlink("/proc/self/mem", pack)); err != nil { // which answers EIO at low offsets
		t.Fatal(err)
	}
	if _, err := s.GetBytes(t.Context(), all[0]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("reading what the disk cannot: %v", err)
	}
	err = s.ReadStored(t.Context(), all[1:2], func(r StoredRecord) error { return r.Err })
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("reading the record that the disk cannot: %v", err)
	}
	for i := range 2 {
		if _, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 3000)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetBytes(t.Context(), all[i]); err != nil {
			t.Errorf("not healed: %v", err)
		}
	}
}

// TestScrubReadsOpenPack: what a collection moved lies in the open pack, which is
// read like the others.
func TestScrubReadsOpenPack(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "a"), string(randomBytes(1, 50_000)))
	writeFile(t, filepath.Join(work, "b"), "small")
	snapshot(t, s, work, "")
	must(t, os.Remove(filepath.Join(work, "a")))
	commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	s.touches = newTouches()
	if rep := collect(t, s, GCOptions{NoGrace: true}); rep.PacksMoved != 1 {
		t.Fatalf("collected %+v", rep)
	}
	sum, err := s.Scrub(t.Context(), ScrubOptions{})
	if err != nil || sum.Packs != 1 || sum.Records != 3 || sum.Damaged != 0 {
		t.Errorf("scrub %+v, %v", sum, err)
	}
	l, _ := s.index.find(DigestOf([]byte("small")))
	flipBit(t, onlyPack(t, dir, l.pack), l.off+recordHeaderSize)
	sum, err = s.Scrub(t.Context(), ScrubOptions{})
	if err != nil || sum.Damaged != 1 || !s.isDamaged(DigestOf([]byte("small"))) {
		t.Errorf("scrub after damage: %+v, %v", sum, err)
	}
}
