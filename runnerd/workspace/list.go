package workspace

import (
	"context"
	"path"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// List asks for entries below a directory.
type List struct {
	Path      string
	Glob      *Glob // nil: all
	Recursive bool
	Limit     int
	After     string // raw path of the last entry of the page before
}

// List gives entries in order of their raw paths, and whether more follow.
// Symlinks are listed, not followed; names that the floor hides are left out.
func (v *View) List(ctx context.Context, req List) (files []*skerryv1.FileInfo, more bool, err error) {
	dir, resolved, err := v.Lookup(ctx, req.Path, true)
	if err != nil {
		return nil, false, err
	}
	if dir.Type != cas.TypeDir {
		e := problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "read it with ReadFile", "%s is a %s", Display(resolved), dir.Type)
		e.Field = "path"
		return nil, false, e
	}
	if v.Tree.IsZero() {
		return nil, false, nil
	}
	l := &lister{view: v, req: req, base: resolved}
	err = l.dir(ctx, dir.Digest, resolved)
	if resolved == "" && dir.Digest.IsZero() {
		err = l.dir(ctx, v.Tree, "")
	}
	return l.files, l.more, storeError("path", err)
}

type lister struct {
	view  *View
	req   List
	base  string
	files []*skerryv1.FileInfo
	more  bool
}

func (l *lister) dir(ctx context.Context, digest cas.Digest, at string) error {
	d, err := l.view.w.manager.store.ReadDir(ctx, digest)
	if err != nil {
		return err
	}
	for _, e := range d.Entries {
		p := path.Join(at, e.Name)
		if err := l.entry(p, e); err != nil || l.more {
			return err
		}
		descend := e.Type == cas.TypeDir && l.req.Recursive && !l.before(p)
		if !descend {
			continue
		}
		if err := l.dir(ctx, e.Digest, p); err != nil || l.more {
			return err
		}
	}
	return ctx.Err()
}

// before says whether everything below directory p was in an earlier page.
func (l *lister) before(p string) bool {
	return compareWalk(p, l.req.After) < 0 && !strings.HasPrefix(l.req.After, p+"/") && l.req.After != p
}

func (l *lister) entry(p string, e cas.Entry) error {
	if l.req.After != "" && compareWalk(p, l.req.After) <= 0 {
		return nil
	}
	if l.view.w.manager.cfg.Floor.CheckRead("path", p) != nil {
		return nil //nolint:nilerr // hidden, as CheckRead would refuse it
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(p, l.base), "/")
	if l.req.Glob != nil && !l.req.Glob.Match(rel) {
		return nil
	}
	if len(l.files) == l.req.Limit {
		l.more = true
		return nil
	}
	l.files = append(l.files, FileInfo(p, e))
	return nil
}

// compareWalk orders paths as a depth-first walk in raw-byte name order does.
func compareWalk(a, b string) int {
	for a != "" && b != "" {
		var an, bn string
		an, a, _ = strings.Cut(a, "/")
		bn, b, _ = strings.Cut(b, "/")
		if c := strings.Compare(an, bn); c != 0 {
			return c
		}
	}
	return len(a) - len(b)
}
