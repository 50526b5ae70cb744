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

// isRoot reports whether a head, a pin or a lease keeps the tree, and vouches for
// it being whole.
func (s *Store) isRoot(tree Digest) bool {
	if !s.Sound() {
		return false
	}
	heads, err := s.heads()
	if err == nil && slices.ContainsFunc(heads, func(h Head) bool { return h.Tree == tree }) {
		return true
	}
	pinned, err := s.meta.pinned()
	return err == nil && slices.ContainsFunc(pinned, func(p Pinned) bool { return p.Tree == tree })
}

func (m *metaDB) pinned() (all []Pinned, err error) {
	err = m.view(func(tx *metaTx) error {
		for _, bucket := range [][]byte{bucketPins, bucketLeases} {
			err := tx.each(bucket, func(k, v []byte) error {
				n := min(len(v), DigestSize)
				d, err := DigestFromBytes(v[:n])
				all = append(all, Pinned{string(k), d, string(bucket) == string(bucketLeases), leUint64(v[n:])})
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// String names the pin or lease as errors do.
func (p *Pinned) String() string {
	if p.Lease {
		return fmt.Sprintf("lease %q", p.Name)
	}
	return fmt.Sprintf("pin %q", p.Name)
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
