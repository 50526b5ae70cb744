package cas

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Pin keeps a tree until Unpin, durably. A pin of the same name is replaced.
func (s *Store) Pin(ctx context.Context, name string, tree Digest) error {
	return s.hold(ctx, bucketPins, name, tree, tree.Bytes())
}

// Unpin lets go of a pin. One that is not there is ErrNotFound.
func (s *Store) Unpin(ctx context.Context, name string) error {
	return s.letGo(ctx, bucketPins, name)
}

// Lease keeps a tree durably for so many collections, at least one, or until
// EndLease. A lease of the same name is replaced.
func (s *Store) Lease(ctx context.Context, name string, tree Digest, collections uint64) error {
	return s.hold(ctx, bucketLeases, name, tree, append(tree.Bytes(), leBytes(max(1, collections))...))
}

// EndLease lets go of a lease. One that is not there is ErrNotFound.
func (s *Store) EndLease(ctx context.Context, name string) error {
	return s.letGo(ctx, bucketLeases, name)
}

func (s *Store) hold(ctx context.Context, bucket []byte, name string, tree Digest, value []byte) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	defer s.session()()
	var pos position
	switch {
	case name == "" || len(name) > maxHeadName:
		err = fmt.Errorf("name of %d bytes, want 1 to %d: %w", len(name), maxHeadName, ErrInvalid)
	default:
		if err = s.touchTree(ctx, tree); err == nil {
			pos, err = s.writer.sync()
		}
	}
	if err == nil {
		err = s.meta.update(func(tx *metaTx) error { return errors.Join(s.settle(tx, pos), tx.put(bucket, []byte(name), value)) })
	}
	if err != nil {
		return fmt.Errorf("keep in %s as %q: %w", bucket, name, err)
	}
	return nil
}

func (s *Store) letGo(ctx context.Context, bucket []byte, name string) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	return s.meta.update(func(tx *metaTx) error {
		if tx.get(bucket, []byte(name)) == nil {
			return fmt.Errorf("%q in %s: %w", name, bucket, ErrNotFound)
		}
		return tx.del(bucket, []byte(name))
	})
}

// isRoot reports whether a head, a pin or a lease keeps the tree.
func (s *Store) isRoot(tree Digest) bool {
	heads, err := s.heads()
	if err == nil && slices.ContainsFunc(heads, func(h Head) bool { return h.Tree == tree }) {
		return true
	}
	pinned, err := s.meta.pinned()
	return err == nil && slices.ContainsFunc(pinned, func(p pinnedTree) bool { return p.tree == tree })
}

// pinnedTree is a root that is not a head.
type pinnedTree struct {
	bucket, name string
	tree         Digest
}

func (m *metaDB) pinned() (all []pinnedTree, err error) {
	err = m.view(func(tx *metaTx) error {
		var errs []error
		for _, bucket := range [][]byte{bucketPins, bucketLeases} {
			errs = append(errs, tx.each(bucket, func(k, v []byte) error {
				d, err := DigestFromBytes(v[:min(len(v), DigestSize)])
				all = append(all, pinnedTree{string(bucket), string(k), d})
				return err
			}))
		}
		return errors.Join(errs...)
	})
	return all, err
}

// ageLeases counts a collection against each lease.
func ageLeases(tx *metaTx) error {
	aged := make(map[string][]byte)
	err := tx.each(bucketLeases, func(k, v []byte) error {
		if len(v) == DigestSize+8 {
			aged[string(k)] = append(append([]byte(nil), v[:DigestSize]...), leBytes(leUint64(v[DigestSize:])-1)...)
		}
		return nil
	})
	for k, v := range aged {
		if leUint64(v[DigestSize:]) == 0 {
			err = errors.Join(err, tx.del(bucketLeases, []byte(k)))
		} else {
			err = errors.Join(err, tx.put(bucketLeases, []byte(k), v))
		}
	}
	return err
}
