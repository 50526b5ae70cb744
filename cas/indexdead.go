package cas

import (
	"cmp"
	"slices"
)

// entrySet is a set of entries of one run.
type entrySet struct {
	bits []uint64
	any  bool
}

func newEntrySet(r *indexRun) *entrySet { return &entrySet{bits: make([]uint64, (r.count+63)/64)} }

func (s *entrySet) add(i int) {
	s.bits[i/64] |= 1 << (i % 64)
	s.any = true
}

// deadRecords are the records that collections removed: of a pack that goes,
// all; of others, those at some offsets.
type deadRecords struct {
	packs   map[uint64]bool
	offsets map[uint64][]uint64 // sorted
}

func (d *deadRecords) has(l loc) bool {
	if d.packs[l.pack] {
		return true
	}
	_, found := slices.BinarySearch(d.offsets[l.pack], uint64(l.off))
	return found
}

// in returns which of the run's entries are dead.
func (d *deadRecords) in(r *indexRun) *entrySet {
	set := newEntrySet(r)
	for i := range r.count {
		if r.isDead(i) || d.has(r.entry(i).loc) {
			set.add(i)
		}
	}
	return set
}

// byPlace sorts entries as they lie in the packs.
func (r *indexRun) byPlace(list []int) {
	slices.SortFunc(list, func(a, b int) int {
		x, y := r.entry(a).loc, r.entry(b).loc
		return cmp.Or(cmp.Compare(x.pack, y.pack), cmp.Compare(x.off, y.off))
	})
}
