package cas

import (
	"errors"
	"fmt"
)

const (
	// rememberFrom is the size in bytes from which a file's content is
	// remembered, so that reading it again after a change is fast.
	rememberFrom = 32 << 20
	// stateEvery is about how many bytes lie between two states of the whole
	// file's hash that are remembered.
	stateEvery = 32 << 20
)

// readLarge stores a file that is kept in chunks. was is the chunk list that
// the file had when it was read last, or zero.
func (w *walker) readLarge(n *node, fd int, h holes, was Digest) (int64, error) {
	if n.id.size < w.store.cfg.rememberFrom && !h.sparse {
		return w.readChunks(n, fd)
	}
	size, err := w.readStream(n, fd, h, was)
	if errors.Is(err, errMemoryStale) {
		n.file = nil
		return w.readChunks(n, fd)
	}
	return size, err
}

// readChunks reads the file from its start to its end.
func (w *walker) readChunks(n *node, fd int) (int64, error) {
	buf := largeBuffers.Get().(*[2 * ChunkedFrom]byte)
	defer largeBuffers.Put(buf)
	pipe := newChunkPipe(w.store.cfg.Workers, newWholeHash(), nil, w.putChunk)
	list, err := pipe.cutInto(&fdReader{w: w, fd: fd, length: n.id.size}, buf[:])
	if err != nil {
		return 0, err
	}
	return w.putList(n, list)
}

// putChunk stores a chunk, which was read anew or is remembered.
func (w *walker) putChunk(j *chunkJob) error {
	if j.known {
		if w.store.hit(j.digest, roleBlob) {
			return nil
		}
		if got := DigestOf(j.chunk()); got != j.digest { // it goes to the store again, hence make sure
			return fmt.Errorf("remembered chunk %s is %s: %w", j.digest, got, errMemoryStale)
		}
	}
	return asStoreError(w.put(KindBlob, j.digest, j.chunk()))
}

func (w *walker) putList(n *node, list *chunkList) (int64, error) {
	n.digest = list.whole
	content := list.marshal()
	n.file = &fileExtra{chunks: DigestOf(content)}
	return list.size, asStoreError(w.put(KindChunkList, n.file.chunks, content))
}

// readStream reads the file with the help of what is remembered of it and of
// its holes. errMemoryStale means that it is to be read without.
func (w *walker) readStream(n *node, fd int, h holes, was Digest) (int64, error) {
	memories := w.store.caches.memories
	var key *macKey
	if n.id.size >= w.store.cfg.rememberFrom {
		key = memories.key()
	}
	s := &chunkStream{stopped: w.stop, fd: fd, size: n.id.size, holes: h, key: key}
	whole := wholeHash{reread: s.reread}
	if key != nil {
		s.memory, whole.every = memories.load(was), w.store.cfg.stateEvery
		whole.memory = s.memory
	}
	pipe := newChunkPipe(w.store.cfg.Workers, whole, key, w.putChunk)
	s.start(w.store.cfg.Workers)
	list, err := pipe.finish((&chunkCutter{stream: s, pipe: pipe}).run())
	s.close()
	if err != nil {
		return 0, err
	}
	size, err := w.putList(n, list)
	if err == nil && key != nil {
		memories.keep(pipe.memory(n.file.chunks, list), s.memory)
	}
	return size, err
}

// reread returns remembered chunk i, which is still where it was.
func (s *chunkStream) reread(i int) ([]byte, error) {
	ref := s.memory.list.chunks[i]
	b := make([]byte, min(ref.size+1, s.size-ref.off))
	if err := readFullAt(s.fd, b, ref.off); err != nil {
		return nil, err
	}
	s.holes.clear(b, ref.off)
	if s.key.of(b) != s.memory.macs[i] {
		return nil, errMemoryStale
	}
	return b[:ref.size], nil
}

// memory is what is to be remembered of the file that the pipe read.
func (p *chunkPipe) memory(d Digest, list *chunkList) *chunkMemory {
	m := &chunkMemory{digest: d, list: list, macs: make([]chunkMAC, len(p.jobs)), mids: p.whole.mids}
	for i, j := range p.jobs {
		m.macs[i] = j.mac
	}
	return m
}
