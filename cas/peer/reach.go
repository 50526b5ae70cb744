package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"skerry.internal/cas"
)

// reach knows what the tree of one root leads to, and keeps the tree from
// being collected. It learns as directories and chunk lists are given away,
// since a receiver asks for what they name; only when something else is asked
// for, such as after a restart, the whole tree is read, once.
type reach struct {
	root    cas.Digest
	store   *cas.Store
	session *cas.Session
	most    int // objects

	mu     sync.Mutex
	keys   *keySet
	size   int   // of keys, when it was last accounted for
	whole  bool  // keys holds the whole tree
	large  error // the tree has too many objects
	walk   chan struct{}
	users  int
	idleAt uint64 // when it was used or released last, by reaches.clock, which guards it
}

var errAbsent = failure(NotFound, "ask for a grant of a tree that the source has", "the source has not got the granted tree")

func newReach(ctx context.Context, store *cas.Store, root cas.Digest, most int) (*reach, error) {
	session, err := store.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := session.Has(root, cas.KindDirectory); !ok {
		session.End()
		return nil, errAbsent
	}
	r := &reach{root: root, store: store, session: session, most: most, keys: newKeySet(), walk: make(chan struct{}, 1)}
	r.keys.add(cas.KindDirectory, root)
	return r, nil
}

// split parts what is reachable from what is not.
func (r *reach) split(ctx context.Context, b *Batch) (ok []wanted, lacking []cas.Digest, err error) {
	if !r.knowsAll(b) {
		if err := r.readAll(ctx); err != nil {
			return nil, nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ok = make([]wanted, 0, b.Len())
	err = b.each(func(w wanted) error {
		if r.keys.has(w.kind, w.digest) {
			ok = append(ok, w)
		} else {
			lacking = append(lacking, w.digest)
		}
		return nil
	})
	return ok, lacking, err
}

func (r *reach) knowsAll(b *Batch) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whole || b.each(func(w wanted) error {
		if !r.keys.has(w.kind, w.digest) {
			return errAbsent
		}
		return nil
	}) == nil
}

// learn adds what an object names that is itself reachable as kind.
func (r *reach) learn(kind cas.Kind, content []byte) error {
	refs, err := cas.References(kind, content)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range refs {
		r.keys.add(ref.Kind, ref.Digest)
	}
	return r.bounded()
}

func (r *reach) bounded() error {
	if r.keys.count > r.most && r.large == nil {
		r.large = over(fmt.Sprintf("%d objects in a tree", r.most), "transfer parts of the tree, or raise the source's limit", "the granted tree is too large")
	}
	return r.large
}

// readAll reads the tree's directories and chunk lists. One caller does it,
// the others wait.
func (r *reach) readAll(ctx context.Context) error {
	select {
	case r.walk <- struct{}{}:
		defer func() { <-r.walk }()
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	done, large := r.whole, r.large
	r.mu.Unlock()
	if done || large != nil {
		return large
	}
	read := newKeySet()
	read.add(cas.KindDirectory, r.root)
	stack := []wanted{{cas.KindDirectory, r.root}}
	for len(stack) > 0 {
		w := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		next, err := r.readOne(ctx, w)
		if err != nil {
			return err
		}
		for _, n := range next {
			if read.add(n.kind, n.digest) {
				stack = append(stack, n)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.whole = true
	return nil
}

// readOne learns from one object and returns what else must be read. What is
// damaged here leads nowhere.
func (r *reach) readOne(ctx context.Context, w wanted) (next []wanted, err error) {
	content, err := r.store.GetBytes(ctx, w.digest)
	if errors.Is(err, cas.ErrCorrupt) || errors.Is(err, cas.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	refs, err := cas.References(w.kind, content)
	if err != nil {
		return nil, nil //nolint:nilerr // likewise
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range refs {
		r.keys.add(ref.Kind, ref.Digest)
		if ref.Kind != cas.KindBlob {
			next = append(next, wanted{ref.Kind, ref.Digest})
		}
	}
	return next, r.bounded()
}
