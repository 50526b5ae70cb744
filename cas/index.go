package cas

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	mathbits "math/bits"
	"os"
	"path/filepath"
	"sort"

	"golang.org/x/sys/unix"
)

// loc is where an object lies.
type loc struct {
	pack         uint64
	off          int64 // of the record's header
	stored, size uint64
}

type indexEntry struct {
	digest Digest
	loc    loc
}

const (
	indexVersion    = 1
	indexHeaderSize = 64
	indexFanoutSize = 256 * 4
	indexEntrySize  = 64
	indexFooterSize = 4
)

var indexMagic = [8]byte{'S', 'K', 'R', 'Y', 'I', 'N', 'D', 'X'}

// indexRun is an immutable sorted index of the packs first to last, mapped
// into memory. It has an entry for each of their records that is not dead; of
// several records of one object the newest comes first.
type indexRun struct {
	path        string
	first, last uint64
	count       int
	dead        []uint64 // bits of entries that a collection removed; nil for none. The index's lock guards it
	deadCount   int
	data        []byte // the whole file
	fanout      []byte
	entries     []byte
}

func indexName(first, last uint64) string { return fmt.Sprintf("%016x-%016x.idx", first, last) }

// writeFileDurably replaces path in one step: temporary file, write, fsync,
// close, rename, fsync of the directory.
func writeFileDurably(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// openIndexRun maps and checks the whole run.
func openIndexRun(path string) (*indexRun, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < indexHeaderSize+indexFanoutSize+indexFooterSize {
		return nil, fmt.Errorf("index %s is cut off: %w", filepath.Base(path), ErrCorrupt)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map index %s: %w", filepath.Base(path), err)
	}
	run, err := parseIndexRun(data)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("index %s: %w", filepath.Base(path), err), unix.Munmap(data))
	}
	run.path = path
	return run, nil
}

func parseIndexRun(data []byte) (*indexRun, error) {
	if len(data) < indexHeaderSize+indexFanoutSize+indexFooterSize || [8]byte(data[:8]) != indexMagic {
		return nil, fmt.Errorf("magic is wrong: %w", ErrCorrupt)
	}
	body, ok := cutChecksum(data)
	if !ok {
		return nil, fmt.Errorf("checksum is wrong: %w", ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(data[8:]); v != indexVersion {
		return nil, &VersionError{What: "index", Got: uint64(v), Want: indexVersion}
	}
	entries := body[indexHeaderSize+indexFanoutSize:]
	count := binary.LittleEndian.Uint64(data[16:])
	if count != uint64(len(entries))/indexEntrySize || len(entries)%indexEntrySize != 0 {
		return nil, fmt.Errorf("%d entries do not fit the file: %w", count, ErrCorrupt)
	}
	return &indexRun{
		first: binary.LittleEndian.Uint64(data[24:]), last: binary.LittleEndian.Uint64(data[32:]),
		count: int(count), data: data,
		fanout: body[indexHeaderSize:][:indexFanoutSize], entries: entries,
	}, nil
}

func (r *indexRun) close() error {
	if r.data == nil {
		return nil
	}
	data := r.data
	r.data, r.fanout, r.entries, r.count = nil, nil, nil, 0
	return unix.Munmap(data)
}

func (r *indexRun) fan(i int) int {
	return min(int(binary.LittleEndian.Uint32(r.fanout[4*i:])), r.count)
}

// find returns where d is.
func (r *indexRun) find(d Digest) (loc, bool) {
	i, ok := r.search(d)
	if !ok {
		return loc{}, false
	}
	return r.entry(i).loc, true
}

// isDead reports whether a collection has removed entry i.
func (r *indexRun) isDead(i int) bool { return r.dead != nil && r.dead[i/64]&(1<<(i%64)) != 0 }

// search looks for d and answers its newest entry that is not dead.
func (r *indexRun) search(d Digest) (int, bool) {
	lo, hi := r.bucket(d.sum[0])
	for i := r.lowerBound(d, lo, hi); i < hi && bytes.Equal(r.digest(i), d.sum[:]); i++ {
		if !r.isDead(i) {
			return i, true
		}
	}
	return 0, false
}

// bucket returns the range of the entries whose first byte is b.
func (r *indexRun) bucket(b byte) (lo, hi int) {
	hi = r.fan(int(b))
	if b > 0 {
		lo = r.fan(int(b) - 1)
	}
	return lo, max(lo, hi)
}

// interpolateFrom is the number of entries from which guessing a digest's
// place beats halving.
const interpolateFrom = 64

// lowerBound returns the first entry in [lo, hi) that is not less than d, or
// hi. Digests are evenly spread, so that their bits tell about where it lies:
// in a large run that spares most of the memory that halving would touch.
func (r *indexRun) lowerBound(d Digest, lo, hi int) int {
	n := hi - lo
	if n < interpolateFrom {
		return r.halve(d, lo, hi)
	}
	key := binary.BigEndian.Uint64(d.sum[1:])
	ahead := func(key uint64) int {
		whole, _ := mathbits.Mul64(key, uint64(n))
		return int(whole)
	}
	at := lo + ahead(key)
	for range 3 {
		if k := binary.BigEndian.Uint64(r.digest(at)[1:]); k <= key {
			at = min(at+ahead(key-k), hi-1)
		} else {
			at = max(at-ahead(k-key), lo)
		}
	}
	return r.gallop(d, lo, hi, at)
}

// gallop looks for the lower bound in growing steps from at.
func (r *indexRun) gallop(d Digest, lo, hi, at int) int {
	if r.less(at, d) {
		lo = at + 1
		for step := 1; lo < hi; step *= 2 {
			next := min(lo+step-1, hi-1)
			if !r.less(next, d) {
				hi = next
				break
			}
			lo = next + 1
		}
		return r.halve(d, lo, hi)
	}
	hi = at
	for step := 1; lo < hi; step *= 2 {
		next := max(hi-step, lo)
		if r.less(next, d) {
			lo = next + 1
			break
		}
		hi = next
	}
	return r.halve(d, lo, hi)
}

func (r *indexRun) halve(d Digest, lo, hi int) int {
	return lo + sort.Search(hi-lo, func(i int) bool { return !r.less(lo+i, d) })
}

func (r *indexRun) less(i int, d Digest) bool { return bytes.Compare(r.digest(i), d.sum[:]) < 0 }

func (r *indexRun) digest(i int) []byte { return r.entries[i*indexEntrySize:][:DigestSize] }

// packOf returns in which pack entry i lies.
func (r *indexRun) packOf(i int) uint64 {
	return binary.LittleEndian.Uint64(r.entries[i*indexEntrySize+DigestSize:])
}

// raw returns entry i as it lies in the file.
func (r *indexRun) raw(i int) []byte { return r.entries[i*indexEntrySize:][:indexEntrySize] }

func (r *indexRun) entry(i int) indexEntry {
	b := r.raw(i)
	return indexEntry{
		digest: Digest{[DigestSize]byte(b[:DigestSize])},
		loc: loc{
			pack: binary.LittleEndian.Uint64(b[32:]), off: int64(binary.LittleEndian.Uint64(b[40:])),
			stored: binary.LittleEndian.Uint64(b[48:]), size: binary.LittleEndian.Uint64(b[56:]),
		},
	}
}
