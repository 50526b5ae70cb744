package cas

import (
	"bytes"
	"context"
	"fmt"
)

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
