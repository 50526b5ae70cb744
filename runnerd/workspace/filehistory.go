package workspace

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// mostCommits bounds the commits that one call of FileHistory looks at, and
// mostTime how long it looks for more: directories may be huge. The page token
// says where to go on.
const (
	mostCommits = 2000
	mostTime    = 5 * time.Second
)

// Words of FileRevision.change.
const (
	fileCreated  = "created"
	fileModified = "modified"
	fileDeleted  = "deleted"
	// fileKept is the oldest commit that is kept: what it changed is not known.
	fileKept = "kept"
)

// FileHistory lists the commits that changed a path, newest first, from the
// head or from a page token, and where to go on. The path is taken literally:
// symlinks on the way are not followed.
func (w *Workspace) FileHistory(ctx context.Context, asked, pageToken string, limit int) (found []*skerryv1.FileRevision, next string, err error) {
	p, err := CleanPath("path", asked)
	if err == nil {
		err = w.manager.cfg.Floor.CheckRead("path", p)
	}
	if err != nil {
		return nil, "", err
	}
	if p == "" {
		return nil, "", problem.Invalid("path", "name a file or directory; History lists the workspace's commits", "is the workspace itself")
	}
	at := w.Head().Commit
	if pageToken != "" {
		c, err := w.commitAt(ctx, pageToken)
		if err != nil {
			return nil, "", err
		}
		at = c.Digest
	}
	h := fileHistory{w: w, path: p}
	began := time.Now()
	for looked := 0; !at.IsZero() && looked < mostCommits && len(found) < limit; looked++ {
		if looked > 0 && time.Since(began) > mostTime {
			break
		}
		rev, parent, err := h.step(ctx, at)
		if err != nil {
			return nil, "", err
		}
		if rev != nil {
			found = append(found, rev)
		}
		at = parent
	}
	if at.IsZero() {
		return found, "", nil
	}
	return found, at.String(), nil
}

// fileHistory remembers what the last look-up found: a commit's parent is the
// next commit.
type fileHistory struct {
	w    *Workspace
	path string
	tree cas.Digest
	at   *cas.Entry
	seen bool
}

// lookup gives nil where the tree does not have the path.
func (h *fileHistory) lookup(ctx context.Context, tree cas.Digest) (*cas.Entry, error) {
	if h.seen && h.tree == tree {
		return h.at, nil
	}
	var at *cas.Entry
	if !tree.IsZero() {
		x, err := h.w.manager.store.Lookup(ctx, tree, h.path)
		switch {
		case err == nil:
			at = &x
		case !errors.Is(err, cas.ErrNotFound) && !errors.Is(err, cas.ErrNotDir):
			return nil, err
		}
	}
	h.tree, h.at, h.seen = tree, at, true
	return at, nil
}

// step looks at one commit. It gives the revision when the path changed, and
// the commit before; the zero digest when there is none or it is not kept.
func (h *fileHistory) step(ctx context.Context, at cas.Digest) (*skerryv1.FileRevision, cas.Digest, error) {
	c, err := h.w.manager.store.ReadCommit(ctx, at)
	if errors.Is(err, cas.ErrNotFound) { // collected since the step before
		return nil, cas.Digest{}, nil
	}
	if err != nil {
		return nil, cas.Digest{}, err
	}
	now, err := h.lookup(ctx, c.Tree)
	if err != nil {
		return nil, cas.Digest{}, err
	}
	before, err := h.lookup(ctx, c.ParentTree)
	if err != nil {
		return nil, cas.Digest{}, err
	}
	change, parent := changeOf(before, now), c.Parent
	// What was looked up was there only if the commits still are.
	if kept, err := h.kept(ctx, at); err != nil || !kept {
		return nil, cas.Digest{}, err
	}
	if kept, err := h.kept(ctx, c.Parent); err != nil {
		return nil, cas.Digest{}, err
	} else if !kept {
		change, parent, before = fileKept, cas.Digest{}, nil
	}
	if change == "" || (change == fileKept && now == nil) {
		return nil, parent, nil
	}
	rev := &skerryv1.FileRevision{Change: change, Revision: RevisionOf(c)}
	if now != nil {
		rev.File = FileInfo(h.path, *now)
	}
	if before != nil && before.Type == cas.TypeFile {
		rev.PreviousDigest = before.Digest.String()
	}
	return rev, parent, nil
}

// kept reports whether a parent is still in the store, or there never was one.
func (h *fileHistory) kept(ctx context.Context, parent cas.Digest) (bool, error) {
	if parent.IsZero() {
		return true, nil
	}
	_, err := h.w.manager.store.ReadCommit(ctx, parent)
	if errors.Is(err, cas.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func changeOf(before, now *cas.Entry) string {
	switch {
	case before == nil && now == nil:
		return ""
	case before == nil:
		return fileCreated
	case now == nil:
		return fileDeleted
	case before.Type != now.Type, before.Digest != now.Digest, before.Mode != now.Mode, before.Target != now.Target, before.Size != now.Size:
		return fileModified
	}
	return ""
}

// RevisionOf shows a commit.
func RevisionOf(c cas.Commit) *skerryv1.Revision {
	kind, source, _ := strings.Cut(c.Source, ":")
	return &skerryv1.Revision{Time: timestamppb.New(c.Time), SourceKind: kind, Source: Display(source), Snapshot: headProto(c)}
}
