package workspace

import (
	"context"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// History lists commits, newest first, from the head or from a page token.
func (w *Workspace) History(ctx context.Context, pageToken string, limit int) (log []cas.Commit, next string, err error) {
	from := w.Head().Commit
	if pageToken != "" {
		c, err := w.commitAt(ctx, pageToken)
		if err != nil {
			return nil, "", err
		}
		from = c.Digest
	}
	if from.IsZero() {
		return nil, "", nil
	}
	log, err = w.manager.store.Log(ctx, from, limit)
	if err != nil {
		return nil, "", err
	}
	if n := len(log); n == limit && !log[n-1].Parent.IsZero() {
		next = log[n-1].Parent.String()
	}
	return log, next, nil
}

// CommitOf finds the newest commit of this workspace that made the tree; the
// zero Commit for the zero tree.
func (w *Workspace) CommitOf(ctx context.Context, tree cas.Digest) (cas.Commit, error) {
	for from := w.Head().Commit; !from.IsZero(); {
		page, err := w.manager.store.Log(ctx, from, 256)
		if err != nil {
			return cas.Commit{}, err
		}
		from = cas.Digest{}
		for _, c := range page {
			if c.Tree == tree {
				return c, nil
			}
			from = c.Parent
		}
	}
	if tree.IsZero() {
		return cas.Commit{}, nil
	}
	return cas.Commit{}, problem.Missing("snapshot", "no snapshot %s in this workspace's history", tree)
}

// commitAt gives the commit that a page token names. A digest that is no commit
// of this workspace tells nothing about others.
func (w *Workspace) commitAt(ctx context.Context, pageToken string) (cas.Commit, error) {
	at, err := cas.ParseDigest(pageToken)
	if err != nil {
		return cas.Commit{}, problem.Invalid("pageToken", "pass on a nextPageToken as it came", "is not valid")
	}
	c, err := w.manager.store.ReadCommit(ctx, at)
	if err != nil || c.Head != w.ID {
		return cas.Commit{}, problem.Missing("pageToken", "no such commit in this workspace, or it is not kept any more")
	}
	return c, nil
}
