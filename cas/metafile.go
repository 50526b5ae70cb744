package cas

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// metaFile reads meta.db as it lies on the disk, without bbolt: that one has
// no checksums but on its two meta pages, and a damaged page can make it panic
// in a goroutine of its own, loop for ever, or answer from a page of long ago.
// Numbers are in the byte order of the machine, which is little-endian on all
// that Skerry runs on.
type metaFile struct {
	r        io.ReaderAt
	size     int64
	pageSize int64
	high     uint64 // pages from here on do not count
	seen     map[uint64]bool
	tolerate bool // go on after damage
}

func newMetaFile(r io.ReaderAt, size int64) *metaFile {
	return &metaFile{r: r, size: size, seen: make(map[uint64]bool)}
}

// meet ends the walk at a damage, unless it is to go on.
func (m *metaFile) meet(err error) error {
	if m.tolerate && isMetaDamage(err) {
		return nil
	}
	return err
}

const (
	boltMagic       = 0xED0CDAED
	boltVersion     = 2
	boltPageHeader  = 16
	boltMetaSize    = 64
	boltElementSize = 16
	boltBranchPage  = 1
	boltLeafPage    = 2
	boltBucketFlag  = 1
	boltMaxDepth    = 64
)

// boltRoot is what a meta page says.
type boltRoot struct {
	pageSize         int64
	root, high, txid uint64
}

func pageDamage(id uint64, format string, args ...any) error {
	return &MetaError{Page: int64(id), Reason: fmt.Sprintf(format, args...)}
}

// readRoots reads both meta pages and answers the newer. Both must be good: if
// the newer one were damaged, the older one would quietly take a transaction
// back. A meta page lies within one sector, so a crash does not tear it.
func (m *metaFile) readRoots() (boltRoot, error) {
	a, err := m.readRoot(0, 0)
	if err != nil {
		return a, err
	}
	b, err := m.readRoot(1, a.pageSize)
	switch {
	case err != nil:
		return a, err
	case b.pageSize != a.pageSize || a.txid+1 != b.txid && b.txid+1 != a.txid:
		return a, pageDamage(0, "meta pages of transactions %d and %d do not belong together", a.txid, b.txid)
	case b.txid > a.txid:
		a = b
	}
	m.pageSize, m.high = a.pageSize, a.high
	return a, nil
}

func (m *metaFile) readRoot(id uint64, at int64) (boltRoot, error) {
	b := make([]byte, boltPageHeader+boltMetaSize)
	if _, err := m.r.ReadAt(b, at); err != nil {
		return boltRoot{}, pageDamage(id, "meta page cannot be read: %v", err)
	}
	b = b[boltPageHeader:]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:boltMetaSize-8])
	le := binary.LittleEndian
	if le.Uint32(b) != boltMagic || le.Uint32(b[4:]) != boltVersion || le.Uint64(b[boltMetaSize-8:]) != sum.Sum64() {
		return boltRoot{}, pageDamage(id, "checksum of the meta page is wrong")
	}
	r := boltRoot{pageSize: int64(le.Uint32(b[8:])), root: le.Uint64(b[16:]), high: le.Uint64(b[40:]), txid: le.Uint64(b[48:])}
	if r.pageSize < 512 || r.high > uint64(m.size/r.pageSize) {
		return r, pageDamage(id, "%d pages of %d bytes do not fit the file of %d bytes", r.high, r.pageSize, m.size)
	}
	return r, nil
}

// page returns a page with its overflow. No page may be used twice.
func (m *metaFile) page(id uint64) ([]byte, error) {
	head := make([]byte, boltPageHeader)
	if id < 2 || id >= m.high {
		return nil, pageDamage(id, "is named but is outside the file")
	}
	if _, err := m.r.ReadAt(head, int64(id)*m.pageSize); err != nil {
		return nil, pageDamage(id, "cannot be read: %v", err)
	}
	overflow := uint64(binary.LittleEndian.Uint32(head[12:]))
	if got := binary.LittleEndian.Uint64(head); got != id || id+overflow >= m.high {
		return nil, pageDamage(id, "header says page %d and %d more", got, overflow)
	}
	for n := id; n <= id+overflow; n++ {
		if m.seen[n] {
			return nil, pageDamage(n, "is named twice")
		}
		m.seen[n] = true
	}
	b := make([]byte, int64(overflow+1)*m.pageSize)
	if _, err := m.r.ReadAt(b, int64(id)*m.pageSize); err != nil {
		return nil, pageDamage(id, "cannot be read: %v", err)
	}
	return b, nil
}

// boltElement is an element of a page.
type boltElement struct {
	key, value []byte
	flags      uint32 // of a leaf's
	child      uint64 // of a branch's
}

// elements returns what is on a page, and whether it is a leaf.
func parsePage(id uint64, b []byte) (all []boltElement, leaf bool, err error) {
	le := binary.LittleEndian
	if len(b) < boltPageHeader {
		return nil, false, pageDamage(id, "is cut off")
	}
	flags, count := le.Uint16(b[8:]), int(le.Uint16(b[10:]))
	leaf = flags == boltLeafPage
	if !leaf && flags != boltBranchPage || boltPageHeader+count*boltElementSize > len(b) || !leaf && count == 0 {
		return nil, leaf, pageDamage(id, "is of kind %d with %d elements", flags, count)
	}
	for i := range count {
		at := boltPageHeader + i*boltElementSize
		e := b[at:]
		var x boltElement
		var pos, ksize, vsize uint64
		if leaf {
			x.flags, pos, ksize, vsize = le.Uint32(e), uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		} else {
			pos, ksize, x.child = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])), le.Uint64(e[8:])
		}
		from := uint64(at) + pos
		if from+ksize+vsize > uint64(len(b)) {
			return nil, leaf, pageDamage(id, "element %d lies outside the page", i)
		}
		x.key, x.value = b[from:from+ksize], b[from+ksize:from+ksize+vsize]
		if i > 0 && bytes.Compare(all[i-1].key, x.key) >= 0 {
			return nil, leaf, pageDamage(id, "keys %d and %d are not in order", i-1, i)
		}
		all = append(all, x)
	}
	return all, leaf, nil
}

// walk calls fn for each leaf element below page id. All keys must be in
// [lower, upper), where nil is no bound: otherwise bbolt would not find them.
func (m *metaFile) walk(id uint64, lower, upper []byte, depth int, fn func(boltElement) error) error {
	if depth > boltMaxDepth {
		return pageDamage(id, "lies too deep")
	}
	b, err := m.page(id)
	if err != nil {
		return m.meet(err)
	}
	all, leaf, err := parsePage(id, b)
	if err != nil {
		return m.meet(err)
	}
	for i, x := range all {
		if lower != nil && bytes.Compare(x.key, lower) < 0 || upper != nil && bytes.Compare(x.key, upper) >= 0 {
			if err := m.meet(pageDamage(id, "key %d is on the wrong page", i)); err != nil {
				return err
			}
		}
		if leaf {
			err = fn(x)
		} else if i+1 < len(all) {
			err = m.walk(x.child, x.key, all[i+1].key, depth+1, fn)
		} else {
			err = m.walk(x.child, x.key, upper, depth+1, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// buckets calls fn for each key of each bucket below the root page.
func (m *metaFile) buckets(root uint64, begin func(name string), fn func(name string, key, value []byte) error) error {
	return m.walk(root, nil, nil, 0, func(x boltElement) error {
		name := string(x.key)
		if x.flags != boltBucketFlag || len(x.value) < boltPageHeader {
			return m.meet(&MetaError{Bucket: name, Reason: "is not a bucket"})
		}
		begin(name)
		each := func(y boltElement) error {
			if y.flags != 0 {
				return m.meet(&MetaError{Bucket: name, Key: string(y.key), Reason: "is not a value"})
			}
			return fn(name, y.key, y.value)
		}
		if page := binary.LittleEndian.Uint64(x.value); page != 0 {
			return m.walk(page, nil, nil, 0, each)
		}
		all, leaf, err := parsePage(0, x.value[boltPageHeader:]) // small buckets lie in the value
		if err != nil || !leaf {
			return m.meet(&MetaError{Bucket: name, Reason: fmt.Sprint("its page is damaged: ", err)})
		}
		for _, y := range all {
			if err := each(y); err != nil {
				return err
			}
		}
		return nil
	})
}
