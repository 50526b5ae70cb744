package cas

import (
	"fmt"
	"sort"
)

const (
	chunkListVersion = 1
	// ChunkedFrom is the size in bytes from which a file is kept in chunks.
	ChunkedFrom = 2 << 20
)

// chunkList is the object that says of which chunks a large file is made.
type chunkList struct {
	whole  Digest // of the file's whole content
	size   int64
	chunks []chunkRef
}

type chunkRef struct {
	digest Digest
	off    int64
	size   int64
}

func (c *chunkList) add(d Digest, size int) {
	c.chunks = append(c.chunks, chunkRef{digest: d, off: c.size, size: int64(size)})
	c.size += int64(size)
}

// at returns the index of the chunk that holds offset off.
func (c *chunkList) at(off int64) int {
	return sort.Search(len(c.chunks), func(i int) bool { return c.chunks[i].off+c.chunks[i].size > off })
}

func (c *chunkList) marshal() []byte {
	e := &encoder{b: make([]byte, 0, 64+36*len(c.chunks))}
	e.b = append(e.b, 'S', 'K', 'L', chunkListVersion)
	e.digest(c.whole)
	e.uvarint(uint64(c.size))
	e.uvarint(uint64(len(c.chunks)))
	for _, ref := range c.chunks {
		e.digest(ref.digest)
		e.uvarint(uint64(ref.size))
	}
	return e.b
}

func parseChunkList(b []byte) (*chunkList, error) {
	d := &decoder{b: b}
	d.magic('L', chunkListVersion, "chunk list")
	c := &chunkList{whole: d.digest("file digest")}
	size := int64(d.upTo(1<<63-1, "file size"))
	n := d.count(DigestSize+1, "number of chunks")
	for i := 0; i < n && d.err == nil; i++ {
		digest := d.digest("chunk digest")
		length := d.upTo(maxObjectSize, "chunk size")
		if length == 0 || int64(length) > size-c.size {
			d.fail("chunk size")
			break
		}
		c.add(digest, int(length))
	}
	if c.size != size {
		d.fail("sum of the chunks")
	}
	return c, d.end("chunk list")
}

func (s *Store) readChunkList(d Digest) (*chunkList, error) {
	b, err := s.get(d)
	if err != nil {
		return nil, err
	}
	list, err := parseChunkList(b)
	if err != nil {
		return nil, fmt.Errorf("chunk list %s: %w", d, err)
	}
	return list, nil
}
