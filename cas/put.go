package cas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// PutFile stores what r gives, of any size, and returns its entry: type, size,
// digest and chunk list. It is durable after Sync or the next Commit.
func (s *Store) PutFile(ctx context.Context, r io.Reader) (Entry, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Entry{}, err
	}
	defer release()
	defer s.session()()
	x, err := s.putFile(&contextReader{ctx, r})
	if err != nil {
		return Entry{}, fmt.Errorf("put file: %w", err)
	}
	return x, nil
}

func (s *Store) putFile(r io.Reader) (Entry, error) {
	buf := largeBuffers.Get().(*[2 * ChunkedFrom]byte)
	defer largeBuffers.Put(buf)
	x := Entry{Type: TypeFile, Digest: DigestOf(nil)}
	n, err := io.ReadFull(r, buf[:ChunkedFrom])
	switch {
	case errors.Is(err, io.EOF):
		return x, nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		x.Size, x.Digest = int64(n), DigestOf(buf[:n])
		_, err := s.put(KindBlob, x.Digest, buf[:n])
		return x, err
	case err != nil:
		return x, err
	}
	pipe := newChunkPipe(s.cfg.Workers, newWholeHash(), nil, func(j *chunkJob) error {
		_, err := s.put(KindBlob, j.digest, j.chunk())
		return err
	})
	list, err := pipe.cutInto(io.MultiReader(bytes.NewReader(slices.Clone(buf[:n])), r), buf[:])
	if err != nil {
		return x, err
	}
	content := list.marshal()
	x.Size, x.Digest, x.Chunks = list.size, list.whole, DigestOf(content)
	_, err = s.put(KindChunkList, x.Chunks, content)
	return x, err
}

// PutDirectory stores a directory of objects that are in the store: one that is
// not is ErrNotFound. It is durable after Sync, Commit, Pin or Lease.
func (s *Store) PutDirectory(ctx context.Context, d *Directory) (Digest, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Digest{}, err
	}
	defer release()
	defer s.session()()
	content, err := d.marshal()
	if err != nil {
		return Digest{}, fmt.Errorf("put directory: %w", err)
	}
	for _, ref := range d.references() {
		if !s.hit(ref.Digest, roleOf(ref.Kind)) {
			return Digest{}, fmt.Errorf("put directory: object %s: %w", ref.Digest, ErrNotFound)
		}
		if ref.Kind == KindBlob {
			continue
		}
		ok, err := s.whole(ctx, ref.Kind, ref.Digest)
		if err == nil && !ok {
			err = fmt.Errorf("not all of object %s is there: %w", ref.Digest, ErrNotFound)
		}
		if err != nil {
			return Digest{}, fmt.Errorf("put directory: %w", err)
		}
	}
	digest := DigestOf(content)
	if _, err := s.put(KindDirectory, digest, content); err != nil {
		return Digest{}, fmt.Errorf("put directory: %w", err)
	}
	s.made(digest)
	return digest, nil
}

// contextReader ends with ctx.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as the read
	r   io.Reader
}

// Read implements io.Reader.
func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
