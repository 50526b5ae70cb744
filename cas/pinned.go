package cas

import (
	"bytes"
	"context"
	"fmt"
)

// Pinned is a tree that a pin or a lease keeps.
type Pinned struct {
	Name        string
	Tree        Digest
	Lease       bool
	Collections uint64 // that the lease still outlasts; 0 for a pin
}

// Pinned returns all pins, then all leases, sorted by name.
func (s *Store) Pinned(ctx context.Context) (all []Pinned, err error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.meta.pinned()
}

// PinnedTree returns the tree that a pin keeps, or ErrNotFound.
func (s *Store) PinnedTree(ctx context.Context, name string) (Digest, error) {
	return s.held(ctx, bucketPins, name)
}

// LeasedTree returns the tree that a lease keeps, or ErrNotFound.
func (s *Store) LeasedTree(ctx context.Context, name string) (Digest, error) {
	return s.held(ctx, bucketLeases, name)
}

func (s *Store) held(ctx context.Context, bucket []byte, name string) (Digest, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Digest{}, err
	}
	defer release()
	var value []byte
	err = s.meta.view(func(tx *metaTx) error {
		value = bytes.Clone(tx.get(bucket, []byte(name)))
		return nil
	})
	if err == nil && value == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Digest{}, fmt.Errorf("%q in %s: %w", name, bucket, err)
	}
	return DigestFromBytes(value[:min(len(value), DigestSize)])
}
