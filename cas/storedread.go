package cas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

const (
	storedRun = 1 << 20  // bytes of a pack that are read at once
	storedGap = 32 << 10 // bytes between two records that are read rather than skipped
)

// StoredRecord is an object as it lies in a pack.
type StoredRecord struct {
	Digest Digest
	Record []byte // header and stored bytes; valid during the call alone
	Err    error  // why there is no Record: ErrNotFound, ErrCorrupt or one of the disk
}

// StoredSize returns the length of an object's record, with its header.
func (s *Store) StoredSize(d Digest) (int64, bool) {
	l, ok := s.index.find(d)
	return recordHeaderSize + int64(l.stored), ok
}

// ReadStored calls fn once for each object, in the order in which they lie in
// the packs, reading neighbours together. Checksums are checked, digests are
// not. It ends with the first error of fn.
func (s *Store) ReadStored(ctx context.Context, digests []Digest, fn func(StoredRecord) error) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	places := make([]indexEntry, 0, len(digests))
	for _, d := range digests {
		l, ok := s.index.find(d)
		if !ok {
			if err := fn(StoredRecord{Digest: d, Err: fmt.Errorf("object %s: %w", d, ErrNotFound)}); err != nil {
				return err
			}
			continue
		}
		places = append(places, indexEntry{d, l})
	}
	slices.SortFunc(places, func(a, b indexEntry) int {
		return cmp.Or(cmp.Compare(a.loc.pack, b.loc.pack), cmp.Compare(a.loc.off, b.loc.off))
	})
	var buf []byte
	for len(places) > 0 {
		n, span := storedNeighbours(places)
		if int64(cap(buf)) < span {
			buf = make([]byte, span)
		}
		if err := s.readNeighbours(ctx, places[:n], buf[:span], fn); err != nil {
			return err
		}
		if cap(buf) > 4*storedRun { // a very large object: let it go
			buf = nil
		}
		places = places[n:]
	}
	return nil
}

func (l *loc) end() int64 { return l.off + recordHeaderSize + int64(l.stored) }

// storedNeighbours answers how many of the first places are worth reading
// together, and how many bytes that is.
func storedNeighbours(places []indexEntry) (n int, span int64) {
	first := &places[0].loc
	end := first.end()
	for n = 1; n < len(places); n++ {
		l := &places[n].loc
		if l.pack != first.pack || l.off > end+storedGap || l.end()-first.off > storedRun {
			break
		}
		end = l.end()
	}
	return n, end - first.off
}

// readNeighbours reads into buf. What cannot be taken from it, since it is not
// written yet or was moved meanwhile, is read by itself.
func (s *Store) readNeighbours(ctx context.Context, places []indexEntry, buf []byte, fn func(StoredRecord) error) error {
	start := places[0].loc.off
	got := 0
	if f, err := s.reader.file(places[0].loc.pack); err == nil {
		got, _ = f.ReadAt(buf, start) // what is missing is read again, with its error
	}
	for _, p := range places {
		if err := ctx.Err(); err != nil {
			return err
		}
		rec := StoredRecord{Digest: p.digest}
		from, to := p.loc.off-start, p.loc.end()-start
		if to <= int64(got) && goodRecord(buf[from:to], p) {
			rec.Record = buf[from:to]
		} else {
			rec.Record, rec.Err = s.readStored(p.digest)
		}
		if err := fn(rec); err != nil {
			return err
		}
	}
	return nil
}

func goodRecord(raw []byte, p indexEntry) bool {
	h, err := parseRecordHeader(raw)
	return err == nil && h.digest == p.digest && h.stored == p.loc.stored && checksum(raw[recordHeaderSize:]) == h.payloadCRC
}

// readStored reads one record. A collection may move the object meanwhile:
// then it is looked up again.
func (s *Store) readStored(d Digest) ([]byte, error) {
	var last loc
	for {
		l, ok := s.index.find(d)
		if !ok {
			return nil, fmt.Errorf("object %s: %w", d, ErrNotFound)
		}
		raw, err := s.reader.readRaw(l)
		if err == nil && goodRecord(raw, indexEntry{d, l}) {
			return raw, nil
		}
		if l == last {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrNotExist) && !unreadable(err) {
				return nil, fmt.Errorf("read %s: %w", d, err)
			}
			s.noteDamage(d, l)
			return nil, &CorruptError{Digest: d, Pack: l.pack, Offset: l.off, Reason: "record is cut off or its checksum is wrong"}
		}
		last = l
	}
}
