package cas

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// GCOptions says what a collection keeps.
type GCOptions struct {
	// Keep is how many of a head's latest commits stay; nil, or an answer of
	// 0 or less, keeps all of them.
	Keep func(head string) int
	// NoGrace also collects what was written since the last collection and
	// empties the trash at once. Objects put without a snapshot, a lease or a
	// pin may go, so it is for a store that only snapshots write to.
	NoGrace bool
	// RewriteBelow is the part of a pack, in percent of its bytes, that must
	// be needed for the pack to stay as it is; default 50. What is needed of
	// others is moved to the open pack.
	RewriteBelow int
}

// GCReport says what a collection did.
type GCReport struct {
	Kept, Removed            int64 // objects
	PacksRemoved, PacksMoved int   // removed, and of these those of which something was needed
	BytesFreed, BytesMoved   int64 // of packs; freed ones lie in the trash until the next collection unless Emptied
	Emptied                  bool  // whether the trash is empty
	Commits                  int64 // that heads still have
	Missing                  int64 // contents of files that are needed and not in the store; Verify names them
	StatCachesDropped        int
	LowSpace                 bool // the disk was nearly full, so that the reserve was used
	Duration                 time.Duration
}

// GC removes what no head, pin, lease or work in progress needs. Writers and
// readers go on meanwhile. When a commit, directory or chunk list that is needed
// cannot be read or is not there (LackError), nothing is removed: what it names
// is unknown.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCReport, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return GCReport{}, err
	}
	defer release()
	s.maint.Lock()
	defer s.maint.Unlock()
	if o.RewriteBelow <= 0 {
		o.RewriteBelow = 50
	}
	start, doubts := time.Now(), s.doubt.times.Load()
	g := &collection{store: s, opt: o, stop: ctx.Err}
	defer g.finish()
	err = s.onIndex(g.run)
	var lack *LackError
	if errors.As(err, &lack) || g.report.Missing > 0 {
		s.raiseDoubt()
	}
	if err == nil && g.report.Missing == 0 && !s.anyDamaged() { // it went through all that is kept
		err = s.dispel(doubts)
	}
	if err != nil {
		return g.report, fmt.Errorf("collect garbage: %w", err)
	}
	g.report.Duration = time.Since(start)
	return g.report, nil
}

// collection is one run of GC.
type collection struct {
	store   *Store
	opt     GCOptions
	stop    func() error
	report  GCReport
	marker  *marker
	mark    uint64 // the highest pack that was there at the start
	before  uint64 // packs up to this one are in question
	shallow map[Digest]bool
	aged    bool // leases were counted down
}

func (g *collection) run() error {
	g.report.LowSpace = g.store.useReserve()
	if err := g.store.emptyTrash(); err != nil { // of earlier collections
		return err
	}
	kept, err := g.begin()
	if err != nil {
		return err
	}
	defer g.store.touches.unwatch()
	if err := g.markRoots(kept); err != nil {
		return err
	}
	if err := g.bury(); err != nil {
		return err
	}
	if err := g.sweep(); err != nil {
		return err
	}
	g.report.StatCachesDropped = g.store.caches.dropLost()
	g.report.Emptied = g.opt.NoGrace || g.report.LowSpace
	if !g.report.Emptied {
		return nil
	}
	return g.store.emptyTrash()
}

func (g *collection) finish() {
	g.store.keepReserve()
	g.store.merger.poke()
}

// begin seals the open pack, so that what is written from now on lies in
// packs of its own, and begins a generation of touches.
func (g *collection) begin() (kept []freshTouch, err error) {
	s := g.store
	if err := s.sealOpenPack(); err != nil {
		return nil, err
	}
	// The packs in question are chosen first: what a session that watch does
	// not know yet is going to write lies in none of them.
	runs := s.index.sealedRuns()
	kept, first, full := s.touches.watch()
	g.mark = 0
	for _, r := range runs {
		g.mark = max(g.mark, r.last)
	}
	lost, err := s.lostPacks()
	if err != nil {
		return nil, err
	}
	for _, seq := range lost { // when all that is kept is there without them, nobody asks for them any more
		g.mark = max(g.mark, seq)
	}
	if g.before, err = s.meta.epoch("mark"); err != nil {
		return nil, err
	}
	if g.opt.NoGrace {
		g.before = g.mark
	}
	if first > 0 {
		g.before = min(g.before, first-1)
	}
	if full {
		g.before = 0
	}
	g.marker = newMarker(s, runs, g.stop)
	return kept, nil
}

// markRoots marks what heads, pins, leases, touches and young packs need.
func (g *collection) markRoots(kept []freshTouch) error {
	heads, err := g.store.heads()
	if err != nil {
		return err
	}
	was, err := g.store.meta.shallow()
	if err != nil {
		return err
	}
	g.shallow = make(map[Digest]bool)
	for _, h := range heads {
		keep := 0
		if g.opt.Keep != nil {
			keep = max(0, g.opt.Keep(h.Name))
		}
		cut, err := g.marker.history(h.Commit, keep, was)
		if err != nil {
			return fmt.Errorf("head %q: %w", h.Name, err)
		}
		if !cut.IsZero() {
			g.shallow[cut] = true
		}
	}
	pinned, err := g.store.meta.pinned()
	if err != nil {
		return err
	}
	for _, p := range pinned {
		if err := g.marker.need(p.Tree, roleDir); err != nil {
			return fmt.Errorf("%s: %w", &p, err)
		}
	}
	g.tellMissing()
	for i := range g.marker.runs {
		if err := g.marker.young(i, g.before); err != nil {
			return err
		}
	}
	return g.marker.touched(kept)
}

// tellMissing reports the contents that are lacking. They name nothing, so the
// collection goes on.
func (g *collection) tellMissing() {
	g.report.Missing = int64(len(g.marker.blobs))
	for d := range g.marker.blobs {
		g.store.log.Error("contents of files that are needed are not in the store; verify names the files", "objects", g.report.Missing, "digest", d)
		return
	}
}

// bury takes what is not marked out of the index. No writer can touch an
// object between the last look at the touches and that.
func (g *collection) bury() error {
	for {
		if err := g.marker.touched(g.store.touches.drain()); err != nil {
			return err
		}
		if err := errors.Join(g.stop(), g.store.index.failed()); err != nil || g.tryBury() {
			return errors.Join(err, g.store.index.failed())
		}
	}
}

func (g *collection) tryBury() bool {
	t := g.store.touches
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fresh) > 0 {
		return false
	}
	if g.store.index.failed() != nil { // something that is there was answered not to be
		return true
	}
	dead := make(map[*indexRun][]uint64)
	for i, run := range g.marker.runs {
		bits := newEntrySet(run)
		for j, m := range g.marker.marks[i] {
			if m == 0 && run.packOf(j) <= g.before {
				bits.add(j)
			}
		}
		if bits.any {
			dead[run] = bits.bits
		}
	}
	g.store.index.bury(dead)
	return true
}

// sealOpenPack ends the open pack and records that it is durable.
func (s *Store) sealOpenPack() error {
	if err := s.writer.withSealed(func() error { return nil }); err != nil {
		return err
	}
	pos := position{seq: s.writer.current() + 1}
	return s.meta.update(func(tx *metaTx) error { return s.settleSealed(tx, pos) })
}

// settleSealed takes the commits out of the pending bucket that lie in sealed
// packs.
func (s *Store) settleSealed(tx *metaTx, before position) error {
	return s.unpend(tx, func(l loc) bool { return l.pack < before.seq })
}
