package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"
)

// ScrubOptions says how to scrub.
type ScrubOptions struct {
	// BytesPerSecond bounds how fast packs are read; 0: as fast as they come.
	BytesPerSecond int64
	// Progress is called after each pack and for each damage, from the
	// scrubbing goroutine. May be nil.
	Progress func(ScrubProgress)
}

// ScrubProgress counts what a scrub did so far, for metrics.
type ScrubProgress struct {
	Packs, Records int64
	Bytes          int64   // of packs read
	Damaged        int64   // records
	Last           *Damage // the damage that this call is about; nil after a pack
}

// Scrub reads each pack once, the open one as far as it is written by now, and
// checks every record against its digest, slowly. Damage is logged, reported and remembered: putting the same
// content again heals it. Collections and writers go on meanwhile; a pack
// that a collection removes is passed over.
func (s *Store) Scrub(ctx context.Context, o ScrubOptions) (ScrubProgress, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return ScrubProgress{}, err
	}
	defer release()
	c := &scrubber{ctx: ctx, store: s, opt: o, start: time.Now(), met: make(map[loc]bool)}
	if c.opt.Progress == nil {
		c.opt.Progress = func(ScrubProgress) {}
	}
	open := s.writer.end()
	seqs, err := listPacks(s.packDir())
	for _, seq := range seqs {
		switch {
		case err != nil:
		case s.index.covers(seq):
			err = c.pack(seq, math.MaxInt64)
		case seq == open.seq:
			err = c.pack(seq, open.off)
		}
	}
	if err == nil {
		err = c.lost()
	}
	if err != nil {
		return c.sum, fmt.Errorf("scrub: %w", err)
	}
	return c.sum, nil
}

// lost reports the records that no pack has.
func (c *scrubber) lost() error {
	c.store.maint.RLock()
	lost, err := c.store.lostRecords()
	c.store.maint.RUnlock()
	lost = c.store.current(lost)
	c.store.noteAllDamage(lost)
	for _, e := range lost {
		if c.met[loc{pack: e.loc.pack, off: e.loc.off}] {
			continue
		}
		c.report(&Damage{e.digest, e.loc.pack, e.loc.off, lostReason})
	}
	return err
}

func (c *scrubber) report(d *Damage) {
	c.met[loc{pack: d.Pack, off: d.Offset}] = true
	c.sum.Damaged++
	report := c.sum
	report.Last = d
	c.opt.Progress(report)
}

type scrubber struct {
	ctx   context.Context //nolint:containedctx // lives as long as the call
	store *Store
	opt   ScrubOptions
	start time.Time
	sum   ScrubProgress
	dead  map[int64]bool
	met   map[loc]bool // reported
}

// pack checks the records of a pack that lie before most.
func (c *scrubber) pack(seq uint64, most int64) error {
	f, err := os.Open(filepath.Join(c.store.packDir(), packName(seq)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if c.dead, err = c.store.meta.deadOffsets(seq); err != nil {
		return err
	}
	sc := newPackScanner(&pacedReader{c, f}, packHeaderSize, min(most, info.Size()))
	err = sc.scanAll(
		func(rec scanned) error {
			c.sum.Records++
			if _, err := rec.header.open(rec.payload); err != nil {
				c.damage(seq, &damage{off: rec.off, header: rec.header, reason: err.Error()})
			}
			return c.ctx.Err()
		},
		func(d *damage) { c.damage(seq, d) })
	if err == nil {
		c.sum.Packs++
		c.opt.Progress(c.sum)
	}
	return err
}

// damage reports a record, unless a collection removed it.
func (c *scrubber) damage(seq uint64, d *damage) {
	if c.dead[d.off] {
		return
	}
	digest := d.header.digest
	if digest.IsZero() {
		digest = c.store.index.digestAt(seq, d.off)
	}
	if l, ok := c.store.index.find(digest); ok && l.pack == seq && l.off == d.off {
		c.store.noteDamage(digest, l)
	}
	c.report(&Damage{digest, seq, d.off, d.reason})
}

// pacedReader reads no faster than the scrub may.
type pacedReader struct {
	c *scrubber
	r io.ReaderAt
}

// ReadAt implements io.ReaderAt.
func (p *pacedReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := p.r.ReadAt(b, off)
	p.c.sum.Bytes += int64(n)
	if rate := p.c.opt.BytesPerSecond; rate > 0 {
		due := p.c.start.Add(time.Duration(float64(p.c.sum.Bytes) / float64(rate) * float64(time.Second)))
		if waitErr := sleepUntil(p.c.ctx, due); waitErr != nil {
			return n, waitErr
		}
	}
	return n, err
}

func sleepUntil(ctx context.Context, due time.Time) error {
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
