package cas

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// storeError is a failure of the store rather than of the tree.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// errWalkStopped ends a read; the walk has its own error by then.
var errWalkStopped = errors.New("walk stopped")

func asStoreError(err error) error {
	if err == nil {
		return nil
	}
	return &storeError{err}
}

// fdReader reads a file up to a limit, from its start.
type fdReader struct {
	w           *walker
	fd          int
	off, length int64
}

// Read implements io.Reader.
func (r *fdReader) Read(p []byte) (int, error) {
	if r.w.stop() {
		return 0, &storeError{errWalkStopped}
	}
	p = p[:min(int64(len(p)), r.length-r.off)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	for {
		n, err := unix.Pread(r.fd, p, r.off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, io.EOF
		}
		r.off += int64(n)
		return n, nil
	}
}

const smallBuffer = 64 << 10

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([2 * ChunkedFrom]byte) }}
)

// readContent stores the file's content, puts its digest in n and returns how
// many bytes there were, n.id.size at most.
func (w *walker) readContent(n *node, fd int) (int64, error) {
	r := &fdReader{w: w, fd: fd, length: n.id.size}
	if n.id.size <= smallBuffer {
		buf := smallBuffers.Get().(*[smallBuffer]byte)
		defer smallBuffers.Put(buf)
		return w.readWhole(n, r, buf[:n.id.size])
	}
	buf := largeBuffers.Get().(*[2 * ChunkedFrom]byte)
	defer largeBuffers.Put(buf)
	if n.id.size < ChunkedFrom {
		return w.readWhole(n, r, buf[:n.id.size])
	}
	return w.readChunks(n, r, buf[:])
}

func (w *walker) readWhole(n *node, r io.Reader, buf []byte) (int64, error) {
	got, err := io.ReadFull(r, buf)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return 0, err
	}
	content := buf[:got]
	n.digest = DigestOf(content)
	if got == 0 {
		return 0, nil // the empty file needs no object
	}
	return int64(got), asStoreError(w.put(KindBlob, n.digest, content))
}

func (w *walker) readChunks(n *node, r io.Reader, buf []byte) (int64, error) {
	pipe := newChunkPipe(w.store.cfg.Workers, func(d Digest, chunk []byte) error {
		return asStoreError(w.put(KindBlob, d, chunk))
	})
	list, err := pipe.cutInto(r, buf)
	if err != nil {
		return 0, err
	}
	n.digest = list.whole
	content := list.marshal()
	n.file = &fileExtra{chunks: DigestOf(content)}
	return list.size, asStoreError(w.put(KindChunkList, n.file.chunks, content))
}

// readExtents finds where a file with fewer blocks than bytes has its data.
// A file system that cannot tell has no holes.
func readExtents(n *node, fd int) {
	var extents []Extent
	for at := int64(0); at < n.id.size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole is left
		}
		if err != nil || data >= n.id.size {
			if err != nil {
				return
			}
			break
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil || hole <= data {
			return
		}
		hole = min(hole, n.id.size)
		extents = append(extents, Extent{data, hole - data})
		at = hole
	}
	if len(extents) == 1 && extents[0] == (Extent{0, n.id.size}) {
		return
	}
	n.file = firstNonNil(n.file)
	n.file.sparse, n.file.extents = true, extents
}
