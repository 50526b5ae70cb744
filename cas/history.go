package cas

import (
	"context"
	"errors"
	"fmt"
)

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
// parents. A limit of 0 or less means all that no collection removed. The
// history ends at the first parent that is not there any more: a collection
// takes commits out while this goes on, and may keep some older ones, which no
// head's history has any more, for a while. That one is gone which should not
// be is found by Verify.
func (s *Store) Log(ctx context.Context, from Digest, limit int) ([]Commit, error) {
	var log []Commit
	for d := from; !d.IsZero() && (limit <= 0 || len(log) < limit); {
		c, err := s.ReadCommit(ctx, d)
		if errors.Is(err, ErrNotFound) && len(log) > 0 {
			return log, nil
		}
		if err != nil {
			return log, fmt.Errorf("log from %s: %w", from, err)
		}
		log = append(log, c)
		d = c.Parent
	}
	return log, nil
}
