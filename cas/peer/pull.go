package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.internal/cas"
)

// PullOptions say how to pull and what the tree is kept as.
type PullOptions struct {
	// Pin names a pin that keeps the tree once it is there; Lease a lease, for
	// Collections collections. Without both only Hold keeps it.
	Pin, Lease  string
	Collections uint64
	// Hold is called with the tree complete and durable, before the pull lets
	// go of it; where a caller commits it to a head. May be nil.
	Hold func(ctx context.Context, root cas.Digest) error

	// Base are trees that heads, pins or leases of the store keep, such as older
	// states: a directory that lies in the same place in one of them is known to
	// be complete without looking into it. The tree that Pin or Lease keeps now
	// is one of them.
	Base []cas.Digest

	Peer      string // the source's name, for errors
	Bandwidth *Limiter
	Report    func(Progress) // now and then, from several goroutines in turn; may be nil
	Logger    *slog.Logger

	Batches     int           // of blobs on their way at once; default 4
	Stall       time.Duration // silence after which the source is given up; default 1 min
	MaxBad      int           // damaged objects that are asked for again; one more fails the pull. Default 3, none: -1
	MaxMetadata int64         // bytes of one directory or chunk list; default 128 MiB
	MaxDepth    int           // of directories; default 4096
	MaxBytes    int64         // of records in all; 0: no limit
	MaxObjects  int64         // directories and chunk lists in all that are lacking; default 16 million
}

func (o PullOptions) withDefaults() PullOptions {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Batches <= 0 {
		o.Batches = 4
	}
	if o.Stall <= 0 {
		o.Stall = time.Minute
	}
	if o.MaxBad == 0 {
		o.MaxBad = 3
	}
	if o.MaxMetadata <= 0 {
		o.MaxMetadata = 128 << 20
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = 4096
	}
	if o.MaxObjects <= 0 {
		o.MaxObjects = 16_000_000
	}
	return o
}

// Result says what a pull did.
type Result struct {
	Root        cas.Digest
	Directories int64 // that the store did not have
	ChunkLists  int64
	Blobs       int64
	Bytes       int64 // of records that were received
	Duration    time.Duration
}

// Pull brings the tree root into store, asking source for what the store does
// not have complete. On success the tree is whole, durable and kept as the
// options say. On failure what has arrived stays until it is collected, and
// the next Pull asks for the rest.
func Pull(ctx context.Context, store *cas.Store, source Source, root cas.Digest, o PullOptions) (Result, error) {
	start := time.Now()
	session, err := store.NewSession(ctx)
	if err != nil {
		return Result{}, err
	}
	defer session.End()
	p := &puller{store: store, session: session, source: source, opt: o.withDefaults(), blobs: newBlobQueue(), seen: newKeySet()}
	p.meter.report = o.Report
	if p.spool, err = newSpool(session); err != nil {
		return Result{}, err
	}
	defer func() { _ = p.spool.close() }()
	err = p.run(ctx, root)
	done := p.meter.end()
	res := Result{Root: root, Directories: p.newDirs, ChunkLists: p.newLists, Blobs: p.newBlobs, Bytes: done.Bytes, Duration: time.Since(start)}
	if err != nil {
		return res, fmt.Errorf("pull %s: %w", root, err)
	}
	return res, nil
}

// puller is one pull.
type puller struct {
	store   *cas.Store
	session *cas.Session
	source  Source
	opt     PullOptions
	spool   *spool
	blobs   *blobQueue
	seen    *keySet // directories and chunk lists that were met; by the walk alone
	meter   meter
	big     sync.Mutex // held while a big object is opened

	mu       sync.Mutex
	bytes    int64
	bad      int
	newBlobs int64

	newDirs, newLists int64
}

func (p *puller) run(ctx context.Context, root cas.Digest) error {
	if root.IsZero() {
		return failure(Invalid, "name a tree", "no digest to pull")
	}
	if err := p.transfer(ctx, root); err != nil {
		return err
	}
	if err := p.storeMetadata(ctx, root); err != nil {
		return err
	}
	return p.keep(ctx, root)
}

// transfer walks the tree, and has blobs fetched as it meets them.
func (p *puller) transfer(ctx context.Context, root cas.Digest) error {
	group, ctx := errgroup.WithContext(ctx)
	defer p.blobs.wake(ctx)()
	group.Go(func() error {
		defer p.blobs.close()
		return p.walk(ctx, root)
	})
	for range p.opt.Batches {
		group.Go(func() error { return p.fetchBlobs(ctx) })
	}
	return group.Wait()
}

// fetchBlobs works batches off until none is left.
func (p *puller) fetchBlobs(ctx context.Context) error {
	for {
		batch, err := p.blobs.take(ctx)
		if err != nil || len(batch) == 0 {
			return err
		}
		if batch = p.stillLacking(batch); len(batch) == 0 {
			continue
		}
		bad, err := p.fetch(ctx, batch, func(a arrival) error {
			fresh, err := p.session.PutRecord(ctx, cas.KindBlob, a.header, a.payload())
			if err == nil {
				p.blobs.arrived(a.ref.Digest)
			}
			if fresh {
				p.mu.Lock()
				p.newBlobs++
				p.mu.Unlock()
			}
			return err
		})
		if err != nil {
			return err
		}
		if len(bad) > 0 {
			p.blobs.again(bad)
		}
	}
}

// stillLacking leaves out what arrived between the look at the store and at
// the queue.
func (p *puller) stillLacking(batch []cas.Ref) []cas.Ref {
	return slices.DeleteFunc(batch, func(r cas.Ref) bool {
		_, ok := p.session.Has(r.Digest, cas.KindBlob)
		if ok {
			p.blobs.arrived(r.Digest)
		}
		return ok
	})
}

// received counts bytes against the limit.
func (p *puller) received(n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += n
	if p.opt.MaxBytes > 0 && p.bytes > p.opt.MaxBytes {
		return over(fmt.Sprintf("%d bytes received", p.opt.MaxBytes), "raise the limit, or transfer less", "the tree needs more bytes")
	}
	return nil
}

// spoiled counts an object whose bytes were wrong, and fails when there were
// too many.
func (p *puller) spoiled(ref cas.Ref, cause error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad++
	e := p.blame(failure(BadObject, "check the source with `runnerd cas verify`", "it sent wrong bytes for %s, the %d. time", ref.Digest, p.bad))
	e.Object, e.Cause = ref.Digest, cause
	if p.bad > max(0, p.opt.MaxBad) {
		return e
	}
	p.opt.Logger.Warn("object is asked for again", "digest", ref.Digest, "peer", p.opt.Peer, "err", cause)
	return nil
}

// keep makes the tree durable and gives it its names.
func (p *puller) keep(ctx context.Context, root cas.Digest) error {
	if _, err := p.session.Complete(ctx, cas.KindDirectory, root); err != nil { // known by now, which spares the pin from looking
		return err
	}
	var errs []error
	if p.opt.Pin != "" {
		errs = append(errs, p.store.Pin(ctx, p.opt.Pin, root))
	}
	if p.opt.Lease != "" {
		errs = append(errs, p.store.Lease(ctx, p.opt.Lease, root, p.opt.Collections))
	}
	if len(errs) == 0 {
		errs = append(errs, p.store.Sync(ctx))
	}
	if err := errors.Join(errs...); err != nil || p.opt.Hold == nil {
		return err
	}
	return p.opt.Hold(ctx, root)
}

func malformed(d cas.Digest, format string, args ...any) *Error {
	e := failure(Protocol, "take the snapshot anew at the source", format, args...)
	e.Object, e.Cause = d, errMalformedTree
	return e
}
