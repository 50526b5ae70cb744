package cas

import (
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	plainSegment = 1 << 20  // is read at once where nothing is known
	minHole      = 64 << 10 // shorter holes are read like data
)

// chunkStream reads a large file ahead, in order, in pieces that are the
// remembered chunks wherever these may be expected, and compares their MACs.
// Pieces in holes are not read at all.
type chunkStream struct {
	stopped func() bool
	fd      int
	size    int64
	holes   holes
	memory  *chunkMemory // nil: nothing is known
	key     *macKey

	delta atomic.Int64 // how far the remembered chunks have moved
	queue chan *segment
	work  chan *segment
	quit  chan struct{}
	wg    sync.WaitGroup
}

// segment is a piece of the file.
type segment struct {
	off   int64
	size  int
	index int          // of the remembered chunk that may be here; -1: none
	buf   *chunkBuffer // nil: zeros
	bytes []byte       // with the byte behind it, if index is not -1
	mac   chunkMAC
	equal bool // it is that chunk
	err   error
	ready chan struct{} // closed when the rest is set
}

// start reads ahead with a few goroutines until close.
func (s *chunkStream) start(workers int) {
	depth := min(2*workers, 8)
	s.queue, s.work, s.quit = make(chan *segment, depth), make(chan *segment, depth), make(chan struct{})
	s.wg.Go(s.plan)
	for range workers {
		s.wg.Go(func() {
			for x := range s.work {
				s.load(x)
				close(x.ready)
			}
		})
	}
}

func (s *chunkStream) close() {
	close(s.quit)
	s.wg.Wait()
}

// plan divides the file.
func (s *chunkStream) plan() {
	defer close(s.queue)
	defer close(s.work)
	for off := int64(0); off < s.size; {
		x := s.next(off)
		off += int64(x.size)
		for _, to := range []chan *segment{s.queue, s.work} {
			select {
			case to <- x:
			case <-s.quit:
				return
			}
		}
	}
}

// next returns the piece at off.
func (s *chunkStream) next(off int64) *segment {
	x := &segment{off: off, index: -1, ready: make(chan struct{})}
	if hole := s.holes.at(off); hole >= minHole {
		x.size = int(min(hole, storeMaxChunk))
		x.bytes = zeroes().bytes[:x.size]
		return x
	}
	limit := min(s.size-off, plainSegment)
	if was := off - s.delta.Load(); s.memory != nil && was >= 0 && was < s.memory.list.size {
		i := s.memory.list.at(was)
		c := &s.memory.list.chunks[i]
		if c.off == was && s.mayBe(i, off) {
			x.index, limit = i, c.size
		} else if c.off < was {
			limit = min(limit, c.off+c.size-was)
		}
	}
	x.size = int(limit)
	return x
}

// mayBe reports whether chunk i, if its bytes and the next one are at off,
// would be cut there now as it was: the last one ends with the file, and
// where others end depends on what is behind them.
func (s *chunkStream) mayBe(i int, off int64) bool {
	end := off + s.memory.list.chunks[i].size
	if s.memory.list.chunks[i].size > storeMaxChunk {
		return false // of no file that this cutting made
	}
	if i == len(s.memory.list.chunks)-1 {
		return end == s.size
	}
	return end+2 <= s.size // an odd last byte is not looked at: see fastCDC.cut
}

// load reads the piece.
func (s *chunkStream) load(x *segment) {
	if s.stopped() {
		x.err = &storeError{errWalkStopped}
		return
	}
	if x.bytes != nil { // zeros
		return
	}
	x.buf = chunkBuffers.Get().(*chunkBuffer)
	want := x.size
	if x.index >= 0 && x.off+int64(want) < s.size {
		want++
	}
	x.bytes = x.buf[:want]
	if x.err = readFullAt(s.fd, x.bytes, x.off); x.err != nil {
		return
	}
	s.holes.clear(x.bytes, x.off)
	if x.index >= 0 {
		x.mac = s.key.of(x.bytes)
		x.equal = x.mac == s.memory.macs[x.index]
	}
}

// readFullAt fills b; a file that is shorter is errMemoryStale.
func readFullAt(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return errMemoryStale
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// pull returns the next piece, or io.EOF.
func (s *chunkStream) pull() (*segment, error) {
	x, ok := <-s.queue
	if !ok {
		return nil, io.EOF
	}
	return x, nil
}

// wait waits until the piece was read.
func (x *segment) wait() error {
	<-x.ready
	return x.err
}

// free gives the buffer back.
func (x *segment) free() {
	if x.buf != nil {
		chunkBuffers.Put(x.buf)
	}
	x.buf, x.bytes = nil, nil
}
