package cas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// rebuildSealed indexes a pack that is complete.
func (s *Store) rebuildSealed(seq uint64) error {
	run, err := s.scanSealed(seq)
	if err != nil {
		return err
	}
	s.index.runs = append(s.index.runs, run)
	s.writer.seq = max(s.writer.seq, seq)
	return nil
}

// scanSealed writes the run of a sealed pack from its records. Damaged ones
// are indexed too where their header is good, so that a reader is told of the
// damage rather than that the object is missing.
func (s *Store) scanSealed(seq uint64) (*indexRun, error) {
	f, err := os.Open(filepath.Join(s.packDir(), packName(seq)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end, err := s.checkPackFile(f, seq)
	if err != nil {
		return nil, err
	}
	entries, err := s.collectEntries(f, seq, end)
	if err != nil {
		return nil, err
	}
	return writeIndexRun(s.indexDir(), seq, seq, entries, s.cfg.faults)
}

func (s *Store) collectEntries(f *os.File, seq uint64, end int64) ([]indexEntry, error) {
	dead, err := s.meta.deadOffsets(seq)
	if err != nil {
		return nil, err
	}
	var entries []indexEntry
	err = newPackScanner(f, packHeaderSize, end).scanAll(
		func(rec scanned) error {
			if !dead[rec.off] {
				entries = append(entries, indexEntry{rec.header.digest, rec.loc(seq)})
			}
			return nil
		},
		func(d *damage) {
			if dead[d.off] {
				return
			}
			s.warnDamage(seq, d)
			if e, ok := d.indexable(seq); ok {
				entries = append(entries, e)
			}
		})
	return entries, err
}

// checkPackFile returns the file's size. A damaged header is logged: the
// records do not depend on it. Another version or store is an error.
func (s *Store) checkPackFile(f *os.File, seq uint64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	err = readPackHeader(f, seq, s.format.uuid)
	if errors.Is(err, ErrCorrupt) {
		s.log.Warn("pack header is damaged", "pack", packName(seq), "error", err)
		err = nil
	}
	return info.Size(), err
}

func (s *Store) warnDamage(seq uint64, d *damage) {
	s.log.Warn("damaged record in pack", "pack", packName(seq), "offset", d.off, "digest", d.header.digest, "reason", d.reason)
}

// Rebuild makes every index anew from the packs. Writers wait meanwhile.
func (s *Store) Rebuild(ctx context.Context) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	s.maint.Lock()
	defer s.maint.Unlock()
	return s.writer.withSealed(func() error {
		if err := s.rebuildAll(ctx); err != nil {
			return fmt.Errorf("rebuild index: %w", err)
		}
		return nil
	})
}

// rebuildAll writes one run a pack and removes all others; the merger then
// has its work. Until the last of them is gone, the wider ones count.
func (s *Store) rebuildAll(ctx context.Context) error {
	if s.index.hasDead() {
		return fmt.Errorf("a collection failed half-way; collect again or reopen the store first: %w", ErrFailed)
	}
	if err := s.endSweep(); err != nil {
		return err
	}
	if err := s.tellLost(); err != nil { // the new runs are not going to know of them
		return err
	}
	seqs, err := listPacks(s.packDir())
	if err != nil {
		return err
	}
	var runs []*indexRun
	for _, seq := range seqs {
		err := ctx.Err()
		var run *indexRun
		if err == nil {
			run, err = s.scanSealed(seq)
		}
		if err != nil {
			return errors.Join(err, closeRuns(runs))
		}
		runs = append(runs, run)
	}
	if err := s.removeOtherRuns(runs); err != nil {
		return errors.Join(err, closeRuns(runs))
	}
	err = s.index.replace(runs)
	s.merger.poke()
	return err
}

// removeOtherRuns removes the files of all index runs but these.
func (s *Store) removeOtherRuns(runs []*indexRun) error {
	files, err := s.listIndexFiles()
	if err != nil {
		return err
	}
	keep := make(map[string]bool)
	for _, r := range runs {
		keep[r.path] = true
	}
	for _, f := range files {
		if !keep[f.path] {
			err = errors.Join(err, s.cfg.faults.at("remove old run"), os.Remove(f.path))
		}
	}
	return errors.Join(err, syncDir(s.indexDir()))
}

// scanPacks opens each pack up to the end of its records in turn.
func (s *Store) scanPacks(ctx context.Context, fn func(seq uint64, sc *packScanner) error) error {
	end := s.writer.end()
	seqs, err := listPacks(s.packDir())
	if err != nil {
		return err
	}
	for _, seq := range seqs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.scanPack(seq, end, fn); err != nil {
			return fmt.Errorf("%s: %w", packName(seq), err)
		}
	}
	return nil
}

func (s *Store) scanPack(seq uint64, end position, fn func(uint64, *packScanner) error) error {
	f, err := os.Open(filepath.Join(s.packDir(), packName(seq)))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if seq == end.seq && end.off > 0 {
		size = min(size, end.off)
	}
	if seq > end.seq {
		return nil // made after the scan began
	}
	return fn(seq, newPackScanner(f, packHeaderSize, size))
}
