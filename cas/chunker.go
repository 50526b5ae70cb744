package cas

import (
	"crypto/md5"
	"encoding/binary"
	"errors"
	"io"
)

// fastCDC cuts a stream at places that its content decides, so that an edit
// moves only the cuts beside it. It is FastCDC (Xia and others, 2020) with
// normalization level 2 and the gear table of the Remote Execution API's
// FastCDC2020. Its cut points are compared with another implementation's at
// the sizes and seeds of that API's test vectors.
type fastCDC struct {
	min, avg, max int
	small, large  uint64 // masks before and after avg bytes
	seed          uint64
}

// AverageChunk is the average size in bytes of a large file's chunks. They have
// a quarter of it at least, but for the last one, and four times as much at most.
const AverageChunk = 512 << 10

// storeCDC is the cutting that chunk lists of version 1 use; it never changes.
var storeCDC = fastCDC{
	min: AverageChunk / 4, avg: AverageChunk, max: 4 * AverageChunk,
	small: 0x0000d91767537000, large: 0x0000d90703537000, // 21 and 17 bits
}

// gear is BE64(MD5(64 copies of byte i)[:8]) for each i.
var gear = makeGear()

func makeGear() (table [256]uint64) {
	var block [64]byte
	for i := range table {
		for j := range block {
			block[j] = byte(i)
		}
		sum := md5.Sum(block[:])
		table[i] = binary.BigEndian.Uint64(sum[:8])
	}
	return table
}

// cut returns the length of the first chunk of b, which holds at least max
// bytes or all that is left. The byte at which the hash matches starts the
// next chunk.
func (c *fastCDC) cut(b []byte) int {
	if len(b) <= c.min {
		return len(b)
	}
	b = b[:min(len(b), c.max)]
	// Bytes count in pairs, as in the published algorithm: an odd last byte
	// is not looked at.
	centre, end := min(len(b), c.avg)&^1, len(b)&^1
	hash := uint64(0)
	i := c.min &^ 1
	for ; i < centre; i++ {
		hash = hash<<1 + (gear[b[i]] ^ c.seed)
		if hash&c.small == 0 {
			return i
		}
	}
	for ; i < end; i++ {
		hash = hash<<1 + (gear[b[i]] ^ c.seed)
		if hash&c.large == 0 {
			return i
		}
	}
	return len(b)
}

// each calls fn with each chunk of r in turn; the slice is valid during the
// call. buf must hold at least 2*max bytes.
func (c *fastCDC) each(r io.Reader, buf []byte, fn func(chunk []byte) error) error {
	have := 0
	for atEnd := false; ; {
		if !atEnd {
			n, err := io.ReadFull(r, buf[have:])
			have += n
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				atEnd = true
			} else if err != nil {
				return err
			}
		}
		rest := buf[:have]
		for len(rest) >= c.max || atEnd && len(rest) > 0 {
			n := c.cut(rest)
			if err := fn(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		if atEnd {
			return nil
		}
		have = copy(buf, rest)
	}
}
