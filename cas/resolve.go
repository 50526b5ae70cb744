package cas

import (
	"context"
	"fmt"
	"path"
	"strings"
)

// maxLinks is how many symbolic links one path may go through.
const maxLinks = 40

// splitPath returns the components of a cleaned path inside a tree; none for
// the root.
func splitPath(p string) ([]string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return nil, fmt.Errorf("path %.200q holds a NUL byte: %w", p, ErrInvalid)
	}
	if strings.HasPrefix(p, "/") {
		return nil, fmt.Errorf("path %.200q is absolute; give it relative to the root: %w", p, ErrOutside)
	}
	p = path.Clean(p)
	if p == "." {
		return nil, nil
	}
	if p == ".." || strings.HasPrefix(p, "../") {
		return nil, fmt.Errorf("path %.200q: %w", p, ErrOutside)
	}
	return strings.Split(p, "/"), nil
}

// Lookup returns the entry at path without following links: a link on the way
// is ErrNotDir. The root, "" or ".", is an entry without a name.
func (s *Store) Lookup(ctx context.Context, tree Digest, p string) (Entry, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Entry{}, err
	}
	defer release()
	names, err := splitPath(p)
	if err != nil {
		return Entry{}, err
	}
	x, err := s.rootEntry(tree)
	for _, name := range names {
		if err != nil {
			break
		}
		x, err = s.step(x, name)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("look up %.200q: %w", p, err)
	}
	return x, nil
}

// rootEntry describes the tree itself.
func (s *Store) rootEntry(tree Digest) (Entry, error) {
	dir, err := s.readDir(tree)
	if err != nil {
		return Entry{}, err
	}
	x := Entry{Type: TypeDir, Digest: tree, Mode: 0o755}
	if dir.Root {
		x.Mode, x.MTime, x.Xattrs = dir.Mode, dir.MTime, dir.Xattrs
	}
	return x, nil
}

// step returns the entry called name in the directory x.
func (s *Store) step(x Entry, name string) (Entry, error) {
	if x.Type != TypeDir {
		return Entry{}, fmt.Errorf("%.200q is a %s: %w", x.Name, x.Type, ErrNotDir)
	}
	dir, err := s.readDir(x.Digest)
	if err != nil {
		return Entry{}, err
	}
	found, ok := dir.find(name)
	if !ok {
		return Entry{}, ErrNotFound
	}
	return found, nil
}

// resolver walks a path through symbolic links as a kernel would, with the
// tree's root for its root and no way above it.
type resolver struct {
	store *Store
	stack []Entry // from the root to where the walk is
	rest  []string
	links int
}

// Resolve returns the entry at path, following links in every component, and
// the path without links that leads to it. A link or ".." that leads out of
// the tree is ErrOutside; more than 40 links are ErrLoop.
func (s *Store) Resolve(ctx context.Context, tree Digest, p string) (Entry, string, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Entry{}, "", err
	}
	defer release()
	root, err := s.rootEntry(tree)
	if err == nil {
		r := &resolver{store: s, stack: []Entry{root}}
		var x Entry
		if x, err = r.run(p); err == nil {
			return x, r.path(), nil
		}
	}
	return Entry{}, "", fmt.Errorf("resolve %.200q: %w", p, err)
}

func (r *resolver) run(p string) (Entry, error) {
	if err := r.prepend(p); err != nil {
		return Entry{}, err
	}
	for len(r.rest) > 0 {
		name := r.rest[0]
		r.rest = r.rest[1:]
		if err := r.enter(name); err != nil {
			return Entry{}, err
		}
	}
	return r.stack[len(r.stack)-1], nil
}

// prepend puts the components of p before those that are left.
func (r *resolver) prepend(p string) error {
	if strings.IndexByte(p, 0) >= 0 {
		return fmt.Errorf("%.200q holds a NUL byte: %w", p, ErrInvalid)
	}
	if strings.HasPrefix(p, "/") {
		return fmt.Errorf("%.200q is absolute: %w", p, ErrOutside)
	}
	r.rest = append(strings.Split(p, "/"), r.rest...)
	return nil
}

func (r *resolver) enter(name string) error {
	here := r.stack[len(r.stack)-1]
	if here.Type != TypeDir {
		return fmt.Errorf("%.200q is a %s: %w", here.Name, here.Type, ErrNotDir)
	}
	switch name {
	case "", ".":
		return nil
	case "..":
		if len(r.stack) == 1 {
			return ErrOutside
		}
		r.stack = r.stack[:len(r.stack)-1]
		return nil
	}
	x, err := r.store.step(here, name)
	if err != nil {
		return err
	}
	if x.Type != TypeSymlink {
		r.stack = append(r.stack, x)
		return nil
	}
	if r.links++; r.links > maxLinks {
		return ErrLoop
	}
	return r.prepend(x.Target)
}

func (r *resolver) path() string {
	names := make([]string, 0, len(r.stack))
	for _, x := range r.stack[1:] {
		names = append(names, x.Name)
	}
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, "/")
}
