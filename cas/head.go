package cas

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Head is a name that points at the latest commit of a line of commits.
type Head struct {
	Name   string
	Commit Digest
	Tree   Digest
	Epoch  uint64 // of the latest commit; the fence may be higher
	Seq    uint64
	Source string // of the latest commit
}

// CommitRequest asks to move a head to a tree.
type CommitRequest struct {
	Head string
	// Expect is the commit the head must be at; zero means that the head
	// must not exist.
	Expect Digest
	Epoch  uint64
	Tree   Digest
	Source string
	Time   time.Time // zero: now
	Stats  TreeStats
	// From is the commit of another store that a head which does not exist goes
	// on from: Digest, Tree and Seq are used. That commit need not be here; the
	// history ends before it.
	From Commit
}

const headVersion = 1

func (h *Head) marshal() []byte {
	e := &encoder{}
	e.u8(headVersion)
	e.digest(h.Commit)
	e.digest(h.Tree)
	e.uvarint(h.Epoch)
	e.uvarint(h.Seq)
	e.str(h.Source)
	return e.b
}

func parseHead(name string, b []byte) (Head, error) {
	d := &decoder{b: b}
	if v := d.u8("head version"); d.err == nil && v != headVersion {
		return Head{}, &VersionError{What: "head", Got: uint64(v), Want: headVersion}
	}
	h := Head{Name: name, Commit: d.digest("commit"), Tree: d.digest("tree"), Epoch: d.uvarint("epoch"), Seq: d.uvarint("seq")}
	h.Source = d.str(maxSource, "source")
	if err := d.end("head"); err != nil {
		return Head{}, fmt.Errorf("head %q: %w", name, err)
	}
	return h, nil
}

// readHead returns the head and the lowest epoch that may commit to it.
func readHead(tx *metaTx, name string) (h Head, fence uint64, found bool, err error) {
	fence = leUint64(tx.get(bucketFences, []byte(name)))
	b := tx.get(bucketHeads, []byte(name))
	if b == nil {
		return Head{Name: name}, fence, false, nil
	}
	h, err = parseHead(name, b)
	return h, max(fence, h.Epoch), true, err
}

// Head returns the head called name, or ErrNotFound.
func (s *Store) Head(ctx context.Context, name string) (Head, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Head{}, err
	}
	defer release()
	var h Head
	err = s.meta.view(func(tx *metaTx) error {
		var found bool
		if h, _, found, err = readHead(tx, name); err == nil && !found {
			err = ErrNotFound
		}
		return err
	})
	if err != nil {
		return Head{}, fmt.Errorf("head %q: %w", name, err)
	}
	return h, nil
}

// Heads returns all heads, sorted by name.
func (s *Store) Heads(ctx context.Context) ([]Head, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.heads()
}

func (s *Store) heads() (heads []Head, err error) {
	err = s.meta.view(func(tx *metaTx) error {
		return tx.each(bucketHeads, func(k, v []byte) error {
			h, err := parseHead(string(k), v)
			heads = append(heads, h)
			return err
		})
	})
	return heads, err
}

// DeleteHead forgets a head; its commits stay until they are collected. The
// epoch it reached stays as a fence, so that a stale writer cannot make the
// head anew. Deleting what is not there is ErrNotFound.
func (s *Store) DeleteHead(ctx context.Context, name string) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = s.meta.update(func(tx *metaTx) error {
		_, fence, found, err := readHead(tx, name)
		if err != nil {
			return err
		}
		if !found {
			return ErrNotFound
		}
		return errors.Join(tx.del(bucketHeads, []byte(name)),
			tx.put(bucketFences, []byte(name), leBytes(fence)))
	})
	if err != nil {
		return fmt.Errorf("delete head %q: %w", name, err)
	}
	return nil
}

// Fence raises the lowest epoch that may commit to a head, which need not
// exist. It never lowers it: a fence above epoch is ErrFenced.
func (s *Store) Fence(ctx context.Context, name string, epoch uint64) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	if name == "" || len(name) > maxHeadName {
		return fmt.Errorf("fence head: name of %d bytes, want 1 to %d: %w", len(name), maxHeadName, ErrInvalid)
	}
	return s.meta.update(func(tx *metaTx) error {
		_, fence, _, err := readHead(tx, name)
		if err != nil {
			return err
		}
		if epoch < fence {
			return &FencedError{Head: name, Epoch: epoch, Current: fence}
		}
		return tx.put(bucketFences, []byte(name), leBytes(epoch))
	})
}
