package cas

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// reserveBytes are kept back so that a collection can work on a full disk:
	// its first step is to write the index run of the open pack.
	reserveBytes = maxOpenObjects*indexEntrySize + 4<<20
	// lowSpace is how little may be free before a collection uses the
	// reserve, and frees at once instead of filling the trash.
	lowSpace = 64 << 20
	// lowInodes is the same for inodes: the reserve holds one too.
	lowInodes = 16
)

func (s *Store) trashDir() string    { return filepath.Join(s.dir, "trash") }
func (s *Store) reservePath() string { return filepath.Join(s.dir, "reserve") }

// trashPacks moves packs out of the way for good. meta.db has them in its trash
// bucket already.
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
	}
	return errors.Join(syncDir(s.packDir()), syncDir(s.trashDir()))
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

// endSweep brings a collection's durable decision to its end: the packs in the
// trash bucket go, and the index runs that know of dead records are written
// anew without these. It is a collection's last step, and Open's and Rebuild's
// first, should a crash or a failure have kept a collection from it.
func (s *Store) endSweep() error {
	gone, err := s.meta.sweeping()
	if err != nil || gone == nil {
		return err
	}
	for _, run := range s.index.sealedRuns() {
		if set := gone.in(run); set.any {
			s.index.bury(map[*indexRun][]uint64{run: set.bits})
		}
	}
	if err := s.trashPacks(slices.Collect(maps.Keys(gone.packs))); err != nil {
		return err
	}
	for _, run := range s.index.sealedRuns() {
		if err := s.thinRun(run); err != nil {
			return err
		}
	}
	if err := s.cfg.faults.at("index thinned"); err != nil {
		return err
	}
	return s.meta.update(func(tx *metaTx) error {
		errs := []error{tx.del(bucketEpochs, []byte("sweep"))}
		for seq := range gone.packs {
			errs = append(errs, tx.del(bucketTrash, beBytes(seq)))
		}
		return errors.Join(errs...)
	})
}

// thinRun writes a run anew without its dead entries, if it has any. A run of
// which no pack is left goes.
func (s *Store) thinRun(run *indexRun) error {
	if run.deadCount == 0 {
		return nil
	}
	if err := s.cfg.faults.at("thin index run"); err != nil {
		return err
	}
	if run.deadCount == run.count && !s.anyPack(run.first, run.last) {
		path := run.path
		if err := s.index.exchange(map[*indexRun]*indexRun{run: nil}); err != nil {
			return err
		}
		if err := s.cfg.faults.at("remove index run"); err != nil {
			return err
		}
		return errors.Join(os.Remove(path), syncDir(s.indexDir()))
	}
	now, err := createIndexRun(s.indexDir(), run.first, run.last, liveEntries([]*indexRun{run}, goOn), s.cfg.faults)
	if err != nil {
		return err
	}
	return s.index.exchange(map[*indexRun]*indexRun{run: now})
}

// goOn is for work that nothing stops.
func goOn() error { return nil }

// anyPack reports whether there is a pack from first to last.
func (s *Store) anyPack(first, last uint64) bool {
	seqs, err := listPacks(s.packDir())
	return err != nil || slices.ContainsFunc(seqs, func(seq uint64) bool { return first <= seq && seq <= last })
}

// sweeping returns what the last collection decided to be dead, or nil when
// all index runs are without it.
func (m *metaDB) sweeping() (gone *deadRecords, err error) {
	d := &deadRecords{packs: make(map[uint64]bool), offsets: make(map[uint64][]uint64)}
	err = m.view(func(tx *metaTx) error {
		err := tx.each(bucketTrash, func(k, _ []byte) error {
			d.packs[beUint64(k)] = true
			return nil
		})
		if err != nil || len(d.packs) == 0 && leUint64(tx.get(bucketEpochs, []byte("sweep"))) == 0 {
			return err
		}
		gone = d
		return tx.each(bucketDead, func(k, v []byte) error {
			d.offsets[beUint64(k)] = parseOffsets(v)
			return nil
		})
	})
	return gone, err
}

// useReserve gives the reserve back to the disk if there is little space, and
// reports whether there is.
func (s *Store) useReserve() bool {
	if !s.isLow() {
		return false
	}
	_ = os.Remove(s.reservePath())
	return true
}

// keepReserve sets the reserve aside again, if there is room for it.
func (s *Store) keepReserve() {
	if s.isLow() {
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

// isLow reports whether the disk has little left for us.
func (s *Store) isLow() bool {
	var fs unix.Statfs_t
	if unix.Statfs(s.dir, &fs) != nil {
		return false
	}
	return int64(fs.Bavail)*fs.Bsize < lowSpace || fs.Files > 0 && fs.Ffree < lowInodes // some count no inodes
}
