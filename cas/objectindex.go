package cas

import (
	"cmp"
	"errors"
	mathbits "math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// objectIndex answers where an object is: the open pack's part lives in
// memory, the sealed packs' parts are mapped runs.
type objectIndex struct {
	mu    sync.RWMutex
	open  map[Digest]loc
	older []indexEntry // records of the open pack that open has newer ones of
	runs  []*indexRun  // by range, the newest last
	fault atomic.Pointer[indexFault]
}

func newObjectIndex() *objectIndex { return &objectIndex{open: make(map[Digest]loc)} }

func (x *objectIndex) find(d Digest) (loc, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l, ok := x.open[d]; ok {
		return l, true
	}
	if len(x.runs) == 0 {
		return loc{}, false
	}
	return x.findSealed(d)
}

func (x *objectIndex) has(d Digest) bool {
	_, ok := x.find(d)
	return ok
}

func (x *objectIndex) add(d Digest, l loc) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was, ok := x.open[d]; ok {
		x.older = append(x.older, indexEntry{d, was})
	}
	x.open[d] = l
}

// openCount is the number of records in the open pack's part.
func (x *objectIndex) openCount() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.open) + len(x.older)
}

// openEntries copies the open pack's part.
func (x *objectIndex) openEntries() []indexEntry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	entries := append(make([]indexEntry, 0, len(x.open)+len(x.older)), x.older...)
	for d, l := range x.open {
		entries = append(entries, indexEntry{digest: d, loc: l})
	}
	return entries
}

// seal replaces the open pack's part by its run.
func (x *objectIndex) seal(run *indexRun) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs = append(x.runs, run)
	x.open, x.older = make(map[Digest]loc), nil
}

// replace puts other runs in the place of all present ones, which are closed.
func (x *objectIndex) replace(runs []*indexRun) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.runs
	x.runs = runs
	return closeRuns(old)
}

// sealedRuns returns the present runs. They stay mapped while the caller
// keeps collections and rebuilds away.
func (x *objectIndex) sealedRuns() []*indexRun {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Clone(x.runs)
}

// bury takes dead entries out of the runs, all at once. What was dead stays
// so.
func (x *objectIndex) bury(dead map[*indexRun][]uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for run, bits := range dead {
		for i := range run.dead {
			bits[i] |= run.dead[i]
		}
		run.dead, run.deadCount = bits, 0
		for _, w := range bits {
			run.deadCount += mathbits.OnesCount64(w)
		}
	}
}

// mergeable returns neighbours that are to become one run; none while a
// collection's decision may not be durable yet, since a merged run would make
// a part of it so.
func (x *objectIndex) mergeable() []*indexRun {
	x.mu.RLock()
	defer x.mu.RUnlock()
	counts := make([]int, len(x.runs))
	for i, r := range x.runs {
		if r.dead != nil {
			return nil
		}
		counts[i] = r.count
	}
	return slices.Clone(x.runs[mergeFrom(counts):])
}

// hasDead reports whether a collection buried entries that are still in the
// runs' files.
func (x *objectIndex) hasDead() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.ContainsFunc(x.runs, func(r *indexRun) bool { return r.dead != nil })
}

// merged puts a run in the place of the neighbours that it was made of, and
// closes these.
func (x *objectIndex) merged(old []*indexRun, now *indexRun) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := slices.Index(x.runs, old[0])
	x.runs = slices.Replace(x.runs, at, at+len(old), now)
	return closeRuns(old)
}

// exchange puts other runs in the place of some, or nothing where the new
// one is nil, and closes the old ones.
func (x *objectIndex) exchange(runs map[*indexRun]*indexRun) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var kept, old []*indexRun
	for _, r := range x.runs {
		switch now, ok := runs[r]; {
		case !ok:
			kept = append(kept, r)
		case now != nil:
			kept, old = append(kept, now), append(old, r)
		default:
			old = append(old, r)
		}
	}
	x.runs = kept
	return closeRuns(old)
}

// sortRuns brings the runs into order after recovery.
func (x *objectIndex) sortRuns() {
	x.mu.Lock()
	defer x.mu.Unlock()
	slices.SortFunc(x.runs, func(a, b *indexRun) int { return cmp.Compare(a.first, b.first) })
}

// lastSealed returns the highest pack that a run covers; 0 for none.
func (x *objectIndex) lastSealed() (last uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, r := range x.runs {
		last = max(last, r.last)
	}
	return last
}

// covers reports whether some run indexes pack seq.
func (x *objectIndex) covers(seq uint64) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, r := range x.runs {
		if r.first <= seq && seq <= r.last {
			return true
		}
	}
	return false
}

// count is the number of indexed records; an object in two packs counts twice.
func (x *objectIndex) count() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := len(x.open) + len(x.older)
	for _, r := range x.runs {
		n += r.count - r.deadCount
	}
	return n
}

// digestAt searches for the object whose record starts at off; it is slow.
func (x *objectIndex) digestAt(pack uint64, off int64) Digest {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for d, l := range x.open {
		if l.pack == pack && l.off == off {
			return d
		}
	}
	for _, e := range x.older {
		if e.loc.pack == pack && e.loc.off == off {
			return e.digest
		}
	}
	var found Digest
	_ = guarded(x.fail, func() error { // a fault is told by the store's next call
		found = digestInRuns(x.runs, pack, off)
		return nil
	})
	return found
}

func digestInRuns(runs []*indexRun, pack uint64, off int64) Digest {
	for _, r := range runs {
		if pack < r.first || pack > r.last {
			continue
		}
		for i := range r.count {
			if r.packOf(i) == pack && r.entry(i).loc.off == off {
				return r.entry(i).digest
			}
		}
	}
	return Digest{}
}

func (x *objectIndex) close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	runs := x.runs
	x.runs, x.open, x.older = nil, make(map[Digest]loc), nil
	return closeRuns(runs)
}

func closeRuns(runs []*indexRun) error {
	var errs []error
	for _, r := range runs {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}
