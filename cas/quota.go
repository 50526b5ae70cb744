package cas

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrQuota says that a quota would be passed; see QuotaError.
var ErrQuota = errors.New("quota exceeded")

// QuotaError says which quota, and by how much. It matches ErrQuota.
type QuotaError struct {
	Prefix string // of the heads that share the quota
	What   string // "bytes" or "entries"
	Limit  int64
	Want   int64 // what there would be
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("quota exceeded: heads %q would hold %d %s, allowed are %d; remove files or heads, or raise the quota",
		e.Prefix, e.Want, e.What, e.Limit)
}

// Unwrap makes errors.Is(err, ErrQuota) true.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// Quota bounds what the latest trees of some heads may hold together. Sizes
// are those of the files, before deduplication and compression, so that an
// owner's quota does not depend on what others store.
type Quota struct {
	Prefix  string // of the heads' names
	Bytes   int64  // 0: no limit
	Entries int64  // files, directories and symlinks; 0: no limit
}

// Usage sums up the latest commits of the heads whose names begin with
// prefix, but for the head called except.
func (s *Store) Usage(ctx context.Context, prefix, except string) (TreeStats, error) {
	var sum TreeStats
	heads, err := s.Heads(ctx)
	if err != nil {
		return sum, err
	}
	for _, h := range heads {
		if !strings.HasPrefix(h.Name, prefix) || h.Name == except {
			continue
		}
		c, err := s.ReadCommit(ctx, h.Commit)
		if err != nil {
			return sum, fmt.Errorf("usage of head %q: %w", h.Name, err)
		}
		sum.Files += c.Stats.Files
		sum.Dirs += c.Stats.Dirs
		sum.Symlinks += c.Stats.Symlinks
		sum.Bytes += c.Stats.Bytes
		sum.Skipped += c.Stats.Skipped
	}
	return sum, nil
}

// Allow reports a QuotaError when head, holding what next counts, would pass
// the quota together with the others of its prefix. It is asked between
// Snapshot and Commit; two commits at the same time may together pass it.
func (s *Store) Allow(ctx context.Context, q Quota, head string, next TreeStats) error {
	sum, err := s.Usage(ctx, q.Prefix, head)
	if err != nil {
		return err
	}
	bytes := sum.Bytes + next.Bytes
	entries := sum.Files + sum.Dirs + sum.Symlinks + next.Files + next.Dirs + next.Symlinks
	switch {
	case q.Bytes > 0 && (bytes > q.Bytes || bytes < 0):
		return &QuotaError{q.Prefix, "bytes", q.Bytes, bytes}
	case q.Entries > 0 && entries > q.Entries:
		return &QuotaError{q.Prefix, "entries", q.Entries, entries}
	}
	return nil
}
