package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// recoverPacks brings the index up to the packs: it rebuilds the runs that are
// missing, and finds the end of the open pack. That is the last one, if it has
// no run and meta.db does not know it as sealed. The good runs were loaded.
// Without meta.db's knowledge the open pack ends behind its last good record.
func (s *Store) recoverPacks(ctx context.Context, seqs []uint64, metaLost bool) error {
	top, err := s.meta.epoch("top")
	if err != nil {
		return err
	}
	sealed, err := s.meta.epoch("sealed")
	if err != nil {
		return err
	}
	committed, err := s.meta.committedPacks()
	if err != nil {
		return err
	}
	least := slices.Max(append(committed, top))             // there was one of this number
	s.writer.seq = max(least, sealed, s.index.lastSealed()) // numbers are never used again
	for i, seq := range seqs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.recoverPack(seq, i == len(seqs)-1 && seq >= least && seq > sealed, metaLost); err != nil {
			return fmt.Errorf("%s: %w", packName(seq), err)
		}
	}
	s.index.sortRuns()
	if last := s.index.lastSealed(); last > sealed {
		return s.meta.update(func(tx *metaTx) error { return markSealed(tx, last) })
	}
	return nil
}

// recoverPack indexes a pack that no run covers; mayBeOpen says whether it can
// be the one that was being written.
func (s *Store) recoverPack(seq uint64, mayBeOpen, metaLost bool) error {
	if s.index.covers(seq) {
		s.writer.seq = max(s.writer.seq, seq)
		return nil
	}
	dead, err := s.meta.deadOffsets(seq)
	switch {
	case err != nil:
		return err
	case mayBeOpen && len(dead) == 0:
		return s.recoverOpenPack(seq, metaLost)
	}
	return s.rebuildSealed(seq)
}

// recoverOpenPack finds the end of the pack that was being written. Records
// that were never made durable may be torn: from the first of these on, the
// pack is cut. Damage before the durable end is another matter: nothing is
// cut there, and the pack is sealed as it is.
func (s *Store) recoverOpenPack(seq uint64, metaLost bool) error {
	durable, err := s.meta.durableEnd(seq)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.packDir(), packName(seq)), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	size, err := s.checkPackFile(f, seq)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if metaLost {
		if durable, err = lastGood(f, size); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if size <= packHeaderSize && durable == 0 {
		s.writer.seq = max(s.writer.seq, seq-1) // nothing in it: it is made anew when needed
		return errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if size < durable {
		s.log.Error("pack is shorter than what was committed", "pack", packName(seq), "size", size, "committed", durable)
	}
	end, damaged, err := s.scanOpenPack(f, seq, durable, size)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		// Records beyond the durable end may be in the page cache only.
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.writer.resume(f, seq, end, end)
	if damaged {
		return s.writer.withSealed(func() error { return nil })
	}
	return nil
}

// lastGood returns the end of the pack's last good record, 0 if it has none.
func lastGood(f *os.File, size int64) (end int64, err error) {
	err = newPackScanner(f, packHeaderSize, size).scanAll(func(rec scanned) error {
		end = rec.off + recordHeaderSize + int64(rec.header.stored)
		return nil
	}, func(*damage) {})
	return end, err
}

func (s *Store) scanOpenPack(f *os.File, seq uint64, durable, size int64) (end int64, damaged bool, err error) {
	sc := newPackScanner(f, packHeaderSize, size)
	end = packHeaderSize
	for {
		rec, err := sc.next()
		var d *damage
		isDamage := errors.As(err, &d)
		switch {
		case errors.Is(err, io.EOF):
			return max(end, min(durable, size)), damaged, nil
		case isDamage && d.off >= durable:
			s.log.Debug("cut the unfinished end of the open pack", "pack", packName(seq), "from", d.off, "size", size)
			return d.off, damaged, nil
		case isDamage:
			damaged = true
			s.warnDamage(seq, d)
			if e, ok := d.indexable(seq); ok {
				s.index.add(e.digest, e.loc)
			}
			if sc.off > d.off {
				continue
			}
			if found, err := sc.resync(); err != nil || !found {
				return max(end, min(durable, size)), damaged, err
			}
		case err != nil:
			return 0, damaged, err
		default:
			s.index.add(rec.header.digest, rec.loc(seq))
			end = sc.off
		}
	}
}
