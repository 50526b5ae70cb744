package cas

import (
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// readTries is how often a file that changes while it is read is read again.
const readTries = 3

// classify says what an error at an entry means: a reason to skip it, that it
// is gone, or that the walk cannot go on.
func classify(err error) (reason SkipReason, gone bool, fatal error) {
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, true, nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return SkipPermission, false, nil
	case errors.Is(err, unix.EXDEV):
		return SkipMount, false, nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO),
		errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL), errors.Is(err, errMoved):
		return SkipChanged, false, nil
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EBADF):
		return 0, false, err
	default:
		return SkipUnreadable, false, nil
	}
}

func lstatAt(dirfd int, name string) (statID, error) {
	var st unix.Stat_t
	for {
		err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != unix.EINTR {
			return statIDOf(&st), err
		}
	}
}

// listNames returns the sorted names in a directory.
func listNames(fd int) ([]string, error) {
	buf := make([]byte, 32<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			slices.Sort(names)
			return slices.Compact(names), nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// read fills entry i of d, a file or symlink of which nothing is known. It
// looks at most readTries times at something that keeps changing.
func (w *walker) read(d *dirWork, fd, i int) {
	n := &d.entries[i]
	now := w.clock() // before the content is read: see statID.racy
	for try := 1; ; try++ {
		stable, err := w.readOnce(n, fd)
		var store *storeError
		if errors.As(err, &store) {
			w.fail(store.err)
			return
		}
		if err == nil && stable {
			n.racy = n.id.racy(now)
			return
		}
		if try < readTries {
			id, statErr := lstatAt(fd, n.name)
			if statErr != nil {
				d.lostRead(w, n, statErr)
				return
			}
			*n = node{name: n.name, id: id}
			continue
		}
		d.lostRead(w, n, err)
		return
	}
}

// lostRead ends the reading of an entry that did not succeed. A file of which
// there is a last reading is kept, marked as unstable.
func (d *dirWork) lostRead(w *walker, n *node, err error) {
	n.racy = true
	if err == nil {
		n.file = firstNonNil(n.file)
		n.file.unstable = true
		return
	}
	reason, gone, fatal := classify(err)
	switch {
	case fatal != nil:
		w.fail(fatal)
	case gone:
		n.name = ""
	default:
		*n = node{name: n.name, id: n.id, skip: reason, racy: true}
	}
}

func firstNonNil(x *fileExtra) *fileExtra {
	if x == nil {
		return &fileExtra{}
	}
	return x
}

// readOnce reads the entry as what n.id says it is and reports whether it
// stayed the same meanwhile.
func (w *walker) readOnce(n *node, dirfd int) (stable bool, err error) {
	switch {
	case n.id.isSymlink():
		n.target, err = readLinkAt(dirfd, n.name)
		return err == nil, err
	case n.id.isRegular():
		return w.readFileOnce(n, dirfd)
	default:
		return false, unix.EINVAL // it became something else: SkipChanged
	}
}

func readLinkAt(dirfd int, name string) (string, error) {
	buf := make([]byte, 256)
	for {
		n, err := unix.Readlinkat(dirfd, name, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
		buf = make([]byte, 4*len(buf))
	}
}

func (w *walker) readFileOnce(n *node, dirfd int) (bool, error) {
	fd, err := w.tree.openFileAt(dirfd, n.name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return false, err
	}
	if n.id = statIDOf(&before); !n.id.isRegular() {
		return false, unix.EINVAL
	}
	w.newFiles.Add(1)
	n.file = nil
	size, err := w.readContent(n, fd)
	if err != nil {
		return false, err
	}
	if before.Blocks*512 < before.Size {
		readExtents(n, fd)
	}
	if err := unix.Fstat(fd, &after); err != nil {
		return false, err
	}
	stable := size == n.id.size && statIDOf(&after) == n.id
	if size != n.id.size { // say what was stored, and where it has no holes nobody knows
		n.id.size = size
		if n.file != nil {
			n.file.sparse, n.file.extents = false, nil
		}
	}
	return stable, nil
}

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
	whole := sha256.New()
	list := &chunkList{}
	err := storeCDC.each(r, buf, func(chunk []byte) error {
		whole.Write(chunk)
		d := DigestOf(chunk)
		list.add(d, len(chunk))
		return asStoreError(w.put(KindBlob, d, chunk))
	})
	if err != nil {
		return 0, err
	}
	whole.Sum(n.digest.sum[:0])
	list.whole = n.digest
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
