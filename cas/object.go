package cas

import (
	"context"
	"errors"
	"fmt"
)

// put stores content as kind unless it is there, and reports whether it was
// new. It is not durable before Sync or Commit.
func (s *Store) put(kind Kind, d Digest, content []byte) (bool, error) {
	return s.putRecord(kind, d, content, false)
}

func (s *Store) putRecord(kind Kind, d Digest, content []byte, rides bool) (bool, error) {
	if s.hit(d, roleOf(kind)) {
		return false, nil
	}
	if len(content) > maxObjectSize {
		return false, &LimitError{What: "bytes in one object", Limit: maxObjectSize}
	}
	c, payload := compress(content)
	h := recordHeader{kind: kind, codec: c, digest: d, size: uint64(len(content)), stored: uint64(len(payload))}
	return s.writer.append(h, payload, rides)
}

// get returns the verified content of an object. A collection may move the
// object while it is read: then it is looked up again.
func (s *Store) get(d Digest) ([]byte, error) {
	var last loc
	for {
		l, ok := s.index.find(d)
		if !ok {
			if d.IsZero() {
				return nil, fmt.Errorf("no object is named by a digest of zeros: %w", ErrNotFound)
			}
			return nil, fmt.Errorf("object %s: %w", d, ErrNotFound)
		}
		content, err := s.reader.read(d, l)
		if err == nil {
			return content, nil
		}
		if l == last {
			if errors.Is(err, ErrCorrupt) {
				s.noteDamage(d, l)
			}
			return nil, err
		}
		last = l
	}
}

// PutBytes stores a small object and returns its digest. It is durable after
// Sync or the next Commit.
func (s *Store) PutBytes(ctx context.Context, content []byte) (Digest, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Digest{}, err
	}
	defer release()
	d := DigestOf(content)
	if _, err := s.put(KindBlob, d, content); err != nil {
		return Digest{}, fmt.Errorf("put %s: %w", d, err)
	}
	return d, nil
}

// GetBytes returns a whole object, verified. Files over 2 MiB are not one
// object; use OpenFile.
func (s *Store) GetBytes(ctx context.Context, d Digest) ([]byte, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.get(d)
}

// Has reports whether the object is in the store, without reading it.
func (s *Store) Has(ctx context.Context, d Digest) (bool, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	return s.index.has(d), nil
}
