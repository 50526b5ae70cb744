package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// VerifyOptions says how much to check.
type VerifyOptions struct {
	// Reachable also follows every head through its history and trees, and every
	// pin and lease, and names what is missing or unreadable, and why it is
	// needed. Without it only the records in the packs are checked.
	Reachable bool
}

// Damage is a record that does not hold what it should.
type Damage struct {
	Digest Digest // zero when the record's header is damaged and no index knows it
	Pack   uint64
	Offset int64
	Reason string
}

// Missing is an object that a head, a pin or a lease needs and that cannot be
// read. It is named once, by the first of them.
type Missing struct {
	Digest Digest
	Head   string // one of the three is set
	Pin    string
	Lease  string
	Commit Digest // of the head
	Path   string // of the entry that needs it; "" for the commit or the root
	Reason string
}

// VerifyReport says what Verify found.
type VerifyReport struct {
	Packs, Records int64
	LostPacks      []uint64 // that the index or meta.db knows and that are not there
	Bytes          int64    // of content, uncompressed
	Damaged        []Damage
	Missing        []Missing
	Collected      int64 // records that a collection removed from the index; their packs are mostly needed
	Unindexed      int64 // good records that no index knows; Rebuild cures it
	Heads, Commits int64
	Pins, Leases   int64
	Reached        int64         // different objects that these need
	Meta           string        // what is damaged in meta.db; "" for nothing. Nothing is followed then
	Indexes        []IndexDamage // Rebuild, or opening the store again, cures it
}

// IndexDamage is an index run that is not what was written.
type IndexDamage struct {
	File   string
	Reason string
}

// OK reports whether nothing is wrong.
func (r *VerifyReport) OK() bool {
	return len(r.LostPacks) == 0 && len(r.Damaged) == 0 && len(r.Missing) == 0 && r.Unindexed == 0 && r.Meta == "" && len(r.Indexes) == 0
}

// Verify reads the whole store, checks each record's checksums and digest, the
// indexes and meta.db, and goes on after damage. The error is for what keeps it from going on;
// damage is in the report.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (VerifyReport, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return VerifyReport{}, err
	}
	defer release()
	s.maint.RLock()
	defer s.maint.RUnlock()
	v := &verifier{ctx: ctx, store: s, seen: make(map[Digest]role), bad: make(map[Digest]string)}
	v.report.Indexes = s.checkRuns()
	if err := v.meta(); err != nil {
		return v.report, fmt.Errorf("verify meta.db: %w", err)
	}
	if err := v.records(); err != nil {
		return v.report, fmt.Errorf("verify records: %w", err)
	}
	if err := v.lost(); err != nil {
		return v.report, fmt.Errorf("verify packs: %w", err)
	}
	if o.Reachable && v.report.Meta == "" {
		if err := v.roots(); err != nil {
			return v.report, fmt.Errorf("verify heads and pins: %w", err)
		}
	}
	return v.report, nil
}

type verifier struct {
	ctx    context.Context //nolint:containedctx // lives as long as the call
	store  *Store
	report VerifyReport
	seen   map[Digest]role   // objects that were followed, and as what
	bad    map[Digest]string // objects with a damaged record, and its damage

	shallow map[Digest]bool
	dead    map[int64]bool // in the pack at hand

	why Missing // the root that is being followed
}

// meta checks meta.db. What cannot be read of it is then done without.
func (v *verifier) meta() error {
	err := v.store.meta.check()
	if err == nil {
		v.shallow, err = v.store.meta.shallow()
	}
	if isMetaDamage(err) {
		v.report.Meta = err.Error()
		return nil
	}
	return err
}

// checkRuns compares the mapped index runs with their checksums.
func (s *Store) checkRuns() (damaged []IndexDamage) {
	s.merging.Lock() // so that the runs stay mapped
	defer s.merging.Unlock()
	damage := func(reason string) error { return fmt.Errorf("%s: %w", reason, ErrCorrupt) }
	for _, run := range s.index.sealedRuns() {
		err := guarded(damage, func() error {
			_, err := parseIndexRun(run.data)
			return err
		})
		if err != nil {
			damaged = append(damaged, IndexDamage{filepath.Base(run.path), err.Error()})
		}
	}
	return damaged
}

func (v *verifier) records() error {
	return v.store.scanPacks(v.ctx, func(seq uint64, sc *packScanner) error {
		v.report.Packs++
		var err error
		if v.dead, err = v.store.meta.deadOffsets(seq); err != nil && !isMetaDamage(err) {
			return err
		}
		if err := v.packHeader(seq, sc); err != nil {
			return err
		}
		return sc.scanAll(
			func(rec scanned) error { v.record(seq, rec); return v.ctx.Err() },
			func(d *damage) {
				if !v.dead[d.off] {
					v.damaged(d.header.digest, seq, d.off, d.reason)
				}
			})
	})
}

func (v *verifier) packHeader(seq uint64, sc *packScanner) error {
	b := make([]byte, packHeaderSize)
	n, err := sc.r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) && !unreadable(err) {
		return err
	}
	if _, err := parsePackHeader(b[:n]); err != nil {
		v.damaged(Digest{}, seq, 0, err.Error())
	}
	return nil
}

// lost reports the records that were not met, since their packs end before
// them or are gone.
func (v *verifier) lost() error {
	packs, err := v.store.lostPacks()
	if err != nil && !isMetaDamage(err) {
		return err
	}
	v.report.LostPacks = packs
	lost, err := v.store.lostRecords()
	var bad *CorruptError
	if errors.As(err, &bad) {
		return nil // the index runs are reported already
	}
	met := make(map[loc]bool)
	for _, d := range v.report.Damaged {
		met[loc{pack: d.Pack, off: d.Offset}] = true
	}
	for _, e := range lost {
		v.bad[e.digest] = lostReason
		if !met[loc{pack: e.loc.pack, off: e.loc.off}] {
			v.report.Damaged = append(v.report.Damaged, Damage{e.digest, e.loc.pack, e.loc.off, lostReason})
		}
	}
	v.store.noteAllDamage(v.store.current(lost))
	return err
}

func (v *verifier) record(seq uint64, rec scanned) {
	if v.dead[rec.off] {
		v.report.Collected++
		return
	}
	v.report.Records++
	v.report.Bytes += int64(rec.header.size)
	if _, err := rec.header.open(rec.payload); err != nil {
		v.damaged(rec.header.digest, seq, rec.off, err.Error())
		return
	}
	if !v.store.index.has(rec.header.digest) {
		v.report.Unindexed++
	}
}

// damaged reports a record. When its header is unreadable the index may know
// whose record it was.
func (v *verifier) damaged(d Digest, seq uint64, off int64, reason string) {
	if d.IsZero() {
		d = v.store.index.digestAt(seq, off)
	}
	if !d.IsZero() {
		v.bad[d] = reason
		if l, ok := v.store.index.find(d); ok && l.pack == seq && l.off == off {
			v.store.noteDamage(d, l)
		}
	}
	v.report.Damaged = append(v.report.Damaged, Damage{d, seq, off, reason})
}
