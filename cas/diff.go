package cas

import (
	"context"
	"fmt"
	"slices"
)

// ChangeKind says how an entry differs.
type ChangeKind uint8

// The kinds of change.
const (
	Created  ChangeKind = 1
	Modified ChangeKind = 2
	Deleted  ChangeKind = 3
)

// String returns "created", "modified" or "deleted".
func (k ChangeKind) String() string {
	switch k {
	case Created:
		return "created"
	case Modified:
		return "modified"
	case Deleted:
		return "deleted"
	}
	return fmt.Sprintf("change %d", uint8(k))
}

// Change is one entry that differs between two trees.
type Change struct {
	Path string // raw bytes, relative to the root
	Kind ChangeKind
	Old  *Entry // nil when created
	New  *Entry // nil when deleted
}

// Diff calls fn for each entry that differs from tree a to tree b, in the
// order of Walk. A zero digest is the empty tree. An entry is modified when
// its content, permissions, type, link target or extended attributes differ; a time alone is no
// change, nor is another name of the same file. The root itself is never
// reported. Equal subtrees are not read.
func (s *Store) Diff(ctx context.Context, a, b Digest, fn func(Change) error) error {
	if err := s.diff(ctx, a, b, "", fn); err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	return nil
}

func (s *Store) diff(ctx context.Context, a, b Digest, at string, fn func(Change) error) error {
	if a == b {
		return ctx.Err()
	}
	olds, err := s.entriesOf(ctx, a)
	if err != nil {
		return err
	}
	news, err := s.entriesOf(ctx, b)
	if err != nil {
		return err
	}
	for len(olds) > 0 || len(news) > 0 {
		var o, n *Entry
		if len(news) == 0 || len(olds) > 0 && olds[0].Name <= news[0].Name {
			o = &olds[0]
		}
		if len(olds) == 0 || len(news) > 0 && news[0].Name <= olds[0].Name {
			n = &news[0]
		}
		if o != nil {
			olds = olds[1:]
		}
		if n != nil {
			news = news[1:]
		}
		if err := s.diffEntry(ctx, o, n, at, fn); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) entriesOf(ctx context.Context, tree Digest) ([]Entry, error) {
	if tree.IsZero() {
		return nil, nil
	}
	dir, err := s.ReadDir(ctx, tree)
	if err != nil {
		return nil, err
	}
	return dir.Entries, nil
}

// diffEntry compares two entries of one name, either of which may be missing.
func (s *Store) diffEntry(ctx context.Context, o, n *Entry, at string, fn func(Change) error) error {
	c := Change{Old: o, New: n}
	switch {
	case o == nil:
		c.Kind, c.Path = Created, joinPath(at, n.Name)
	case n == nil:
		c.Kind, c.Path = Deleted, joinPath(at, o.Name)
	default:
		c.Path = joinPath(at, n.Name)
		if !sameEntry(o, n) {
			c.Kind = Modified
		}
	}
	if c.Kind != 0 {
		if err := fn(c); err != nil {
			return err
		}
	}
	return s.diff(ctx, subtree(o), subtree(n), c.Path, fn)
}

// subtree returns the digest of a directory's entry, else the empty tree.
func subtree(x *Entry) Digest {
	if x == nil || x.Type != TypeDir {
		return Digest{}
	}
	return x.Digest
}

func sameEntry(a, b *Entry) bool {
	if a.Type != b.Type || a.Mode != b.Mode && a.Type != TypeSymlink {
		return false
	}
	if !slices.Equal(a.Xattrs, b.Xattrs) {
		return false
	}
	switch a.Type {
	case TypeFile:
		return a.Digest == b.Digest && a.Size == b.Size
	case TypeSymlink:
		return a.Target == b.Target
	}
	return true
}
