package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// File reads a committed file. Each object it reads is verified against its
// digest. It is safe for concurrent use apart from Read and Seek.
type File struct {
	store *Store
	ctx   context.Context //nolint:containedctx // an io.Reader has no other way to be cancelled
	list  *chunkList
	pos   int64

	mu     sync.Mutex
	cached int // index of the chunk in data, -1 for none
	data   []byte
}

// OpenFile opens the content of a file's entry. Reads end when ctx does.
func (s *Store) OpenFile(ctx context.Context, x Entry) (*File, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if x.Type != TypeFile {
		return nil, fmt.Errorf("open %.200q: it is a %s: %w", x.Name, x.Type, ErrInvalid)
	}
	list := &chunkList{whole: x.Digest}
	if x.Chunks.IsZero() {
		if x.Size > 0 {
			list.add(x.Digest, int(x.Size))
		}
	} else if list, err = s.readChunkList(x.Chunks); err != nil {
		return nil, fmt.Errorf("open %.200q: %w", x.Name, err)
	}
	if list.size != x.Size || list.whole != x.Digest {
		return nil, fmt.Errorf("open %.200q: chunk list %s is of another file: %w", x.Name, x.Chunks, ErrCorrupt)
	}
	return &File{store: s, ctx: ctx, list: list, cached: -1}, nil
}

// Size returns the file's size in bytes.
func (f *File) Size() int64 { return f.list.size }

// chunk returns the content of chunk i.
func (f *File) chunk(i int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cached == i {
		return f.data, nil
	}
	ref := f.list.chunks[i]
	data, err := f.store.GetBytes(f.ctx, ref.digest)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != ref.size {
		return nil, fmt.Errorf("chunk %s has %d bytes, its file says %d: %w", ref.digest, len(data), ref.size, ErrCorrupt)
	}
	f.cached, f.data = i, data
	return data, nil
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d: %w", off, ErrInvalid)
	}
	n := 0
	for n < len(p) {
		if off >= f.list.size {
			return n, io.EOF
		}
		i := f.list.at(off)
		data, err := f.chunk(i)
		if err != nil {
			return n, err
		}
		copied := copy(p[n:], data[off-f.list.chunks[i].off:])
		n += copied
		off += int64(copied)
	}
	return n, nil
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// WriteTo implements io.WriterTo.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	written := int64(0)
	for f.pos < f.list.size {
		i := f.list.at(f.pos)
		data, err := f.chunk(i)
		if err != nil {
			return written, err
		}
		n, err := w.Write(data[f.pos-f.list.chunks[i].off:])
		written += int64(n)
		f.pos += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Seek implements io.Seeker.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.pos
	case io.SeekEnd:
		offset += f.list.size
	default:
		return 0, fmt.Errorf("seek: whence %d: %w", whence, ErrInvalid)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek to %d: %w", offset, ErrInvalid)
	}
	f.pos = offset
	return offset, nil
}

// Close implements io.Closer; it lets go of the chunk in memory.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cached, f.data = -1, nil
	return nil
}
