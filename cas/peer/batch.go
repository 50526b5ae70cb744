package peer

import (
	"context"

	"skerry.internal/cas"
)

// MaxBatch is how many objects one request may name.
const MaxBatch = 4096

// Batch names the objects that are asked for, all different.
type Batch struct {
	Directories, ChunkLists, Blobs []cas.Digest
}

// Len is the number of objects.
func (b *Batch) Len() int { return len(b.Directories) + len(b.ChunkLists) + len(b.Blobs) }

// wanted is an object as what it is asked for.
type wanted struct {
	kind   cas.Kind
	digest cas.Digest
}

func (b *Batch) each(fn func(wanted) error) error {
	for _, part := range []struct {
		kind    cas.Kind
		digests []cas.Digest
	}{{cas.KindDirectory, b.Directories}, {cas.KindChunkList, b.ChunkLists}, {cas.KindBlob, b.Blobs}} {
		for _, d := range part.digests {
			if err := fn(wanted{part.kind, d}); err != nil {
				return err
			}
		}
	}
	return nil
}

func batchOf(refs []cas.Ref) Batch {
	var b Batch
	for _, r := range refs {
		switch r.Kind {
		case cas.KindDirectory:
			b.Directories = append(b.Directories, r.Digest)
		case cas.KindChunkList:
			b.ChunkLists = append(b.ChunkLists, r.Digest)
		default:
			b.Blobs = append(b.Blobs, r.Digest)
		}
	}
	return b
}

// Slice is a part of an answer.
type Slice struct {
	// Records are pack records back to back, cut anywhere: the slices of an
	// answer are one string of bytes.
	Records []byte
	Lacking []cas.Digest // will not come: out of the grant's reach, or absent
	Damaged []cas.Digest // the source has them and cannot read them
	Plan    *Totals      // first: what is going to come
	Done    *Totals      // last: what came
}

// Totals counts objects and the bytes of their records.
type Totals struct{ Objects, Bytes int64 }

// Source is what a receiver asks. Fetch may be called several times at once.
type Source interface {
	// Fetch begins the answer to a batch. Canceling ctx ends it.
	Fetch(ctx context.Context, b Batch) (Stream, error)
}

// Stream is the answer to one batch.
type Stream interface {
	// Next returns the next slice, valid until the call after it, or io.EOF
	// behind the last one.
	Next() (Slice, error)
	// Close lets go of the stream, whether it is at its end or not.
	Close() error
}
