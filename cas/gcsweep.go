package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// sweep makes durable what bury decided. First meta.db learns which records
// are dead; then packs that are dead as a whole go to the trash; at last what
// is needed of nearly dead packs is moved, and they go too. A crash at any
// point leaves a store that Open brings to the end of its step.
func (g *collection) sweep() error {
	var drop, thin, poor []*indexRun
	for i, run := range g.marker.runs {
		live, total := g.weigh(i)
		switch {
		case !g.old[i]:
		case run.deadCount == run.count:
			drop = append(drop, run)
		case run.deadCount > 0:
			thin = append(thin, run)
		}
		if live > 0 && live*100 < total*int64(g.opt.RewriteBelow) && g.old[i] {
			poor = append(poor, run)
		}
	}
	if err := g.commitSweep(drop, thin); err != nil {
		return err
	}
	now, err := g.store.thinRuns(thin)
	if err != nil {
		return err
	}
	if err := g.dropPacks(drop); err != nil {
		return err
	}
	drop = nil
	for _, run := range poor {
		if r := now[run]; r != nil {
			run = r
		}
		moved, err := g.empty(run)
		if err != nil {
			return err
		}
		if moved {
			drop = append(drop, run)
		}
	}
	if len(drop) == 0 {
		return nil
	}
	if err := g.commitSweep(drop, nil); err != nil {
		return err
	}
	return g.dropPacks(drop)
}

// commitSweep makes moved records durable and records the decision.
func (g *collection) commitSweep(drop, thin []*indexRun) error {
	pos, err := g.store.writer.sync()
	if err != nil {
		return err
	}
	return g.store.meta.update(func(tx *bbolt.Tx) error { return g.record(tx, pos, drop, thin) })
}

// weigh counts the objects of a run and its pack's needed bytes and all.
func (g *collection) weigh(i int) (live, total int64) {
	run := g.marker.runs[i]
	for j := range run.count {
		size := recordHeaderSize + int64(run.entry(j).loc.stored)
		total += size
		if run.isDead(j) {
			g.report.Removed++
			continue
		}
		g.report.Kept++
		live += size
	}
	return live, total
}

// empty moves what is needed of a pack to the open one. It reports false when
// that failed for want of space or because of damage: then the pack stays.
func (g *collection) empty(run *indexRun) (bool, error) {
	moved, err := g.moveRecords(run)
	if errors.Is(err, ErrCorrupt) || errors.Is(err, unix.ENOSPC) {
		g.store.log.Warn("pack cannot be emptied and stays", "pack", packName(run.first), "error", err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	g.report.PacksMoved++
	g.report.BytesMoved += moved
	return true, nil
}

func (g *collection) moveRecords(run *indexRun) (moved int64, err error) {
	f, err := os.Open(filepath.Join(g.store.packDir(), packName(run.first)))
	if err != nil {
		return moved, err
	}
	defer f.Close()
	var live []indexEntry
	for j := range run.count {
		if !run.isDead(j) {
			live = append(live, run.entry(j))
		}
	}
	// In the order of the pack, so that dependencies stay first.
	slices.SortFunc(live, func(a, b indexEntry) int { return int(a.loc.off - b.loc.off) })
	for _, e := range live {
		if err := g.stop(); err != nil {
			return moved, err
		}
		raw := make([]byte, recordHeaderSize+e.loc.stored)
		if _, err := f.ReadAt(raw, e.loc.off); err != nil {
			return moved, &CorruptError{Digest: e.digest, Pack: run.first, Offset: e.loc.off, Reason: err.Error()}
		}
		h, err := parseRecordHeader(raw)
		if err == nil {
			_, err = h.open(raw[recordHeaderSize:])
		}
		if err != nil || h.digest != e.digest {
			return moved, &CorruptError{Digest: e.digest, Pack: run.first, Offset: e.loc.off, Reason: fmt.Sprint("cannot be moved: ", err)}
		}
		if err := g.store.writer.move(h, raw[recordHeaderSize:]); err != nil {
			return moved, err
		}
		moved += int64(len(raw))
	}
	return moved, nil
}

// record writes the decision into meta.db.
func (g *collection) record(tx *bbolt.Tx, pos position, drop, thin []*indexRun) error {
	var errs []error
	deadLists, trash, epochs, shallow := tx.Bucket(bucketDead), tx.Bucket(bucketTrash), tx.Bucket(bucketEpochs), tx.Bucket(bucketShallow)
	for _, run := range thin {
		errs = append(errs, deadLists.Put(beBytes(run.first), run.appendDead(deadLists.Get(beBytes(run.first)))))
	}
	for _, run := range drop {
		errs = append(errs, trash.Put(beBytes(run.first), []byte{1}), deadLists.Delete(beBytes(run.first)))
	}
	errs = append(errs, epochs.Put([]byte("mark"), leBytes(g.mark)), epochs.Put([]byte("top"), leBytes(max(g.mark, pos.seq))))
	var old [][]byte
	errs = append(errs, shallow.ForEach(func(k, _ []byte) error { old = append(old, k); return nil }))
	for _, k := range old {
		errs = append(errs, shallow.Delete(k))
	}
	for d := range g.shallow {
		errs = append(errs, shallow.Put(d.Bytes(), []byte{1}))
	}
	if !g.aged {
		errs = append(errs, ageLeases(tx))
		g.aged = true
	}
	errs = append(errs, markDurable(tx, pos))
	return errors.Join(errs...)
}

// appendDead adds the offsets of the run's dead entries to a pack's list.
func (r *indexRun) appendDead(list []byte) []byte {
	list = slices.Clone(list)
	for j := range r.count {
		if r.isDead(j) {
			list = binary.LittleEndian.AppendUint64(list, uint64(r.entry(j).loc.off))
		}
	}
	return list
}

// thinRuns writes runs anew without their dead entries, and returns which took
// the place of which.
func (s *Store) thinRuns(runs []*indexRun) (map[*indexRun]*indexRun, error) {
	all := make(map[*indexRun]*indexRun)
	for _, run := range runs {
		var live []indexEntry
		for j := range run.count {
			if !run.isDead(j) {
				live = append(live, run.entry(j))
			}
		}
		if err := s.cfg.faults.at("thin index run"); err != nil {
			return nil, err
		}
		now, err := writeIndexRun(s.indexDir(), run.first, run.last, live)
		if err != nil {
			return nil, err
		}
		all[run] = now
		if err := s.index.exchange(map[*indexRun]*indexRun{run: now}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// dropPacks takes packs out of the index and moves them to the trash.
func (g *collection) dropPacks(runs []*indexRun) error {
	s := g.store
	gone := make(map[*indexRun]*indexRun)
	var seqs []uint64
	for _, run := range runs {
		gone[run] = nil
		seqs = append(seqs, run.first)
		if info, err := os.Stat(filepath.Join(s.packDir(), packName(run.first))); err == nil {
			g.report.BytesFreed += info.Size()
		}
	}
	g.report.PacksRemoved += len(runs)
	if err := s.index.exchange(gone); err != nil {
		return err
	}
	if err := s.trashPacks(seqs); err != nil {
		return err
	}
	for _, seq := range seqs {
		s.reader.drop(seq)
	}
	if g.report.LowSpace {
		return s.emptyTrash()
	}
	return nil
}
