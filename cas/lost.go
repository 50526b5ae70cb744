package cas

import (
	"errors"
	"os"
	"path/filepath"
)

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
