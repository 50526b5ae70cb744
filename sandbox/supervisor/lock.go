package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// errLocked says that a shim holds the execution's lock.
var errLocked = errors.New("execution is locked by its supervisor")

// lockForShim takes the lock that the shim holds for life: on spec.json, without
// which there is nothing to run. The descriptor is open for writing on purpose:
// its close, even by the shim's death, is then an IN_CLOSE_WRITE that waiters
// see.
func lockForShim(dir string) (*os.File, error) {
	return flock(dir, specFile, os.O_RDWR, unix.LOCK_EX|unix.LOCK_NB)
}

// probeLock fails with errLocked while the shim lives. It is shared, so that
// two waiters never take one another for the shim, and open for reading, so
// that it wakes no waiter.
func probeLock(dir string) error {
	f, err := flock(dir, specFile, os.O_RDONLY, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// lockToResolve keeps a shim from starting and other resolvers out, while the
// caller writes a final word (void or exit.json) for an execution without one.
// The resolvers' own lock comes first, so that the shim's lock need only be
// shared and no resolver or waiter is ever mistaken for a shim.
func lockToResolve(dir string) (unlock func(), err error) {
	ours, err := flock(dir, resolveFile, os.O_RDONLY|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	spec, err := flock(dir, specFile, os.O_RDONLY, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) {
		return func() { ours.Close() }, nil // the daemon died before it wrote one
	}
	if err != nil {
		ours.Close()
		return nil, err
	}
	return func() { spec.Close(); ours.Close() }, nil
}

func flock(dir, name string, flags, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock execution: %w", err)
}
