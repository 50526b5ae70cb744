package workspace

import (
	"context"
	"errors"
	"fmt"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Quota bounds what one workspace may hold, which is all that an agent has on a
// runner. Sizes are those of the files, before deduplication and compression,
// so that an agent's quota does not depend on what others store.
type Quota struct {
	Bytes   int64 // 0: no limit
	Entries int64 // files, directories and symlinks; 0: no limit
}

// Over says which quota is passed.
type Over struct {
	// Limit is "workspace_bytes" or "workspace_entries".
	Limit string
	// Have and Most are in bytes, or counts.
	Have, Most int64
}

// Detail words it for the agent.
func (o *Over) Detail() string {
	return fmt.Sprintf("the workspace holds %d, over its quota of %d (%s); its files are kept: remove some", o.Have, o.Most, o.Limit)
}

func entries(s cas.TreeStats) int64 { return s.Files + s.Dirs + s.Symlinks }

// over gives the quota that a tree passes; nil when it passes none.
func (q Quota) over(s cas.TreeStats) *Over {
	switch have := entries(s); {
	case q.Bytes > 0 && s.Bytes > q.Bytes:
		return &Over{"workspace_bytes", s.Bytes, q.Bytes}
	case q.Entries > 0 && have > q.Entries:
		return &Over{"workspace_entries", have, q.Entries}
	}
	return nil
}

func (q Quota) usage(s cas.TreeStats) *skerryv1.WorkspaceUsage {
	u := &skerryv1.WorkspaceUsage{Bytes: uint64(s.Bytes), Entries: uint64(entries(s)), MaxBytes: uint64(q.Bytes), MaxEntries: uint64(q.Entries)}
	if o := q.over(s); o != nil {
		u.Over = o.Limit
	}
	return u
}

// room refuses a write of size bytes at p, which is cleaned, that would leave
// the workspace over a quota and larger than it is. The caller holds the lane,
// so that the directory is as the head has it.
func (w *Workspace) room(ctx context.Context, p string, size int64, appends bool) error {
	q := w.manager.cfg.Quota
	w.mu.Lock()
	now := w.last.Stats
	tree := w.head.Tree
	w.mu.Unlock()
	next := now
	next.Bytes += size
	next.Files++
	if !tree.IsZero() {
		old, err := w.manager.store.Lookup(ctx, tree, p)
		switch {
		case err == nil && old.Type == cas.TypeFile:
			next.Files--
			if !appends {
				next.Bytes -= old.Size
			}
		case err != nil && !errors.Is(err, cas.ErrNotFound) && !errors.Is(err, cas.ErrNotDir):
			return err
		}
	}
	o := q.over(next)
	if o == nil || (next.Bytes <= now.Bytes && next.Files <= now.Files) {
		return nil
	}
	return problem.Limit("content", fmt.Sprintf("%d (limits.%s): the workspace would hold %d", o.Most, o.Limit, o.Have), "remove files first, or ask the operator for a larger quota")
}
