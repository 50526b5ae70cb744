package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// packUse is what a collection found out about one pack.
type packUse struct {
	seq        uint64
	size       int64 // of its records, in bytes
	live       int64 // records that are needed
	liveBytes  int64
	dead       []uint64 // offsets of the index's dead entries
	inQuestion bool
}

// sweep makes durable what bury decided. First meta.db learns which records
// are dead; then packs that are dead as a whole go to the trash, and what is
// needed of nearly dead packs is moved, so that they go too. At last the index
// runs are written anew. A crash at any point leaves a store that Open brings
// to the end of its step.
func (g *collection) sweep() error {
	var drop, thin, poor []*packUse
	uses, err := g.weigh()
	if err != nil {
		return err
	}
	for _, u := range uses {
		switch {
		case u.live == 0 && (u.inQuestion || len(u.dead) > 0):
			drop = append(drop, u)
		case len(u.dead) > 0: // maybe buried by a collection that failed then
			thin = append(thin, u)
		}
		if u.inQuestion && u.live > 0 && u.liveBytes*100 < u.size*int64(g.opt.RewriteBelow) {
			poor = append(poor, u)
		}
	}
	if err := g.commitSweep(drop, thin); err != nil {
		return err
	}
	if err := g.dropPacks(drop); err != nil {
		return err
	}
	if drop, err = g.emptyPacks(poor); err != nil {
		return err
	}
	if len(drop) > 0 {
		if err := g.commitSweep(drop, nil); err != nil {
			return err
		}
		if err := g.dropPacks(drop); err != nil {
			return err
		}
	}
	return g.store.endSweep()
}

// weigh counts each sealed pack's records, in the order of the packs.
func (g *collection) weigh() ([]*packUse, error) {
	seqs, err := listPacks(g.store.packDir())
	if err != nil {
		return nil, err
	}
	uses := make(map[uint64]*packUse)
	var all []*packUse
	use := func(seq uint64) *packUse {
		u := uses[seq]
		if u == nil {
			u = &packUse{seq: seq, inQuestion: seq <= g.before}
			uses[seq], all = u, append(all, u)
		}
		return u
	}
	for _, seq := range seqs {
		if seq > g.mark {
			continue
		}
		info, err := os.Stat(filepath.Join(g.store.packDir(), packName(seq)))
		if err != nil {
			return nil, err
		}
		use(seq).size = info.Size() - packHeaderSize
	}
	for _, run := range g.marker.runs {
		for j := range run.count {
			l := run.entry(j).loc
			u := use(l.pack)
			if run.isDead(j) {
				g.report.Removed++
				u.dead = append(u.dead, uint64(l.off))
				continue
			}
			g.report.Kept++
			u.live++
			u.liveBytes += recordHeaderSize + int64(l.stored)
		}
	}
	return all, nil
}

// commitSweep makes moved records durable and records the decision.
func (g *collection) commitSweep(drop, thin []*packUse) error {
	pos, err := g.store.writer.sync()
	if err != nil {
		return err
	}
	return g.store.meta.update(func(tx *metaTx) error { return g.record(tx, pos, drop, thin) })
}

// emptyPacks moves what is needed of packs to the open one, and returns which
// packs may go. One stays where that fails for want of space or because of
// damage.
func (g *collection) emptyPacks(poor []*packUse) (emptied []*packUse, err error) {
	left := make(map[uint64]*packUse)
	for _, u := range poor {
		left[u.seq] = u
	}
	for _, run := range g.marker.runs {
		if len(left) == 0 {
			break
		}
		for seq, list := range run.liveOf(left) {
			moved, err := g.moveRecords(run, seq, list)
			if errors.Is(err, ErrCorrupt) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				g.store.log.Warn("pack cannot be emptied and stays", "pack", packName(seq), "error", err)
				continue
			}
			if err != nil {
				return nil, err
			}
			g.report.PacksMoved++
			g.report.BytesMoved += moved
			emptied = append(emptied, left[seq])
		}
	}
	return emptied, nil
}

// liveOf returns the run's live entries in some packs, as they lie in these.
func (r *indexRun) liveOf(packs map[uint64]*packUse) map[uint64][]int {
	lists := make(map[uint64][]int)
	for j := range r.count {
		if seq := r.packOf(j); packs[seq] != nil && !r.isDead(j) {
			lists[seq] = append(lists[seq], j)
		}
	}
	for _, list := range lists {
		r.byPlace(list) // so that dependencies stay first
	}
	return lists
}

func (g *collection) moveRecords(run *indexRun, seq uint64, list []int) (moved int64, err error) {
	f, err := os.Open(filepath.Join(g.store.packDir(), packName(seq)))
	if err != nil {
		return moved, err
	}
	defer f.Close()
	for _, j := range list {
		if err := g.stop(); err != nil {
			return moved, err
		}
		n, err := g.moveRecord(f, run.entry(j))
		if err != nil {
			return moved, err
		}
		moved += n
	}
	return moved, nil
}

func (g *collection) moveRecord(f *os.File, e indexEntry) (int64, error) {
	corrupt := func(reason string) error {
		return &CorruptError{Digest: e.digest, Pack: e.loc.pack, Offset: e.loc.off, Reason: reason}
	}
	if e.loc.stored > maxObjectSize {
		return 0, corrupt("index names an impossible size")
	}
	raw := make([]byte, recordHeaderSize+e.loc.stored)
	if _, err := f.ReadAt(raw, e.loc.off); err != nil {
		return 0, corrupt(err.Error())
	}
	h, err := parseRecordHeader(raw)
	if err == nil {
		_, err = h.open(raw[recordHeaderSize:])
	}
	if err != nil || h.digest != e.digest {
		return 0, corrupt(fmt.Sprint("cannot be moved: ", err))
	}
	return int64(len(raw)), g.store.writer.move(h, raw[recordHeaderSize:])
}

// record writes the decision into meta.db.
func (g *collection) record(tx *metaTx, pos position, drop, thin []*packUse) error {
	var errs []error
	for _, u := range thin {
		key := beBytes(u.seq)
		errs = append(errs, tx.put(bucketDead, key, mergeOffsets(tx.get(bucketDead, key), u.dead)))
	}
	for _, u := range drop {
		errs = append(errs, tx.put(bucketTrash, beBytes(u.seq), []byte{1}), tx.del(bucketDead, beBytes(u.seq)))
	}
	if len(drop)+len(thin) > 0 {
		errs = append(errs, tx.put(bucketEpochs, []byte("sweep"), leBytes(1)))
	}
	errs = append(errs, tx.put(bucketEpochs, []byte("mark"), leBytes(g.mark)), tx.put(bucketEpochs, []byte("top"), leBytes(max(g.mark, pos.seq))))
	old, err := tx.keys(bucketShallow)
	errs = append(errs, err)
	for _, k := range old {
		errs = append(errs, tx.del(bucketShallow, k))
	}
	for d := range g.shallow {
		errs = append(errs, tx.put(bucketShallow, d.Bytes(), []byte{1}))
	}
	if !g.aged {
		errs = append(errs, ageLeases(tx))
		g.aged = true
	}
	errs = append(errs, markDurable(tx, pos))
	return errors.Join(errs...)
}

// mergeOffsets adds offsets to a pack's list of dead records.
func mergeOffsets(list []byte, more []uint64) []byte {
	all := append(parseOffsets(list), more...)
	slices.Sort(all)
	all = slices.Compact(all)
	out := make([]byte, 0, 8*len(all))
	for _, off := range all {
		out = binary.LittleEndian.AppendUint64(out, off)
	}
	return out
}

func parseOffsets(list []byte) []uint64 {
	offs := make([]uint64, 0, len(list)/8)
	for ; len(list) >= 8; list = list[8:] {
		offs = append(offs, binary.LittleEndian.Uint64(list))
	}
	return offs
}

// dropPacks moves packs to the trash, and frees them if the disk is full. What
// of them the index still has was moved.
func (g *collection) dropPacks(drop []*packUse) error {
	s := g.store
	seqs := make([]uint64, len(drop))
	for i, u := range drop {
		seqs[i] = u.seq
		g.report.BytesFreed += u.size + packHeaderSize
	}
	g.report.PacksRemoved += len(drop)
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
