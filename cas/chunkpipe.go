package cas

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"sync"
	"sync/atomic"
)

// chunkPipe spreads the work on a large file's chunks: the caller cuts, one
// goroutine hashes the whole, a few hash and store the chunks.
type chunkPipe struct {
	put   func(d Digest, chunk []byte) error
	whole hash.Hash
	order chan *chunkJob // to the whole file's hash
	work  chan *chunkJob
	wg    sync.WaitGroup
	jobs  []*chunkJob

	failed atomic.Bool
	mu     sync.Mutex
	err    error
}

// chunkJob is one chunk on its way. Its buffer goes back when both have done
// with it.
type chunkJob struct {
	buf    *[storeMaxChunk]byte
	size   int
	digest Digest
	uses   atomic.Int32
}

const storeMaxChunk = 2 << 20

var chunkBuffers = sync.Pool{New: func() any { return new([storeMaxChunk]byte) }}

func newChunkPipe(workers int, put func(Digest, []byte) error) *chunkPipe {
	p := &chunkPipe{put: put, whole: sha256.New(), order: make(chan *chunkJob, 2*workers), work: make(chan *chunkJob, 2*workers)}
	p.wg.Go(p.hashWhole)
	for range workers {
		p.wg.Go(p.storeChunks)
	}
	return p
}

// add takes a copy of the next chunk.
func (p *chunkPipe) add(chunk []byte) error {
	if p.failed.Load() {
		return errWalkStopped
	}
	j := &chunkJob{buf: chunkBuffers.Get().(*[storeMaxChunk]byte), size: len(chunk)}
	copy(j.buf[:], chunk)
	j.uses.Store(2)
	p.jobs = append(p.jobs, j)
	p.order <- j
	p.work <- j
	return nil
}

func (p *chunkPipe) hashWhole() {
	for j := range p.order {
		p.whole.Write(j.buf[:j.size])
		j.done()
	}
}

func (p *chunkPipe) storeChunks() {
	for j := range p.work {
		if !p.failed.Load() {
			chunk := j.buf[:j.size]
			j.digest = DigestOf(chunk)
			if err := p.put(j.digest, chunk); err != nil {
				p.fail(err)
			}
		}
		j.done()
	}
}

func (j *chunkJob) done() {
	if j.uses.Add(-1) == 0 {
		chunkBuffers.Put(j.buf)
		j.buf = nil
	}
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
	p.whole.Sum(list.whole.sum[:0])
	for _, j := range p.jobs {
		list.add(j.digest, j.size)
	}
	return list, nil
}

// cutInto cuts r into chunks for the pipe.
func (p *chunkPipe) cutInto(r io.Reader, buf []byte) (*chunkList, error) {
	return p.finish(storeCDC.each(r, buf, p.add))
}
