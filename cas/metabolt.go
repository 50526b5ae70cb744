package cas

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// guarded runs something on a mapped file. What damage makes it panic about,
// or the kernel refuse to page in, becomes the error that damage makes.
func guarded(damage func(reason string) error, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damage(fmt.Sprint("reading it failed: ", p))
		}
	}()
	return fn()
}

// boltDB is an open bbolt file. After a panic its locks may be held for ever,
// so that it is not touched again.
type boltDB struct {
	db   *bbolt.DB
	file *os.File
	dead atomic.Pointer[MetaError] // what it panicked about
}

func (b *boltDB) open(path string) error {
	err := b.run(func() (err error) {
		b.db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: time.Second,
			OpenFile: func(name string, flag int, perm os.FileMode) (f *os.File, err error) {
				b.file, err = os.OpenFile(name, flag, perm)
				return b.file, err
			}})
		return err
	})
	if errors.Is(err, berrors.ErrTimeout) {
		err = ErrLocked
	}
	if b.dead.Load() != nil {
		err = errors.Join(err, b.close())
	}
	if err != nil {
		return fmt.Errorf("meta.db: %w", err)
	}
	return nil
}

// run runs fn, which uses the file.
func (b *boltDB) run(fn func() error) error {
	if dead := b.dead.Load(); dead != nil {
		return dead
	}
	return guarded(func(reason string) error {
		dead := &MetaError{Reason: reason}
		b.dead.Store(dead)
		return dead
	}, fn)
}

func (b *boltDB) close() error {
	if b.dead.Load() != nil {
		return b.file.Close() // which frees its lock
	}
	return b.db.Close()
}
