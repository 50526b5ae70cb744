package cas

import (
	"crypto/sha256"
	"encoding"
	"errors"
	"hash"
)

// errMemoryStale: what was remembered of a file and what is read of it do not
// go together, for instance since it changes. It is to be read without.
var errMemoryStale = errors.New("the file is not as it was a moment ago")

// wholeHash makes the digest of a whole file of its chunks. As long as they
// are the remembered ones from the file's start, it only counts; from the
// first other one on it hashes, beginning at the last remembered state.
type wholeHash struct {
	memory *chunkMemory
	// reread returns remembered chunk i, which the file held when it was
	// read a moment ago.
	reread func(i int) ([]byte, error)
	every  int64 // bytes between two states that are kept; 0: none are

	hash   hash.Hash // nil as long as it only counts
	chunks int
	since  int64 // bytes since the last state
	mids   []midState
}

// add takes the next chunk.
func (w *wholeHash) add(j *chunkJob) error {
	if w.hash == nil && w.remembered(j) {
		w.chunks++
		return nil
	}
	if err := w.resume(); err != nil {
		return err
	}
	w.write(j.chunk(), w.chunks+1)
	w.chunks++
	return nil
}

// remembered reports whether the job is of the chunk that the file had here.
func (w *wholeHash) remembered(j *chunkJob) bool {
	if w.memory == nil || !j.known || w.chunks >= len(w.memory.list.chunks) {
		return false
	}
	ref := &w.memory.list.chunks[w.chunks]
	return ref.digest == j.digest && ref.size == int64(j.size)
}

// resume begins to hash, with the chunks counted so far.
func (w *wholeHash) resume() error {
	if w.hash != nil {
		return nil
	}
	w.mids, w.hash = w.memory.resumeAt(w.chunks)
	from := 0
	if len(w.mids) > 0 {
		from = w.mids[len(w.mids)-1].chunks
	}
	for i := from; i < w.chunks; i++ {
		b, err := w.reread(i)
		if err != nil {
			return err
		}
		w.write(b, i+1)
	}
	return nil
}

// write hashes a chunk and keeps the state now and then; n is how many chunks
// are hashed after it.
func (w *wholeHash) write(b []byte, n int) {
	w.hash.Write(b)
	if w.since += int64(len(b)); w.every == 0 || w.since < w.every {
		return
	}
	if state, err := w.hash.(encoding.BinaryMarshaler).MarshalBinary(); err == nil {
		w.mids = append(w.mids, midState{n, state})
	}
	w.since = 0
}

// sum ends the hash.
func (w *wholeHash) sum() (d Digest, err error) {
	if w.hash == nil && w.memory != nil && w.chunks == len(w.memory.list.chunks) {
		w.mids = w.memory.mids
		return w.memory.list.whole, nil
	}
	if err := w.resume(); err != nil {
		return d, err
	}
	w.hash.Sum(d.sum[:0])
	return d, nil
}

func newWholeHash() wholeHash { return wholeHash{hash: sha256.New()} }
