package cas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
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
func readHead(tx *bbolt.Tx, name string) (h Head, fence uint64, found bool, err error) {
	fence = leUint64(tx.Bucket(bucketFences).Get([]byte(name)))
	b := tx.Bucket(bucketHeads).Get([]byte(name))
	if b == nil {
		return Head{Name: name}, fence, false, nil
	}
	h, err = parseHead(name, b)
	return h, max(fence, h.Epoch), true, err
}

// Commit makes everything that the tree needs durable and then moves the
// head, in this order. It fails with ErrFenced when the head has seen a newer
// epoch and with ErrConflict when it is not at Expect. A request whose Source
// and Tree are those of the head's latest commit was done before: its head is
// answered again.
func (s *Store) Commit(ctx context.Context, req CommitRequest) (Head, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Head{}, err
	}
	defer release()
	h, err := s.commit(req)
	if err != nil {
		return Head{}, fmt.Errorf("commit to head %q: %w", req.Head, err)
	}
	return h, nil
}

func (s *Store) commit(req CommitRequest) (Head, error) {
	if !s.index.has(req.Tree) {
		return Head{}, fmt.Errorf("tree %s: %w", req.Tree, ErrNotFound)
	}
	var before Head
	var done bool
	err := s.meta.view(func(tx *bbolt.Tx) (err error) {
		before, done, err = req.check(tx)
		return err
	})
	if err != nil || done {
		return before, err
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
func (r *CommitRequest) check(tx *bbolt.Tx) (h Head, done bool, err error) {
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
	return c, Head{Name: r.Head, Tree: c.Tree, Epoch: c.Epoch, Seq: c.Seq, Source: c.Source}
}

// maxRiding bounds the commits that lie in meta.db and in no synced pack.
const maxRiding = 256

// publish stores the commit object and moves the head. When nothing else
// waits for an fsync of the pack, the commit object rides in meta.db's
// transaction, whence it is put back into a pack should the pack lose it.
func (s *Store) publish(req CommitRequest, after Head, content []byte) (Head, error) {
	rides := s.riding.Load() < maxRiding && s.writer.clean()
	if _, err := s.putRecord(KindCommit, after.Commit, content, rides); err != nil {
		return Head{}, err
	}
	var pos position
	if !rides {
		var err error
		if pos, err = s.writer.sync(); err != nil {
			return Head{}, err
		}
	}
	head := after
	err := s.meta.update(func(tx *bbolt.Tx) error {
		now, done, err := req.check(tx)
		if err != nil || done {
			head = now
			return err
		}
		if rides {
			err = tx.Bucket(bucketPending).Put(after.Commit.Bytes(), content)
			s.riding.Add(1)
		} else {
			err = s.settle(tx, pos)
		}
		return errors.Join(err, tx.Bucket(bucketHeads).Put([]byte(after.Name), after.marshal()))
	})
	return head, err
}

// settle records in tx a sync up to pos. Commits that rode in meta.db and lie
// in the pack before it need not any longer.
func (s *Store) settle(tx *bbolt.Tx, pos position) error {
	if err := markDurable(tx, pos); err != nil {
		return err
	}
	pending := tx.Bucket(bucketPending)
	var settled [][]byte
	left := int64(0)
	err := pending.ForEach(func(k, _ []byte) error {
		d, err := DigestFromBytes(k)
		if l, ok := s.index.find(d); err == nil && ok && pos.covers(l) {
			settled = append(settled, k)
		} else {
			left++
		}
		return nil
	})
	for _, k := range settled {
		err = errors.Join(err, pending.Delete(k))
	}
	s.riding.Store(left)
	return err
}

// covers reports whether the whole record at l lies before p.
func (p position) covers(l loc) bool {
	return l.pack < p.seq || l.pack == p.seq && l.off+recordHeaderSize+int64(l.stored) <= p.off
}

// Head returns the head called name, or ErrNotFound.
func (s *Store) Head(ctx context.Context, name string) (Head, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Head{}, err
	}
	defer release()
	var h Head
	err = s.meta.view(func(tx *bbolt.Tx) error {
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
	err = s.meta.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketHeads).ForEach(func(k, v []byte) error {
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
	err = s.meta.update(func(tx *bbolt.Tx) error {
		_, fence, found, err := readHead(tx, name)
		if err != nil {
			return err
		}
		if !found {
			return ErrNotFound
		}
		return errors.Join(tx.Bucket(bucketHeads).Delete([]byte(name)),
			tx.Bucket(bucketFences).Put([]byte(name), leBytes(fence)))
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
	return s.meta.update(func(tx *bbolt.Tx) error {
		_, fence, _, err := readHead(tx, name)
		if err != nil {
			return err
		}
		if epoch < fence {
			return &FencedError{Head: name, Epoch: epoch, Current: fence}
		}
		return tx.Bucket(bucketFences).Put([]byte(name), leBytes(epoch))
	})
}

// ReadCommit returns a commit object.
func (s *Store) ReadCommit(ctx context.Context, d Digest) (Commit, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Commit{}, err
	}
	defer release()
	return s.readCommit(d)
}

func (s *Store) readCommit(d Digest) (Commit, error) {
	b, err := s.get(d)
	if err != nil {
		return Commit{}, err
	}
	c, err := parseCommit(b)
	if err != nil {
		return Commit{}, fmt.Errorf("commit %s: %w", d, err)
	}
	c.Digest = d
	return c, nil
}

// Log returns up to limit commits, beginning with from and going to its
// parents. A limit of 0 or less means all.
func (s *Store) Log(ctx context.Context, from Digest, limit int) ([]Commit, error) {
	var log []Commit
	for d := from; !d.IsZero() && (limit <= 0 || len(log) < limit); {
		c, err := s.ReadCommit(ctx, d)
		if err != nil {
			return log, fmt.Errorf("log from %s: %w", from, err)
		}
		log = append(log, c)
		d = c.Parent
	}
	return log, nil
}

// pendingCommits returns the commits that may be in no pack.
func (m *metaDB) pendingCommits() (contents [][]byte, err error) {
	err = m.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPending).ForEach(func(_, v []byte) error {
			contents = append(contents, bytes.Clone(v))
			return nil
		})
	})
	return contents, err
}
