package cas

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// scanned is one record found by a packScanner.
type scanned struct {
	off     int64
	header  recordHeader
	payload []byte // valid until the next call
}

func (s *scanned) loc(pack uint64) loc {
	return loc{pack: pack, off: s.off, stored: s.header.stored, size: s.header.size}
}

// damage is a record that does not hold what it should.
type damage struct {
	off    int64
	header recordHeader // zero when it is damaged itself
	reason string
}

// indexable returns the record's place when its header is good.
func (d *damage) indexable(pack uint64) (indexEntry, bool) {
	h := &d.header
	return indexEntry{h.digest, loc{pack: pack, off: d.off, stored: h.stored, size: h.size}}, !h.digest.IsZero()
}

func (d *damage) Error() string { return fmt.Sprintf("damaged record at %d: %s", d.off, d.reason) }

// packScanner reads records one after another. After a damage whose header
// was good it stands behind that record; after one whose header was bad it
// stands on it, and resync looks for the next.
type packScanner struct {
	r        io.ReaderAt
	off, end int64
	buf      []byte
	bufOff   int64
}

const scanBuffer = 1 << 20

func newPackScanner(r io.ReaderAt, from, end int64) *packScanner {
	return &packScanner{r: r, off: from, end: end}
}

// window returns n bytes at off, or fewer at the end of the pack.
func (s *packScanner) window(off, n int64) ([]byte, error) {
	n = min(n, s.end-off)
	if off >= s.bufOff && off+n <= s.bufOff+int64(len(s.buf)) {
		return s.buf[off-s.bufOff:][:n], nil
	}
	want := min(max(n, scanBuffer), s.end-off)
	if int64(cap(s.buf)) < want {
		s.buf = make([]byte, want)
	}
	s.buf, s.bufOff = s.buf[:want], off
	got, err := s.r.ReadAt(s.buf, off)
	if unreadable(err) {
		got, err = readAround(s.r, s.buf, off)
	}
	s.buf = s.buf[:got]
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s.buf[:min(n, int64(got))], nil
}

// unreadable reports whether a disk lost what it was asked for.
func unreadable(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EBADMSG) || errors.Is(err, unix.EUCLEAN)
}

// sectorBytes is how little is given up where the disk cannot read.
const sectorBytes = 4096

// readAround reads like ReadAt, with zeros in the place of what the disk cannot
// read: they show as damage.
func readAround(r io.ReaderAt, b []byte, off int64) (n int, err error) {
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+sectorBytes-int((off+int64(n))%sectorBytes))]
		var got int
		if got, err = r.ReadAt(part, off+int64(n)); unreadable(err) {
			clear(part)
			got, err = len(part), nil
		}
		n += got
	}
	return n, err
}

// next returns the record at the scanner's place, io.EOF at the end, a
// *damage, or an error of the disk.
func (s *packScanner) next() (scanned, error) {
	if s.off >= s.end {
		return scanned{}, io.EOF
	}
	head, err := s.window(s.off, recordHeaderSize)
	if err != nil {
		return scanned{}, err
	}
	h, err := parseRecordHeader(head)
	if err != nil {
		return scanned{}, &damage{off: s.off, reason: err.Error()}
	}
	rec := scanned{off: s.off, header: h}
	total := recordHeaderSize + int64(h.stored)
	if s.off+total > s.end {
		return scanned{}, &damage{off: s.off, header: h, reason: "record is cut off"}
	}
	all, err := s.window(s.off, total)
	if err != nil {
		return scanned{}, err
	}
	s.off += total
	rec.payload = all[recordHeaderSize:]
	if int64(len(all)) < total || checksum(rec.payload) != h.payloadCRC {
		return scanned{}, &damage{off: rec.off, header: h, reason: "payload checksum is wrong"}
	}
	return rec, nil
}

// resync moves to the next place behind the present one where a record's
// header is good, and reports whether there is one.
func (s *packScanner) resync() (bool, error) {
	for s.off++; s.off < s.end; {
		w, err := s.window(s.off, scanBuffer/2)
		if err != nil {
			return false, err
		}
		i := bytes.Index(w, recordMagic[:])
		if i < 0 {
			s.off += max(1, int64(len(w))-int64(len(recordMagic))+1)
			continue
		}
		s.off += int64(i)
		head, err := s.window(s.off, recordHeaderSize)
		if err != nil {
			return false, err
		}
		if h, err := parseRecordHeader(head); err == nil && s.off+recordHeaderSize+int64(h.stored) <= s.end {
			return true, nil
		}
		s.off++
	}
	return false, nil
}

// scanAll calls good for each whole record and bad for each damage, and
// stops only at the end, at an error of the disk, or when a callback fails.
func (s *packScanner) scanAll(good func(scanned) error, bad func(*damage)) error {
	for {
		rec, err := s.next()
		var d *damage
		isDamage := errors.As(err, &d)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case isDamage:
			bad(d)
			if s.off > d.off {
				continue // its header was good: the next record follows
			}
			if found, err := s.resync(); err != nil || !found {
				return err
			}
		case err != nil:
			return err
		default:
			if err := good(rec); err != nil {
				return err
			}
		}
	}
}
