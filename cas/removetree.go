package cas

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory of which no one else makes use, also where
// modes below it would keep an ordinary user out, and paths are longer than the
// kernel takes.
func RemoveTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	top, err := openToRemove(unix.AT_FDCWD, dir)
	if err != nil {
		return fmt.Errorf("remove %.200q: %w", dir, err)
	}
	r := treeRemover{top: top}
	err = r.all()
	if closeErr := unix.Close(top); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Remove(dir)
	}
	if err != nil { // without the path below dir, which may be of any length
		return fmt.Errorf("remove %.200q: %w", dir, err)
	}
	return nil
}

// treeRemover empties a directory. What lies deep is first moved up, so that
// the descriptors it holds are bounded.
type treeRemover struct {
	top   int
	moved int
}

// mostHeld bounds the directories that are open at once.
const mostHeld = 64

func (r *treeRemover) all() error {
	for {
		before := r.moved
		if err := r.empty(r.top, 0); err != nil {
			return err
		}
		if r.moved == before {
			return nil
		}
	}
}

func (r *treeRemover) empty(fd, depth int) error {
	names, err := namesIn(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := unix.Unlinkat(fd, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = r.dir(fd, name, depth)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (r *treeRemover) dir(parent int, name string, depth int) error {
	fd, err := openToRemove(parent, name)
	if err != nil {
		return err
	}
	if depth == mostHeld {
		r.moved++
		err = unix.Renameat(parent, name, r.top, rand.Text()) // a name that nobody could foresee and take
		return errors.Join(err, unix.Close(fd))
	}
	if err := errors.Join(r.empty(fd, depth+1), unix.Close(fd)); err != nil {
		return err
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

func namesIn(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), "")
	names, err := f.Readdirnames(-1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, errors.Join(err, f.Close())
}

// openToRemove opens a directory, never through a symlink, and lets its owner
// list and change it.
func openToRemove(parent int, name string) (int, error) {
	const owner, flags = 0o700, unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	path, err := unix.Openat(parent, name, unix.O_PATH|flags, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(path, &st)
	if err == nil && st.Mode&owner != owner { // the descriptor's own name leads nowhere else
		err = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", path), owner)
	}
	if closeErr := unix.Close(path); err == nil {
		err = closeErr
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat(parent, name, unix.O_RDONLY|flags, 0)
}
