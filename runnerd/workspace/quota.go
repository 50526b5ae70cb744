package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/diskquota"
	"skerry.internal/sandbox/supervisor"
)

// Quota bounds what one workspace may hold, which is all that an agent has on a
// runner. Sizes are those of the files, before deduplication and compression,
// so that an agent's quota does not depend on what others store.
type Quota struct {
	Bytes   int64 // 0: no limit
	Entries int64 // files, directories and symlinks; 0: no limit
	// Project also sets them as a project quota of the file system, which then
	// refuses the write itself; see diskquota.Enforced. The project's number is
	// the agent's uid.
	Project bool
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

// setProject puts the workspace's directory under a project quota. The commands
// that run while the daemon starts were under it from their start.
func (w *Workspace) setProject() error {
	q := w.manager.cfg.Quota
	if !q.Project || w.UID <= 0 || q.Bytes <= 0 && q.Entries <= 0 {
		return nil
	}
	return diskquota.SetProject(w.dir, uint32(w.UID), diskquota.Limits{Bytes: q.Bytes, Entries: q.Entries})
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

func (q Quota) usage(s cas.TreeStats, taken *Over) *skerryv1.WorkspaceUsage {
	u := &skerryv1.WorkspaceUsage{Bytes: uint64(s.Bytes), Entries: uint64(entries(s)), MaxBytes: uint64(q.Bytes), MaxEntries: uint64(q.Entries)}
	if o := q.over(s); o != nil {
		u.Over = o.Limit
	} else if taken != nil {
		u.Over = taken.Limit
	}
	return u
}

// WatchedQuota is what a command is held to while it runs; nil: no quota.
func (w *Workspace) WatchedQuota() *supervisor.Quota {
	q := w.manager.cfg.Quota
	if q.Bytes <= 0 && q.Entries <= 0 {
		return nil
	}
	watched := &supervisor.Quota{Dir: w.Tree(), Bytes: q.Bytes, Entries: q.Entries}
	dir, err := w.openTree()
	if err != nil {
		return watched // the launch, or the watch, will say so
	}
	defer func() { _ = dir.Close() }()
	c, _, err := w.measure(dir)
	if err != nil {
		return watched // likewise
	}
	// Removals by others may have hidden growth, whereas holes and hard links make
	// sizes more than what is taken: they never raise what the command may take.
	now, _ := w.usage()
	watched.UsedBytes, watched.UsedEntries = max(c.Bytes, min(now.Bytes, q.Bytes)), max(c.Entries, entries(now))
	return watched
}

// measure tells what the directory takes of the disk, and the quota that it
// passes thereby, which the sizes in a snapshot may not show. The caller holds
// the lane, and no process writes.
func (w *Workspace) measure(dir *os.File) (diskquota.Count, *Over, error) {
	q := w.manager.cfg.Quota
	limits := diskquota.Limits{Bytes: q.Bytes, Entries: q.Entries}
	if limits == (diskquota.Limits{}) {
		return diskquota.Count{}, nil, nil
	}
	c, err := w.tally.Count(dir, limits)
	if err != nil {
		return c, nil, err
	}
	var over *Over
	if o, passed := limits.Passed(c); passed {
		over = &Over{o.Limit, o.Have, o.Most}
	}
	w.mu.Lock()
	w.over = over
	w.mu.Unlock()
	return c, over, nil
}

// room refuses a write of size bytes at p, which is cleaned, that would leave
// the workspace over a quota and larger than it is. The caller holds the lane,
// so that the directory is as the head has it.
func (w *Workspace) room(ctx context.Context, p string, size int64, appends bool) error {
	now, tree := w.usage()
	next := now
	next.Bytes += size
	next.Files++
	old, missing, err := w.lookup(ctx, tree, p)
	if err != nil {
		return err
	}
	next.Dirs += missing
	if old != nil && old.Type == cas.TypeFile {
		next.Files--
		if !appends {
			next.Bytes -= old.Size
		}
	}
	return w.grow("content", now, next)
}

// roomForPath refuses to put the path p of the snapshot in, likewise.
func (w *Workspace) roomForPath(ctx context.Context, snapshot cas.Digest, p string) error {
	now, tree := w.usage()
	if q := w.manager.cfg.Quota; q.Bytes <= 0 && q.Entries <= 0 {
		return nil
	}
	next := now
	old, missing, err := w.lookup(ctx, tree, p)
	if err == nil && old != nil {
		err = w.count(ctx, tree, p, *old, &next, -1)
	}
	if err != nil {
		return err
	}
	next.Dirs += missing
	put, err := w.manager.store.Lookup(ctx, snapshot, p)
	if err == nil {
		err = w.count(ctx, snapshot, p, put, &next, 1)
	}
	if err != nil {
		return storeError("path", err)
	}
	return w.grow("path", now, next)
}

// roomForAll refuses to make the workspace what a snapshot of it is, likewise.
func (w *Workspace) roomForAll(ctx context.Context, snapshot cas.Digest) error {
	now, _ := w.usage()
	c, err := w.CommitOf(ctx, snapshot)
	if err != nil {
		return err
	}
	return w.grow("snapshot", now, c.Stats)
}

// usage is what the head holds.
func (w *Workspace) usage() (cas.TreeStats, cas.Digest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.Stats, w.head.Tree
}

// lookup gives what the tree has at p, nil for nothing, and how many of the
// directories above p are missing.
func (w *Workspace) lookup(ctx context.Context, tree cas.Digest, p string) (*cas.Entry, int64, error) {
	missing := int64(0)
	for at := p; at != "."; at = path.Dir(at) {
		err := cas.ErrNotFound
		var x cas.Entry
		if !tree.IsZero() {
			x, err = w.manager.store.Lookup(ctx, tree, at)
		}
		switch {
		case err == nil && at == p:
			return &x, 0, nil
		case err == nil, errors.Is(err, cas.ErrNotDir): // below a symlink: not known
			return nil, missing, nil
		case !errors.Is(err, cas.ErrNotFound):
			return nil, 0, err
		case at != p:
			missing++
		}
	}
	return nil, missing, nil
}

// count adds an entry and all below it to s, so many times.
func (w *Workspace) count(ctx context.Context, tree cas.Digest, p string, x cas.Entry, s *cas.TreeStats, times int64) error {
	one := func(_ string, x cas.Entry) error {
		switch x.Type {
		case cas.TypeFile:
			s.Files += times
			s.Bytes += times * x.Size
		case cas.TypeSymlink:
			s.Symlinks += times
		case cas.TypeDir:
			s.Dirs += times
		}
		return ctx.Err()
	}
	if err := one(p, x); err != nil || x.Type != cas.TypeDir {
		return err
	}
	return w.manager.store.Walk(ctx, tree, p, one)
}

// grow refuses a step from one content to another that leaves the workspace
// over a quota and larger than it is.
func (w *Workspace) grow(field string, now, next cas.TreeStats) error {
	o := w.manager.cfg.Quota.over(next)
	if o == nil {
		w.mu.Lock()
		o = w.over
		w.mu.Unlock()
	}
	if o == nil || (next.Bytes <= now.Bytes && entries(next) <= entries(now)) {
		return nil
	}
	return problem.Limit(field, fmt.Sprintf("%d (limits.%s): the workspace would hold %d", o.Most, o.Limit, o.Have), "remove files first, or ask the operator for a larger quota")
}
