package cas

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
)

// runSource is what an index run is made of.
type runSource struct {
	counts [256]uint32 // entries by their digests' first byte
	// each hands the encoded entries out, sorted by digest and then the newest
	// first. It ends with emit's error, if any.
	each func(emit func(raw []byte) error) error
}

// writeIndexRun makes the run durable under its final name and opens it. The
// entries are sorted in place.
func writeIndexRun(dir string, first, last uint64, entries []indexEntry, f faults) (*indexRun, error) {
	slices.SortFunc(entries, compareEntries)
	src := runSource{each: func(emit func([]byte) error) error {
		var raw [indexEntrySize]byte
		for i := range entries {
			entries[i].put(raw[:])
			if err := emit(raw[:]); err != nil {
				return err
			}
		}
		return nil
	}}
	for i := range entries {
		src.counts[entries[i].digest.sum[0]]++
	}
	return createIndexRun(dir, first, last, &src, f)
}

// compareEntries sorts by digest, then the newest first.
func compareEntries(a, b indexEntry) int {
	return cmp.Or(a.digest.Compare(b.digest), cmp.Compare(b.loc.pack, a.loc.pack), cmp.Compare(b.loc.off, a.loc.off))
}

// put writes e into b[:indexEntrySize].
func (e *indexEntry) put(b []byte) {
	copy(b, e.digest.sum[:])
	binary.LittleEndian.PutUint64(b[32:], e.loc.pack)
	binary.LittleEndian.PutUint64(b[40:], uint64(e.loc.off))
	binary.LittleEndian.PutUint64(b[48:], e.loc.stored)
	binary.LittleEndian.PutUint64(b[56:], e.loc.size)
}

// createIndexRun writes a run: temporary file, write, fsync, close, rename,
// fsync of the directory. A file of the same name is replaced.
func createIndexRun(dir string, first, last uint64, src *runSource, faults faults) (*indexRun, error) {
	path := filepath.Join(dir, indexName(first, last))
	if err := saveIndexRun(path, first, last, src, faults); err != nil {
		return nil, fmt.Errorf("write index %s: %w", filepath.Base(path), err)
	}
	return openIndexRun(path)
}

func saveIndexRun(path string, first, last uint64, src *runSource, faults faults) (err error) {
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
	if err = writeRun(f, first, last, src); err == nil {
		err = faults.at("fsync index run")
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = faults.at("rename index run"); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := faults.at("fsync index directory"); err != nil {
		return err
	}
	return syncDir(dir)
}

// writeRun writes the whole file, as docs/cas-format.md has it.
func writeRun(f *os.File, first, last uint64, src *runSource) error {
	sum := &summingWriter{f: f}
	out := bufio.NewWriterSize(sum, 256<<10)
	head := make([]byte, indexHeaderSize+indexFanoutSize)
	copy(head, indexMagic[:])
	binary.LittleEndian.PutUint32(head[8:], indexVersion)
	total := uint32(0)
	for i, c := range src.counts {
		total += c
		binary.LittleEndian.PutUint32(head[indexHeaderSize+4*i:], total)
	}
	binary.LittleEndian.PutUint64(head[16:], uint64(total))
	binary.LittleEndian.PutUint64(head[24:], first)
	binary.LittleEndian.PutUint64(head[32:], last)
	if _, err := out.Write(head); err != nil {
		return err
	}
	written := uint32(0)
	err := src.each(func(raw []byte) error {
		written++
		_, err := out.Write(raw)
		return err
	})
	if err == nil && written != total {
		err = fmt.Errorf("%d entries where %d were announced", written, total)
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	_, err = f.Write(binary.LittleEndian.AppendUint32(nil, sum.crc))
	return err
}

// summingWriter keeps the checksum of what it writes.
type summingWriter struct {
	f   *os.File
	crc uint32
}

// Write implements io.Writer.
func (w *summingWriter) Write(b []byte) (int, error) {
	w.crc = crc32.Update(w.crc, castagnoli, b)
	return w.f.Write(b)
}
