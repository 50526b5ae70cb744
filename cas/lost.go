package cas

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// lostPacks returns the packs that are not there although an index run has
// records of them or meta.db knows that something in them was committed.
// Damaged runs are reported elsewhere.
func (s *Store) lostPacks() ([]uint64, error) {
	s.merging.Lock() // so that the runs stay mapped
	defer s.merging.Unlock()
	runs := s.index.sealedRuns() // before the packs: theirs are there by now
	known, err := s.meta.committedPacks()
	if err != nil {
		return nil, err
	}
	seqs, err := listPacks(s.packDir())
	if err != nil {
		return nil, err
	}
	there := make(map[uint64]bool, len(seqs))
	for _, seq := range seqs {
		there[seq] = true
	}
	lost := make(map[uint64]bool)
	for _, seq := range known {
		lost[seq] = !there[seq]
	}
	_ = guarded(func(string) error { return ErrCorrupt }, func() error {
		for _, r := range runs {
			r.lostPacks(there, lost)
		}
		return nil
	})
	maps.DeleteFunc(lost, func(_ uint64, gone bool) bool { return !gone })
	return slices.Sorted(maps.Keys(lost)), nil
}

// lostPacks adds the packs that the run has records of and that are not there.
func (r *indexRun) lostPacks(there, lost map[uint64]bool) {
	whole := true
	for seq := r.first; seq <= r.last && whole; seq++ {
		whole = there[seq]
	}
	for j := 0; j < r.count && !whole; j++ {
		if seq := r.packOf(j); !there[seq] && !r.isDead(j) {
			lost[seq] = true
		}
	}
}

// committedPacks returns packs that hold something durable and that no
// collection can have removed, since they are newer than the last one.
func (m *metaDB) committedPacks() (seqs []uint64, err error) {
	err = m.view(func(tx *metaTx) error {
		mark := leUint64(tx.get(bucketEpochs, []byte("mark")))
		if top := leUint64(tx.get(bucketEpochs, []byte("top"))); top > mark {
			seqs = append(seqs, top)
		}
		return tx.each(bucketDurable, func(k, v []byte) error {
			if seq := beUint64(k); seq > mark && leUint64(v) > packHeaderSize {
				seqs = append(seqs, seq)
			}
			return nil
		})
	})
	return seqs, err
}

// tellLost looks for packs that are gone when the store opens, and notes what
// was in them, so that the same content is stored again where it comes.
func (s *Store) tellLost() error {
	packs, err := s.lostPacks()
	if err != nil || len(packs) == 0 {
		return err
	}
	s.log.Error("packs are lost: put them back, or run verify to see what needs them; their numbers are not used again",
		"packs", len(packs), "first", packName(packs[0]), "last", packName(packs[len(packs)-1]))
	return s.noteLost()
}

// noteLost notes what the index knows of lost packs.
func (s *Store) noteLost() error {
	lost, err := s.lostRecords()
	var bad *CorruptError
	if err != nil && !errors.As(err, &bad) {
		return err
	}
	s.noteAllDamage(s.current(lost))
	s.raiseDoubt()
	return nil
}

// lostRecords returns the records of sealed packs that lie behind the end of
// their pack, or whose pack is missing. A scan of the packs does not meet them.
// The caller keeps collections and rebuilds away.
func (s *Store) lostRecords() (lost []indexEntry, err error) {
	s.merging.Lock() // so that the runs stay mapped
	defer s.merging.Unlock()
	runs := s.index.sealedRuns() // before the sizes: their packs are there by now
	sizes, err := s.packSizes()
	if err != nil {
		return nil, err
	}
	damage := func(reason string) error { return &CorruptError{Reason: "index run: " + reason} }
	err = guarded(damage, func() error {
		for _, r := range runs {
			for i := range r.count {
				if e := r.entry(i); !r.isDead(i) && e.loc.end() > sizes[e.loc.pack] {
					lost = append(lost, e)
				}
			}
		}
		return nil
	})
	return lost, err
}

func (s *Store) packSizes() (map[uint64]int64, error) {
	seqs, err := listPacks(s.packDir())
	if err != nil {
		return nil, err
	}
	sizes := make(map[uint64]int64, len(seqs))
	for _, seq := range seqs {
		info, err := os.Stat(filepath.Join(s.packDir(), packName(seq)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sizes[seq] = info.Size()
	}
	return sizes, nil
}

// current returns those of the records that the index answers with.
func (s *Store) current(all []indexEntry) (now []indexEntry) {
	for _, e := range all {
		if l, ok := s.index.find(e.digest); ok && l == e.loc {
			now = append(now, e)
		}
	}
	return now
}

const lostReason = "pack is missing or cut off"
