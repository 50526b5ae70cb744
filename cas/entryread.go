package cas

import (
	"errors"
	"slices"

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

// read fills entry i of d, a file or symlink. Of what it was before only the
// chunk list is of use. It looks at most readTries times at something that keeps changing.
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
			w.giveBack(n.attrs.bytes())
			*n = node{name: n.name, id: id, file: n.lastContent(&id)}
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
	was, h := n.chunks(), holes{}
	n.file = nil
	if before.Blocks*512 < before.Size {
		h = findHoles(fd, before.Size)
	}
	w.giveBack(n.attrs.bytes()) // of an earlier try
	n.attrs = w.readAttrs(fd)
	size, err := w.readContent(n, fd, h, was)
	if err != nil {
		return false, err
	}
	if h.sparse {
		n.file = firstNonNil(n.file)
		n.file.sparse, n.file.extents = true, h.data
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
