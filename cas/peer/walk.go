package peer

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"skerry.internal/cas"
)

// walk goes through the tree level by level, as one level's directories name
// the next one's. What the store has complete is left out.
func (p *puller) walk(ctx context.Context, root cas.Digest) error {
	level := []cas.Ref{{Kind: cas.KindDirectory, Digest: root, Size: -1}}
	p.seen.add(cas.KindDirectory, root)
	trees, err := p.baseTrees(ctx)
	if err != nil {
		return err
	}
	at, met := bases{root: trees}, int64(0)
	for depth := 0; len(level) > 0; depth++ {
		if depth > p.opt.MaxDepth {
			return p.blame(over(fmt.Sprintf("%d levels", p.opt.MaxDepth), "transfer a part of the tree", "the tree is deeper than directories may nest"))
		}
		lacking, err := p.lacking(ctx, level, at)
		if err != nil {
			return err
		}
		if met += int64(len(lacking)); met > p.opt.MaxObjects {
			return p.blame(over(fmt.Sprintf("%d directories and chunk lists", p.opt.MaxObjects), "transfer a part of the tree", "the tree is too large"))
		}
		next := &nextLevel{p: p, above: at, bases: make(bases)}
		if err := p.readLevel(ctx, lacking, next); err != nil {
			return err
		}
		level, at = next.refs, next.bases
	}
	return nil
}

// nextLevel gathers what a level names.
type nextLevel struct {
	p     *puller
	above bases // of the level

	mu    sync.Mutex
	refs  []cas.Ref
	bases bases
}

// took takes over a directory or chunk list: keeps its record for later, and
// has what it names fetched, now or with the next level.
func (n *nextLevel) took(ctx context.Context, a arrival) error {
	p := n.p
	if err := p.spool.add(&a); err != nil {
		return err
	}
	n.names(ctx, &a)
	lacking, err := p.session.Missing(a.names)
	if err != nil {
		e := malformed(a.ref.Digest, "%s names a file with a size that it has not got", a.ref.Digest)
		e.Cause = err
		return e
	}
	added, err := p.blobs.add(ctx, lacking)
	p.meter.add(Progress{KnownObjects: int64(added)})
	return err
}

// names adds the directories and chunk lists that a names.
func (n *nextLevel) names(ctx context.Context, a *arrival) {
	var same map[string][]cas.Digest
	if trees := n.above[a.ref.Digest]; len(trees) > 0 && slices.ContainsFunc(a.names, isDirectory) {
		same = n.p.below(ctx, trees)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range a.names {
		if r.Kind == cas.KindBlob || !n.p.seen.add(r.Kind, r.Digest) {
			continue
		}
		n.refs = append(n.refs, r)
		if dirs := same[r.Name]; len(dirs) > 0 && isDirectory(r) {
			n.bases[r.Digest] = dirs
		}
	}
}

func isDirectory(r cas.Ref) bool { return r.Kind == cas.KindDirectory }

// lacking returns those of a level that the store has not got complete.
func (p *puller) lacking(ctx context.Context, level []cas.Ref, at bases) ([]cas.Ref, error) {
	keep := make([]bool, len(level))
	group, ctx := errgroup.WithContext(ctx)
	workers := min(runtime.GOMAXPROCS(0), 8, len(level))
	for w := range workers {
		group.Go(func() error {
			for i := w; i < len(level); i += workers {
				if at.isBase(level[i]) && p.store.Sound() { // damage may be met on the way
					continue
				}
				ok, err := p.session.Complete(ctx, level[i].Kind, level[i].Digest)
				if err != nil {
					return err
				}
				keep[i] = !ok
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := level[:0:0]
	for i, r := range level {
		if keep[i] {
			out = append(out, r)
		}
	}
	return out, nil
}

// readLevel takes what the store has of the level's objects, and fetches the
// others, in batches of which a few are on their way at once.
func (p *puller) readLevel(ctx context.Context, level []cas.Ref, next *nextLevel) error {
	level, err := p.readLocal(ctx, level, next)
	if err != nil {
		return err
	}
	p.meter.add(Progress{KnownObjects: int64(len(level))})
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(p.opt.Batches)
	size := min(max(len(level)/p.opt.Batches+1, 32), MaxBatch/8)
	for len(level) > 0 {
		n := min(len(level), size)
		batch := level[:n]
		level = level[n:]
		group.Go(func() error { return p.fetchMetadata(ctx, batch, next) })
	}
	return group.Wait()
}

func (p *puller) fetchMetadata(ctx context.Context, batch []cas.Ref, next *nextLevel) error {
	for len(batch) > 0 {
		bad, err := p.fetch(ctx, batch, func(a arrival) error { return next.took(ctx, a) })
		if err != nil {
			return err
		}
		batch = bad
	}
	return nil
}

// readLocal takes directories and chunk lists that are there, though not all
// that they name is, and returns the others.
func (p *puller) readLocal(ctx context.Context, level []cas.Ref, next *nextLevel) ([]cas.Ref, error) {
	var absent []cas.Ref
	here := make(map[cas.Digest]cas.Ref)
	var digests []cas.Digest
	for _, r := range level {
		_, twice := here[r.Digest]
		if _, ok := p.session.Has(r.Digest, r.Kind); !ok || twice {
			absent = append(absent, r)
			continue
		}
		here[r.Digest] = r
		digests = append(digests, r.Digest)
	}
	err := p.store.ReadStored(ctx, digests, func(rec cas.StoredRecord) error {
		a, ok := openLocal(rec, here[rec.Digest])
		if !ok {
			absent = append(absent, a.ref)
			return nil
		}
		return next.took(ctx, a)
	})
	return absent, err
}

func openLocal(rec cas.StoredRecord, ref cas.Ref) (a arrival, ok bool) {
	a = arrival{ref: ref, record: rec.Record}
	if rec.Err != nil {
		return a, false
	}
	var err error
	if a.header, err = cas.ParseRecordHeader(rec.Record); err != nil {
		return a, false
	}
	if a.content, err = a.header.Open(a.payload()); err != nil {
		return a, false
	}
	a.names, err = cas.References(ref.Kind, a.content)
	return a, err == nil
}
