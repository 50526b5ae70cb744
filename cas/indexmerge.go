package cas

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
)

// mergeRatio sets how many index runs there may be: the newer ones together
// hold less than mergeRatio-1 times what any older one holds. With packs of
// equal numbers of objects these are at most 3*log4(packs) runs, and an entry
// is written about log4(packs) times.
const mergeRatio = 4

// indexMerger merges index runs behind the writers' backs. Sealing a pack
// only adds a run and wakes it.
type indexMerger struct {
	store *Store
	wake  chan struct{}
	stop  chan struct{}
	wg    sync.WaitGroup
}

func newIndexMerger(s *Store) *indexMerger {
	m := &indexMerger{store: s, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	if !s.cfg.mergeByHand {
		m.wg.Go(m.loop)
		m.poke()
	}
	return m
}

// poke makes the merger look whether there is something to merge.
func (m *indexMerger) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *indexMerger) loop() {
	for {
		select {
		case <-m.stop:
			return
		case <-m.wake:
		}
		if err := m.store.mergeIndex(m.stopped); err != nil && !errors.Is(err, errMergeStopped) {
			m.store.log.Warn("index runs are not merged; lookups get slower until it succeeds", "error", err)
		}
	}
}

var errMergeStopped = errors.New("merge was stopped")

func (m *indexMerger) stopped() error {
	select {
	case <-m.stop:
		return errMergeStopped
	default:
		return nil
	}
}

// close stops a merge in progress; what it wrote is removed.
func (m *indexMerger) close() {
	close(m.stop)
	m.wg.Wait()
}

// mergeIndex merges runs until there are few enough.
func (s *Store) mergeIndex(stop func() error) error {
	for {
		var more bool
		err := s.onIndex(func() (err error) { more, err = s.mergeSome(stop); return err })
		if err != nil || !more {
			return err
		}
	}
}

// mergeSome replaces the newest runs by one, if there are too many, and
// reports whether it did. Collections and rebuilds are kept away meanwhile.
func (s *Store) mergeSome(stop func() error) (bool, error) {
	s.maint.RLock()
	defer s.maint.RUnlock()
	s.merging.Lock()
	defer s.merging.Unlock()
	old := s.index.mergeable()
	if len(old) < 2 {
		return false, nil
	}
	if err := s.cfg.faults.at("merge index runs"); err != nil {
		return false, err
	}
	first, last := old[0].first, old[len(old)-1].last
	now, err := createIndexRun(s.indexDir(), first, last, liveEntries(old, stop), s.cfg.faults)
	if err != nil {
		return false, fmt.Errorf("merge index runs: %w", err)
	}
	if err := s.index.merged(old, now); err != nil {
		return false, err
	}
	return true, s.removeRuns(old)
}

// removeRuns deletes the files of runs that another one replaced. Should a
// crash leave some, Open deletes them: their packs lie in a wider run's range.
func (s *Store) removeRuns(old []*indexRun) error {
	for _, r := range old {
		if err := s.cfg.faults.at("remove merged run"); err != nil {
			return err
		}
		if err := os.Remove(r.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := s.cfg.faults.at("merged runs removed"); err != nil {
		return err
	}
	return syncDir(s.indexDir())
}

// mergeFrom returns the first of the runs that are to become one, given the
// number of entries in each, the newest last; len(counts) for none.
func mergeFrom(counts []int) int {
	newer, from := 0, len(counts)
	for i := len(counts) - 1; i >= 0; i-- {
		n := max(1, counts[i])
		if newer >= (mergeRatio-1)*n && newer+n <= math.MaxUint32 {
			from = i
		}
		newer += n
	}
	return from
}

// liveEntries merges the entries of runs that are not dead. The runs must not
// be closed before it was read.
func liveEntries(runs []*indexRun, stop func() error) *runSource {
	src := &runSource{}
	for _, r := range runs {
		r.countLive(&src.counts)
	}
	src.each = func(emit func([]byte) error) error {
		var heads runHeap
		for _, r := range runs {
			heads.add(&runCursor{run: r, at: -1})
		}
		heap.Init(&heads)
		for n := 0; len(heads) > 0; n++ {
			if n%(1<<16) == 0 {
				if err := stop(); err != nil {
					return err
				}
			}
			if err := emit(heads[0].run.raw(heads[0].at)); err != nil {
				return err
			}
			if heads[0].next() {
				heap.Fix(&heads, 0)
			} else {
				heap.Pop(&heads)
			}
		}
		return nil
	}
	return src
}

// countLive adds the entries that are not dead to counts, by first byte.
func (r *indexRun) countLive(counts *[256]uint32) {
	for b := range counts {
		lo, hi := r.bucket(byte(b))
		counts[b] += uint32(hi - lo)
	}
	if r.deadCount == 0 {
		return
	}
	for i := range r.count {
		if r.isDead(i) {
			counts[r.digest(i)[0]]--
		}
	}
}

// runCursor goes through a run's live entries.
type runCursor struct {
	run *indexRun
	at  int
}

func (c *runCursor) next() bool {
	for c.at++; c.at < c.run.count; c.at++ {
		if !c.run.isDead(c.at) {
			return true
		}
	}
	return false
}

// runHeap has the cursor of the entry that comes next on top.
type runHeap []*runCursor

func (h *runHeap) add(c *runCursor) {
	if c.next() {
		*h = append(*h, c)
	}
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (h runHeap) Len() int { return len(h) }

// Less sorts by digest, then the newest first.
func (h runHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if c := bytes.Compare(a.run.digest(a.at), b.run.digest(b.at)); c != 0 {
		return c < 0
	}
	return a.run.packOf(a.at) > b.run.packOf(b.at)
}

// Swap implements heap.Interface.
func (h runHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *runHeap) Push(x any) { *h = append(*h, x.(*runCursor)) }

// Pop implements heap.Interface.
func (h *runHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
