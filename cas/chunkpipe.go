package cas

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// chunkPipe spreads the work on a large file's chunks: the caller cuts, one
// goroutine hashes the whole, a few hash and store the chunks.
type chunkPipe struct {
	put   func(j *chunkJob) error
	key   *macKey // to make the chunks' MACs; nil: none are needed
	whole wholeHash
	order chan *chunkJob // to the whole file's hash
	work  chan *chunkJob
	wg    sync.WaitGroup
	jobs  []*chunkJob

	failed atomic.Bool
	mu     sync.Mutex
	err    error
}

const storeMaxChunk = 2 << 20

// chunkBuffer holds a chunk and the byte behind it.
type chunkBuffer [storeMaxChunk + 1]byte

var chunkBuffers = sync.Pool{New: func() any { return new(chunkBuffer) }}

// chunkJob is one chunk on its way. Its buffer goes back when both have done
// with it.
type chunkJob struct {
	buf    *chunkBuffer // nil: bytes belong to nobody
	bytes  []byte       // the chunk and, unless it is the last, the byte behind it
	size   int
	digest Digest // zero: to be found
	known  bool   // the digest was given, not made of the bytes
	mac    chunkMAC
	hasMAC bool
	uses   atomic.Int32
}

func (j *chunkJob) chunk() []byte { return j.bytes[:j.size] }

// newChunkPipe starts the goroutines; finish ends them. whole is the hash of
// the whole file, which knows what a memory may spare it.
func newChunkPipe(workers int, whole wholeHash, key *macKey, put func(j *chunkJob) error) *chunkPipe {
	p := &chunkPipe{put: put, key: key, whole: whole, order: make(chan *chunkJob, 2*workers), work: make(chan *chunkJob, 2*workers)}
	p.wg.Go(p.hashWhole)
	for range workers {
		p.wg.Go(p.storeChunks)
	}
	return p
}

// add takes a copy of the next chunk, without the byte behind it.
func (p *chunkPipe) add(chunk []byte) error { return p.send(copyChunk(chunk, len(chunk))) }

// copyChunk is a job of a chunk of the given size at the start of b.
func copyChunk(b []byte, size int) *chunkJob {
	j := &chunkJob{buf: chunkBuffers.Get().(*chunkBuffer), size: size}
	j.bytes = j.buf[:copy(j.buf[:], b)]
	return j
}

// send hands a job over.
func (p *chunkPipe) send(j *chunkJob) error {
	if p.failed.Load() {
		return errWalkStopped
	}
	j.known = !j.digest.IsZero()
	j.uses.Store(2)
	p.jobs = append(p.jobs, j)
	p.order <- j
	p.work <- j
	return nil
}

func (p *chunkPipe) hashWhole() {
	for j := range p.order {
		if !p.failed.Load() {
			if err := p.whole.add(j); err != nil {
				p.fail(err)
			}
		}
		j.done()
	}
}

func (p *chunkPipe) storeChunks() {
	for j := range p.work {
		if !p.failed.Load() {
			if err := p.store(j); err != nil {
				p.fail(err)
			}
		}
		j.done()
	}
}

func (p *chunkPipe) store(j *chunkJob) error {
	if !j.known {
		j.digest = DigestOf(j.chunk())
	}
	if p.key != nil && !j.hasMAC {
		j.mac = p.key.of(j.bytes)
	}
	return p.put(j)
}

func (j *chunkJob) done() {
	if j.uses.Add(-1) > 0 {
		return
	}
	if j.buf != nil {
		chunkBuffers.Put(j.buf)
	}
	j.buf, j.bytes = nil, nil
}

func (p *chunkPipe) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.failed.Store(true)
}

// finish waits for all chunks and returns their list. readErr is how cutting
// ended.
func (p *chunkPipe) finish(readErr error) (*chunkList, error) {
	close(p.order)
	close(p.work)
	p.wg.Wait()
	if p.err != nil && (readErr == nil || errors.Is(readErr, errWalkStopped)) {
		return nil, p.err
	}
	if readErr != nil {
		return nil, readErr
	}
	list := &chunkList{}
	for _, j := range p.jobs {
		list.add(j.digest, j.size)
	}
	var err error
	list.whole, err = p.whole.sum()
	return list, err
}

// cutInto cuts r into chunks for the pipe.
func (p *chunkPipe) cutInto(r io.Reader, buf []byte) (*chunkList, error) {
	return p.finish(storeCDC.each(r, buf, p.add))
}
