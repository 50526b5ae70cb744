package workspace

import (
	"context"
	"errors"
	"strings"

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
	// One more tells whether there is one to go on with.
	log, err = w.manager.store.Log(ctx, from, limit+1)
	if pageToken != "" && errors.Is(err, cas.ErrNotFound) { // collected since it was looked at
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	if len(log) > limit {
		log, next = log[:limit], log[limit].Digest.String()
	}
	return log, next, nil
}

// CommitOf finds the newest commit of this workspace that made the tree; the
// zero Commit for the zero tree.
func (w *Workspace) CommitOf(ctx context.Context, tree cas.Digest) (cas.Commit, error) {
	head := w.Head().Commit
	for from := head; !from.IsZero(); {
		page, err := w.manager.store.Log(ctx, from, 256)
		if errors.Is(err, cas.ErrNotFound) && from != head { // where a collection cut the history
			break
		}
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

// digestPrefix gives the hexadecimal digits of the beginning of a digest, with or
// without its algorithm.
func digestPrefix(s string) (string, bool) {
	hex := strings.TrimPrefix(s, "sha256:")
	if len(hex) < minDigestPrefix || len(hex) >= 2*cas.DigestSize {
		return "", false
	}
	return hex, strings.Trim(hex, "0123456789abcdef") == ""
}

const minDigestPrefix = 8

// treeWith finds the one tree in this workspace's history whose digest begins so.
func (w *Workspace) treeWith(ctx context.Context, hex string) (found cas.Digest, err error) {
	for from := w.Head().Commit; !from.IsZero(); {
		page, err := w.manager.store.Log(ctx, from, 256)
		if err != nil {
			return cas.Digest{}, err
		}
		from = cas.Digest{}
		for _, c := range page {
			if strings.HasPrefix(c.Tree.Hex(), hex) {
				if !found.IsZero() && found != c.Tree {
					return cas.Digest{}, problem.Invalid("snapshot", "give more digits", "%s is the beginning of several snapshots' digests", hex)
				}
				found = c.Tree
			}
			from = c.Parent
		}
	}
	if found.IsZero() {
		return found, problem.Missing("snapshot", "no snapshot %s in this workspace's history", hex)
	}
	return found, nil
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
