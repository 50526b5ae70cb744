package cas

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxDirFDs is how many directories of one walk stay open while their
// children wait. Beyond it a directory is closed and found again from the
// root when a child's turn comes.
const maxDirFDs = 256

// errMoved: a directory is not where the walk found it.
var errMoved = errors.New("directory moved during the walk")

// dirTree opens directories below a root by descriptors alone, so that
// neither a path's length nor a directory swapped for a link matters.
type dirTree struct {
	root int // owned by the caller
	open atomic.Int32
	noX  bool // openat2 with RESOLVE_NO_XDEV works
}

// dirRef is a directory of a dirTree. Its descriptor is open while refs > 0.
type dirRef struct {
	tree     *dirTree
	parent   *dirRef // nil for the root
	name     string
	depth    int
	dev, ino uint64

	mu   sync.Mutex
	refs int
	fd   int
}

// acquire returns the directory's descriptor, opening it if need be; each
// acquire needs a release.
func (r *dirRef) acquire() (int, error) {
	if r.parent == nil {
		return r.tree.root, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs == 0 {
		fd, err := r.openFromRoot()
		if err != nil {
			return -1, err
		}
		r.fd = fd
		r.tree.open.Add(1)
	}
	r.refs++
	return r.fd, nil
}

func (r *dirRef) release() {
	if r.parent == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs--; r.refs == 0 {
		_ = unix.Close(r.fd)
		r.tree.open.Add(-1)
	}
}

// adopt gives r its open descriptor, with one reference.
func (r *dirRef) adopt(fd int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fd, r.refs = fd, 1
	r.tree.open.Add(1)
}

// retain adds a reference for children to come, unless too many directories
// are open already, and reports which.
func (r *dirRef) retain() bool {
	if r.parent == nil || r.tree.open.Load() >= maxDirFDs {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refs++
	return true
}

// openFromRoot walks down from the nearest place it may rely on, the root,
// and makes sure to arrive at the same directory as before.
func (r *dirRef) openFromRoot() (int, error) {
	names := make([]string, 0, r.depth)
	for d := r; d.parent != nil; d = d.parent {
		names = append(names, d.name)
	}
	fd, owned := r.tree.root, false
	for i := len(names) - 1; i >= 0; i-- {
		next, err := r.tree.openDirAt(fd, names[i])
		if owned {
			_ = unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd, owned = next, true
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != r.dev || st.Ino != r.ino {
		_ = unix.Close(fd)
		return -1, errors.Join(err, errMoved)
	}
	return fd, nil
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

func (t *dirTree) openDirAt(dirfd int, name string) (int, error) {
	return t.openAt(dirfd, name, openDirFlags)
}

// openFileAt opens what was a regular file a moment ago. Should it have
// become a FIFO, O_NONBLOCK keeps the call from waiting.
func (t *dirTree) openFileAt(dirfd int, name string) (int, error) {
	return t.openAt(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC)
}

// openAt opens one name. Where the kernel can, it also refuses mount points,
// which the device number alone does not tell (bind mounts): EXDEV.
func (t *dirTree) openAt(dirfd int, name string, flags int) (int, error) {
	if t.noX {
		how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS}
		for {
			fd, err := unix.Openat2(dirfd, name, &how)
			if err != unix.EINTR && err != unix.EAGAIN {
				return fd, err
			}
		}
	}
	for {
		fd, err := unix.Openat(dirfd, name, flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func newDirTree(root int) *dirTree {
	t := &dirTree{root: root, noX: true}
	fd, err := t.openAt(root, ".", unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		t.noX = false // no openat2, or a filter that forbids it
		return t
	}
	_ = unix.Close(fd)
	return t
}
