package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// encoder appends the primitives of the object encodings (docs/cas-format.md).
type encoder struct{ b []byte }

func (e *encoder) u8(v byte)        { e.b = append(e.b, v) }
func (e *encoder) uvarint(v uint64) { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) varint(v int64)   { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) digest(d Digest)  { e.b = append(e.b, d.sum[:]...) }

func (e *encoder) str(s string) {
	e.uvarint(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) time(t time.Time) { e.stamp(stampOf(t)) }

func (e *encoder) stamp(t stamp) {
	e.varint(t.sec)
	e.uvarint(uint64(t.nsec))
}

// stamp is a time as file systems keep it; unlike nanoseconds in an int64 it
// holds every year.
type stamp struct {
	sec  int64
	nsec int32 // 0 to 999,999,999
}

func stampOf(t time.Time) stamp { return stamp{t.Unix(), int32(t.Nanosecond())} }

func (t stamp) time() time.Time { return time.Unix(t.sec, int64(t.nsec)) }

func (t stamp) before(o stamp) bool { return t.sec < o.sec || t.sec == o.sec && t.nsec < o.nsec }

var errEncoding = errors.New("encoding is not canonical")

// decoder reads the same primitives strictly: only the one encoding that
// encoder makes is accepted. The first error stays.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w: %w", what, errEncoding, ErrCorrupt)
	}
	d.b = nil
}

func (d *decoder) take(n uint64, what string) []byte {
	if n > uint64(len(d.b)) {
		d.fail(what)
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) u8(what string) byte {
	if b := d.take(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint(what string) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail(what)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint(what string) int64 {
	v := d.uvarint(what)
	return int64(v>>1) ^ -int64(v&1)
}

// upTo reads a number that must not pass limit.
func (d *decoder) upTo(limit uint64, what string) uint64 {
	v := d.uvarint(what)
	if v > limit {
		d.fail(what)
		return 0
	}
	return v
}

func (d *decoder) str(limit uint64, what string) string {
	return string(d.take(d.upTo(limit, what), what))
}

func (d *decoder) digest(what string) Digest {
	var out Digest
	copy(out.sum[:], d.take(DigestSize, what))
	return out
}

func (d *decoder) stamp(what string) stamp {
	return stamp{d.varint(what), int32(d.upTo(999_999_999, what))}
}

func (d *decoder) time(what string) time.Time { return d.stamp(what).time() }

// count reads how many items follow; each needs at least size bytes, so a
// short input cannot make the reader allocate much.
func (d *decoder) count(size int, what string) int {
	return int(d.upTo(uint64(len(d.b)/size), what))
}

// magic checks the four bytes that start each metadata object: "SK", a
// letter, the version.
func (d *decoder) magic(letter byte, version byte, what string) {
	b := d.take(4, what)
	if b == nil {
		return
	}
	if b[0] != 'S' || b[1] != 'K' || b[2] != letter {
		d.fail(what)
		return
	}
	if b[3] != version {
		d.err, d.b = &VersionError{What: what, Got: uint64(b[3]), Want: uint64(version)}, nil
	}
}

// end returns the first error; bytes left over are one.
func (d *decoder) end(what string) error {
	if d.err == nil && len(d.b) != 0 {
		d.fail(what + " has bytes left over")
	}
	return d.err
}
