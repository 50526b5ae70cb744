package cas

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Commit makes everything that the tree needs durable and then moves the
// head, in this order. It fails with ErrFenced when the head has seen a newer
// epoch and with ErrConflict when it is not at Expect. A request whose Source
// and Tree are those of the head's latest commit was done before: its head is
// answered again. A tree that was neither committed nor leased while two
// collections went by may be gone: that is ErrNotFound, and the snapshot is to
// be made again.
func (s *Store) Commit(ctx context.Context, req CommitRequest) (Head, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Head{}, err
	}
	defer release()
	defer s.session()()
	h, err := s.commit(ctx, req)
	if err != nil {
		return Head{}, fmt.Errorf("commit to head %q: %w", req.Head, err)
	}
	return h, nil
}

func (s *Store) commit(ctx context.Context, req CommitRequest) (Head, error) {
	if !s.hit(req.Tree, roleDir) {
		return Head{}, fmt.Errorf("tree %s: %w", req.Tree, ErrNotFound)
	}
	var before Head
	var done bool
	err := s.meta.view(func(tx *metaTx) (err error) {
		before, done, err = req.check(tx)
		return err
	})
	if err != nil || done {
		return before, err
	}
	if err := s.touchTree(ctx, req.Tree); err != nil {
		return Head{}, err
	}
	c, after := req.build(before)
	content, err := c.marshal()
	if err != nil {
		return Head{}, err
	}
	after.Commit = DigestOf(content)
	return s.publish(req, after, content)
}

// check tells whether the commit may go on from the head as it is in tx, or
// was done before.
func (r *CommitRequest) check(tx *metaTx) (h Head, done bool, err error) {
	h, fence, found, err := readHead(tx, r.Head)
	switch {
	case err != nil:
		return h, false, err
	case r.Epoch < fence:
		return h, false, &FencedError{Head: r.Head, Epoch: r.Epoch, Current: fence}
	case found && r.Source != "" && h.Source == r.Source && h.Tree == r.Tree:
		return h, true, nil
	case h.Commit != r.Expect:
		return h, false, &ConflictError{Head: r.Head, Expect: r.Expect, Current: h.Commit}
	}
	return h, false, nil
}

func (r *CommitRequest) build(before Head) (Commit, Head) {
	when := r.Time
	if when.IsZero() {
		when = time.Now()
	}
	c := Commit{
		Head: r.Head, Tree: r.Tree, Parent: before.Commit, ParentTree: before.Tree,
		Epoch: r.Epoch, Seq: before.Seq + 1, Time: when, Source: r.Source, Stats: r.Stats,
	}
	if before.Commit.IsZero() && !r.From.Digest.IsZero() {
		c.Parent, c.ParentTree, c.Seq = r.From.Digest, r.From.Tree, r.From.Seq+1
	}
	return c, Head{Name: r.Head, Tree: c.Tree, Epoch: c.Epoch, Seq: c.Seq, Source: c.Source}
}

// maxRiding bounds the commits that lie in meta.db and in no synced pack.
const maxRiding = 256

// publish stores the commit object and moves the head. When nothing else
// waits for an fsync of the pack, the commit object rides in meta.db's
// transaction, whence it is put back into a pack should the pack lose it.
func (s *Store) publish(req CommitRequest, after Head, content []byte) (Head, error) {
	pos, rides := s.writer.clean()
	rides = rides && s.riding.Load() < maxRiding
	if _, err := s.putRecord(KindCommit, after.Commit, content, rides); err != nil {
		return Head{}, err
	}
	if !rides {
		var err error
		if pos, err = s.writer.sync(); err != nil {
			return Head{}, err
		}
	}
	head := after
	err := s.meta.update(func(tx *metaTx) error {
		now, done, err := req.check(tx)
		if err != nil || done {
			head = now
			return err
		}
		if rides { // what it names may have been synced without a mark, as by a Close
			err = errors.Join(markDurable(tx, pos), tx.put(bucketPending, after.Commit.Bytes(), content))
			s.riding.Add(1)
		} else {
			err = s.settle(tx, pos)
		}
		if req.Expect.IsZero() && !req.From.Digest.IsZero() { // no collection is to look for what is elsewhere
			err = errors.Join(err, tx.put(bucketShallow, after.Commit.Bytes(), []byte{1}))
		}
		return errors.Join(err, tx.put(bucketHeads, []byte(after.Name), after.marshal()))
	})
	return head, err
}

// settle records in tx a sync up to pos. Commits that rode in meta.db and lie
// in the pack before it need not any longer.
func (s *Store) settle(tx *metaTx, pos position) error {
	if err := markDurable(tx, pos); err != nil {
		return err
	}
	return s.unpend(tx, pos.covers)
}

// unpend takes the commits out of the pending bucket whose records are safe
// in a pack.
func (s *Store) unpend(tx *metaTx, safe func(loc) bool) error {
	keys, err := tx.keys(bucketPending)
	left := int64(0)
	for _, k := range keys {
		d, bad := DigestFromBytes(k)
		if l, ok := s.index.find(d); bad == nil && ok && safe(l) {
			err = errors.Join(err, tx.del(bucketPending, k))
		} else {
			left++
		}
	}
	s.riding.Store(left)
	return err
}

// covers reports whether the whole record at l lies before p.
func (p position) covers(l loc) bool {
	return l.pack < p.seq || l.pack == p.seq && l.off+recordHeaderSize+int64(l.stored) <= p.off
}
