package cas

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
// into memory.
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

// writeIndexRun makes the run durable under its final name and opens it.
// Entries need not be sorted; of equal digests the first is kept.
func writeIndexRun(dir string, first, last uint64, entries []indexEntry) (*indexRun, error) {
	path := filepath.Join(dir, indexName(first, last))
	if err := writeFileDurably(path, encodeIndexRun(first, last, entries)); err != nil {
		return nil, fmt.Errorf("write index %s: %w", filepath.Base(path), err)
	}
	return openIndexRun(path)
}

func encodeIndexRun(first, last uint64, entries []indexEntry) []byte {
	slices.SortStableFunc(entries, func(a, b indexEntry) int { return a.digest.Compare(b.digest) })
	entries = slices.CompactFunc(entries, func(a, b indexEntry) bool { return a.digest == b.digest })
	b := make([]byte, indexHeaderSize+indexFanoutSize, indexHeaderSize+indexFanoutSize+len(entries)*indexEntrySize+indexFooterSize)
	copy(b, indexMagic[:])
	binary.LittleEndian.PutUint32(b[8:], indexVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(len(entries)))
	binary.LittleEndian.PutUint64(b[24:], first)
	binary.LittleEndian.PutUint64(b[32:], last)
	var counts [256]uint32
	for _, e := range entries {
		counts[e.digest.sum[0]]++
		b = append(b, e.digest.sum[:]...)
		b = binary.LittleEndian.AppendUint64(b, e.loc.pack)
		b = binary.LittleEndian.AppendUint64(b, uint64(e.loc.off))
		b = binary.LittleEndian.AppendUint64(b, e.loc.stored)
		b = binary.LittleEndian.AppendUint64(b, e.loc.size)
	}
	total := uint32(0)
	for i, c := range counts {
		total += c
		binary.LittleEndian.PutUint32(b[indexHeaderSize+4*i:], total)
	}
	return appendChecksum(b)
}

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

// search looks for d by its first byte's range and binary search. Dead
// entries are not found.
func (r *indexRun) search(d Digest) (int, bool) {
	lo, hi := 0, r.fan(int(d.sum[0]))
	if d.sum[0] > 0 {
		lo = r.fan(int(d.sum[0]) - 1)
	}
	if lo > hi {
		return 0, false
	}
	i := lo + sort.Search(hi-lo, func(i int) bool {
		return bytes.Compare(r.entries[(lo+i)*indexEntrySize:][:DigestSize], d.sum[:]) >= 0
	})
	if i >= hi || r.isDead(i) {
		return 0, false
	}
	return i, bytes.Equal(r.entries[i*indexEntrySize:][:DigestSize], d.sum[:])
}

func (r *indexRun) entry(i int) indexEntry {
	b := r.entries[i*indexEntrySize:][:indexEntrySize]
	return indexEntry{
		digest: Digest{[DigestSize]byte(b[:DigestSize])},
		loc: loc{
			pack: binary.LittleEndian.Uint64(b[32:]), off: int64(binary.LittleEndian.Uint64(b[40:])),
			stored: binary.LittleEndian.Uint64(b[48:]), size: binary.LittleEndian.Uint64(b[56:]),
		},
	}
}
