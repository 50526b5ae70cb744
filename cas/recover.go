package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// recoverPacks brings the index up to the packs: it rebuilds the runs that are
// missing, and finds the end of the open pack. That is the last one, if it has
// no run and meta.db does not know it as sealed. The good runs were loaded.
func (s *Store) recoverPacks(ctx context.Context, seqs []uint64) error {
	top, err := s.meta.epoch("top")
	if err != nil {
		return err
	}
	sealed, err := s.meta.epoch("sealed")
	if err != nil {
		return err
	}
	s.writer.seq = max(top, sealed) // numbers are never used again
	for i, seq := range seqs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.recoverPack(seq, i == len(seqs)-1 && seq >= top && seq > sealed); err != nil {
			return fmt.Errorf("%s: %w", packName(seq), err)
		}
	}
	s.index.sortRuns()
	if last := s.index.lastSealed(); last > sealed {
		return s.meta.update(func(tx *bbolt.Tx) error { return markSealed(tx, last) })
	}
	return nil
}

// recoverPack indexes a pack that no run covers; mayBeOpen says whether it can
// be the one that was being written.
func (s *Store) recoverPack(seq uint64, mayBeOpen bool) error {
	if s.index.covers(seq) {
		s.writer.seq = max(s.writer.seq, seq)
		return nil
	}
	dead, err := s.meta.deadOffsets(seq)
	switch {
	case err != nil:
		return err
	case mayBeOpen && len(dead) == 0:
		return s.recoverOpenPack(seq)
	}
	return s.rebuildSealed(seq)
}

// recoverOpenPack finds the end of the pack that was being written. Records
// that were never made durable may be torn: from the first of these on, the
// pack is cut. Damage before the durable end is another matter: nothing is
// cut there, and the pack is sealed as it is.
func (s *Store) recoverOpenPack(seq uint64) error {
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

// recoverHeads fills a new meta.db from the commit objects in the packs: each
// head's commit with the highest epoch, then sequence.
func (s *Store) recoverHeads(ctx context.Context) error {
	latest := make(map[string]Head)
	err := s.eachCommit(ctx, func(c Commit) {
		h, ok := latest[c.Head]
		if !ok || c.Epoch > h.Epoch || c.Epoch == h.Epoch && c.Seq > h.Seq {
			latest[c.Head] = Head{Name: c.Head, Commit: c.Digest, Tree: c.Tree, Epoch: c.Epoch, Seq: c.Seq, Source: c.Source}
		}
	})
	if err != nil {
		return fmt.Errorf("recover heads: %w", err)
	}
	s.log.Warn("meta.db was lost; heads were rebuilt from commits", "heads", len(latest))
	return s.meta.update(func(tx *bbolt.Tx) error {
		for name, h := range latest {
			if err := tx.Bucket(bucketHeads).Put([]byte(name), h.marshal()); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachCommit calls fn for the good records that were written as commits.
func (s *Store) eachCommit(ctx context.Context, fn func(Commit)) error {
	return s.scanPacks(ctx, func(seq uint64, sc *packScanner) error {
		return sc.scanAll(func(rec scanned) error {
			if rec.header.kind != KindCommit {
				return nil
			}
			if content, err := rec.header.open(rec.payload); err == nil {
				if c, err := parseCommit(content); err == nil {
					c.Digest = rec.header.digest
					fn(c)
				}
			}
			return ctx.Err()
		}, func(d *damage) { s.warnDamage(seq, d) })
	})
}
