package cas

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const (
	// reserveBytes are kept back so that a collection can work on a full disk.
	reserveBytes = 4 << 20
	// lowSpace is how little may be free before a collection uses the
	// reserve, and frees at once instead of filling the trash.
	lowSpace = 64 << 20
)

func (s *Store) trashDir() string    { return filepath.Join(s.dir, "trash") }
func (s *Store) reservePath() string { return filepath.Join(s.dir, "reserve") }

// trashPacks moves packs out of the way for good and removes their index
// runs. meta.db has them in its trash bucket already; that is cleared.
func (s *Store) trashPacks(seqs []uint64) error {
	if len(seqs) == 0 {
		return nil
	}
	if err := os.MkdirAll(s.trashDir(), 0o700); err != nil {
		return err
	}
	for _, seq := range seqs {
		if err := s.cfg.faults.at("move pack to trash"); err != nil {
			return err
		}
		err := os.Rename(filepath.Join(s.packDir(), packName(seq)), filepath.Join(s.trashDir(), packName(seq)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := s.cfg.faults.at("remove index run"); err != nil {
			return err
		}
		err = os.Remove(filepath.Join(s.indexDir(), indexName(seq, seq)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := errors.Join(syncDir(s.packDir()), syncDir(s.indexDir()), syncDir(s.trashDir())); err != nil {
		return err
	}
	return s.meta.update(func(tx *bbolt.Tx) error {
		var errs []error
		for _, seq := range seqs {
			errs = append(errs, tx.Bucket(bucketTrash).Delete(beBytes(seq)))
		}
		return errors.Join(errs...)
	})
}

// emptyTrash frees the packs that earlier collections removed.
func (s *Store) emptyTrash() error {
	seqs, err := listPacks(s.trashDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, seq := range seqs {
		err = errors.Join(err, s.cfg.faults.at("free pack"), os.Remove(filepath.Join(s.trashDir(), packName(seq))))
	}
	return err
}

// endSweep does at Open what a crash kept a collection from doing: the packs
// in the trash bucket go, and the runs of packs with dead records are made
// anew without them.
func (s *Store) endSweep() error {
	var drop, thin []uint64
	err := s.meta.view(func(tx *bbolt.Tx) error {
		return errors.Join(
			tx.Bucket(bucketTrash).ForEach(func(k, _ []byte) error {
				drop = append(drop, binary.BigEndian.Uint64(k))
				return nil
			}),
			tx.Bucket(bucketDead).ForEach(func(k, _ []byte) error {
				thin = append(thin, binary.BigEndian.Uint64(k))
				return nil
			}))
	})
	if err != nil || len(drop) == 0 {
		return err
	}
	for _, seq := range thin {
		err := os.Remove(filepath.Join(s.indexDir(), indexName(seq, seq)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return s.trashPacks(drop)
}

// useReserve gives the reserve back to the disk if there is little space, and
// reports whether there is.
func (s *Store) useReserve() bool {
	if s.free() >= lowSpace {
		return false
	}
	_ = os.Remove(s.reservePath())
	return true
}

// keepReserve sets the reserve aside again, if there is room for it.
func (s *Store) keepReserve() {
	if s.free() < lowSpace {
		return
	}
	f, err := os.OpenFile(s.reservePath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() >= reserveBytes {
		return
	}
	if unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes) != nil {
		_ = os.Remove(f.Name())
	}
}

// free is what the disk has left for us, in bytes.
func (s *Store) free() int64 {
	var fs unix.Statfs_t
	if unix.Statfs(s.dir, &fs) != nil {
		return lowSpace
	}
	return int64(fs.Bavail) * fs.Bsize
}
