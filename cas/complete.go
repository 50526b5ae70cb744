package cas

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
)

// provenKey is what a session remembers of a complete tree or chunk list.
type provenKey struct {
	kind   Kind
	digest Digest
}

func (x *Session) key(kind Kind, d Digest) uint64 {
	return maphash.Comparable(x.seed, provenKey{kind, d})
}

func (x *Session) isProven(k uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.proven[k]
	return ok
}

func (x *Session) prove(k uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.proven[k] = struct{}{}
}

// Complete reports whether the object of kind d and all that it names, at any
// depth, is in the store; it then stays until the session ends.
//
// That an object is indexed does not say it: the same bytes may have been
// stored as a file, which names nothing, or kept by a collection as such. So
// directories and chunk lists are read, each at most once a session when they
// are complete; of blobs the index is asked. A directory that cannot be read
// counts as missing.
func (x *Session) Complete(ctx context.Context, kind Kind, d Digest) (bool, error) {
	release, err := x.store.enter(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if _, ok := x.Has(d, kind); !ok {
		return false, nil
	}
	ok, err := x.complete(ctx, kind, d, 0)
	if ok && kind != KindBlob {
		x.store.touches.vouch(d, roleOf(kind))
	}
	return ok, err
}

// made touches a tree that was just made of what is there.
func (s *Store) made(tree Digest) {
	if s.hit(tree, roleDir) {
		s.touches.vouch(tree, roleDir)
	}
}

// whole reports whether all that the object of kind d names is there. The
// caller has touched it as such. That it is indexed does not say it: see
// Session.Complete. The answer is known of what was made or looked at lately.
func (s *Store) whole(ctx context.Context, kind Kind, d Digest) (bool, error) {
	if s.touches.vouched(d, roleOf(kind)) {
		return true, nil
	}
	x := &Session{store: s, seed: maphash.MakeSeed(), proven: make(map[uint64]struct{})}
	ok, err := x.complete(ctx, kind, d, 0)
	if ok {
		s.touches.vouch(d, roleOf(kind))
	}
	return ok, err
}

// usable touches a tree and reports whether all of it is there. One that a
// head, a pin or a lease keeps need not be gone through.
func (s *Store) usable(ctx context.Context, tree Digest) bool {
	if !s.hit(tree, roleDir) {
		return false
	}
	if !s.touches.vouched(tree, roleDir) && s.isRoot(tree) {
		s.touches.vouch(tree, roleDir)
	}
	ok, err := s.whole(ctx, KindDirectory, tree)
	return err == nil && ok
}

// touchTree touches a tree that is going to be kept, and makes sure that it is
// one and that all of it is there.
func (s *Store) touchTree(ctx context.Context, tree Digest) error {
	if !s.hit(tree, roleDir) {
		return fmt.Errorf("tree %s: %w", tree, ErrNotFound)
	}
	ok, err := s.whole(ctx, KindDirectory, tree)
	if ok || err != nil {
		return err
	}
	if _, err := s.readDir(tree); err != nil {
		return fmt.Errorf("tree %s: %w", tree, err)
	}
	return fmt.Errorf("tree %s lacks objects that were collected or are damaged; make the snapshot again: %w", tree, ErrNotFound)
}

func (x *Session) complete(ctx context.Context, kind Kind, d Digest, depth int) (bool, error) {
	if kind == KindBlob {
		return x.store.index.has(d) && !x.store.isDamaged(d), nil
	}
	k := x.key(kind, d)
	if x.isProven(k) {
		return true, nil
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if depth > maxDepth {
		return false, nil
	}
	refs, ok, err := x.readable(kind, d)
	if err != nil || !ok {
		return false, err
	}
	for _, r := range refs {
		if ok, err := x.complete(ctx, r.Kind, r.Digest, depth+1); err != nil || !ok {
			return false, err
		}
	}
	x.prove(k)
	return true, nil
}

// readable returns what an object names. That it is missing, damaged or not
// of that kind is no error.
func (x *Session) readable(kind Kind, d Digest) (refs []Ref, ok bool, err error) {
	content, err := x.store.get(d)
	if err == nil {
		refs, err = References(kind, content)
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrVersion) {
		return nil, false, nil
	}
	return refs, err == nil, err
}
