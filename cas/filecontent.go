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
// many bytes there were, n.id.size at most. What lies in holes is zeros.
func (w *walker) readContent(n *node, fd int, h holes, was Digest) (int64, error) {
	if n.id.size >= ChunkedFrom {
		return w.readLarge(n, fd, h, was)
	}
	r := &fdReader{w: w, fd: fd, length: n.id.size}
	if n.id.size <= smallBuffer {
		buf := smallBuffers.Get().(*[smallBuffer]byte)
		defer smallBuffers.Put(buf)
		return w.readWhole(n, r, buf[:n.id.size], h)
	}
	buf := largeBuffers.Get().(*[2 * ChunkedFrom]byte)
	defer largeBuffers.Put(buf)
	return w.readWhole(n, r, buf[:n.id.size], h)
}

func (w *walker) readWhole(n *node, r io.Reader, buf []byte, h holes) (int64, error) {
	got, err := io.ReadFull(r, buf)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return 0, err
	}
	content := buf[:got]
	h.clear(content, 0)
	n.digest = DigestOf(content)
	if got == 0 {
		return 0, nil // the empty file needs no object
	}
	return int64(got), asStoreError(w.put(KindBlob, n.digest, content))
}
