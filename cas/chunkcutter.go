package cas

import (
	"errors"
	"io"
)

// chunkCutter makes the chunks of a large file that a chunkStream reads:
// remembered ones where their MACs say so, zeros in holes, and what the
// search for cuts finds elsewhere. The chunks are the same that fastCDC.each
// makes of the file's bytes.
type chunkCutter struct {
	stream *chunkStream
	pipe   *chunkPipe
	byMAC  map[chunkMAC]int // of the remembered chunks; made when first needed

	off    int64      // here the next chunk begins
	queue  []*segment // that end behind off
	window []byte     // a copy of what is searched, from winOff on
	winOff int64
}

// run sends all chunks to the pipe.
func (c *chunkCutter) run() error {
	for c.off < c.stream.size {
		x, err := c.head()
		if err != nil {
			return err
		}
		switch {
		case x.equal && x.off == c.off:
			err = c.sendSegment(x)
		case c.stream.holes.at(c.off) > storeMaxChunk:
			err = c.sendZeros()
		default:
			err = c.search()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// head returns the piece that holds off, read.
func (c *chunkCutter) head() (*segment, error) {
	for len(c.queue) > 0 && c.queue[0].off+int64(c.queue[0].size) <= c.off {
		c.queue[0].free()
		c.queue = c.queue[1:]
	}
	if len(c.queue) == 0 {
		if _, err := c.pull(); err != nil {
			return nil, err
		}
		return c.head()
	}
	return c.queue[0], c.queue[0].wait()
}

func (c *chunkCutter) pull() (*segment, error) {
	x, err := c.stream.pull()
	if err != nil {
		return nil, err
	}
	c.queue = append(c.queue, x)
	return x, x.wait()
}

// sendSegment sends a remembered chunk; its buffer goes with it.
func (c *chunkCutter) sendSegment(x *segment) error {
	j := &chunkJob{buf: x.buf, bytes: x.bytes, size: x.size, mac: x.mac, hasMAC: true,
		digest: c.stream.memory.list.chunks[x.index].digest}
	x.buf, x.bytes = nil, nil
	c.queue = c.queue[1:]
	c.off += int64(j.size)
	return c.pipe.send(j)
}

func (c *chunkCutter) sendZeros() error {
	z := zeroes()
	c.off += int64(z.size)
	return c.pipe.send(&chunkJob{bytes: z.bytes[:z.size+1], size: z.size, digest: z.digest})
}

// search finds where the next chunk ends. If it is a remembered one at
// another place, those behind it are expected there too.
func (c *chunkCutter) search() error {
	b, err := c.ahead()
	if err != nil {
		return err
	}
	n := storeCDC.cut(b[:min(len(b), storeMaxChunk)])
	j := copyChunk(b[:min(len(b), n+1)], n)
	if m := c.stream.memory; m != nil {
		j.mac, j.hasMAC = c.pipe.key.of(j.bytes), true
		if i, ok := c.find(j); ok {
			j.digest = m.list.chunks[i].digest
		}
	}
	c.off += int64(n)
	return c.pipe.send(j)
}

// find looks for the chunk among the remembered ones.
func (c *chunkCutter) find(j *chunkJob) (int, bool) {
	m := c.stream.memory
	if c.byMAC == nil {
		c.byMAC = make(map[chunkMAC]int, len(m.macs))
		for i, mac := range m.macs {
			c.byMAC[mac] = i
		}
	}
	i, ok := c.byMAC[j.mac]
	if !ok || m.list.chunks[i].size != int64(j.size) {
		return 0, false
	}
	if !c.expected(j) {
		c.stream.delta.Store(c.off - m.list.chunks[i].off)
	}
	return i, true
}

// expected reports whether the chunk is where the stream expects it, which
// need not be the only place of it in the file.
func (c *chunkCutter) expected(j *chunkJob) bool {
	m := c.stream.memory
	was := c.off - c.stream.delta.Load()
	if was < 0 || was >= m.list.size {
		return false
	}
	i := m.list.at(was)
	return m.list.chunks[i].off == was && m.macs[i] == j.mac
}

// ahead returns the bytes from off on: a longest chunk and one byte more, or
// all that is left.
func (c *chunkCutter) ahead() ([]byte, error) {
	if c.window == nil {
		c.window = make([]byte, 0, 2*storeMaxChunk+plainSegment)
	}
	if c.off > c.winOff+int64(len(c.window)) || c.off < c.winOff {
		c.window, c.winOff = c.window[:0], c.off
	}
	for c.winOff+int64(len(c.window)) <= min(c.off+storeMaxChunk, c.stream.size-1) {
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
	return c.window[c.off-c.winOff:], nil
}

// fill adds to the window what follows it, as far as there is room.
func (c *chunkCutter) fill() error {
	if cap(c.window)-len(c.window) < plainSegment {
		n := copy(c.window, c.window[c.off-c.winOff:])
		c.window, c.winOff = c.window[:n], c.off
	}
	end := c.winOff + int64(len(c.window))
	x, err := c.covering(end)
	if err != nil {
		return err
	}
	rest := x.bytes[end-x.off : x.size]
	c.window = append(c.window, rest[:min(len(rest), cap(c.window)-len(c.window))]...)
	return nil
}

// covering returns the piece that holds off, which is not before the queue.
func (c *chunkCutter) covering(off int64) (*segment, error) {
	for _, x := range c.queue {
		if off < x.off+int64(x.size) {
			return x, x.wait()
		}
	}
	for {
		x, err := c.pull()
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil || off < x.off+int64(x.size) {
			return x, err
		}
	}
}
