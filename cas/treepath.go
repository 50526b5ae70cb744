package cas

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

func rootError(p string) error {
	return fmt.Errorf("%.200q is the root of the tree: %w", p, ErrInvalid)
}

// named finds or makes the directory for a path that cannot be the root.
func (t *TreeWriter) named(p string) (*treeNode, string, error) {
	parent, name, err := t.find(p, true)
	if err == nil && name == "" {
		err = rootError(p)
	}
	return parent, name, err
}

// find gives the directory that p's last component is in, and that component;
// the root and "" for the root itself. Symlinks on the way are followed. What is
// missing is made, or else the directory is nil.
func (t *TreeWriter) find(p string, makes bool) (*treeNode, string, error) {
	names, err := archivePath(p)
	if err != nil || len(names) == 0 {
		return t.root, "", err
	}
	dir, err := t.walk(names[:len(names)-1], makes)
	if err != nil {
		return nil, "", fmt.Errorf("%.200q: %w", p, err)
	}
	return dir, names[len(names)-1], nil
}

// archivePath gives the components of a path that an archive named. A leading
// slash means the root of the tree.
func archivePath(p string) ([]string, error) {
	if strings.ContainsRune(p, 0) {
		return nil, fmt.Errorf("%.200q has a NUL byte: %w", p, ErrInvalid)
	}
	names := components(p)
	for _, name := range names {
		if name == ".." {
			return nil, fmt.Errorf("%.200q: %w", p, ErrOutside)
		}
		if len(name) > maxName {
			return nil, &LimitError{What: "bytes in a name", Limit: maxName}
		}
	}
	if len(names) > maxDepth {
		return nil, &LimitError{What: "levels of directories", Limit: maxDepth}
	}
	return names, nil
}

func components(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(name string) bool { return name == "" || name == "." })
}

// walk goes down from the root. It keeps the way it came, so that ".." in a
// symlink's target goes up by one, and at the root stays there.
func (t *TreeWriter) walk(names []string, makes bool) (*treeNode, error) {
	way := []*treeNode{t.root}
	names = slices.Clone(names)
	for links, steps := 0, 0; len(names) > 0; steps++ {
		if steps > 2*maxDepth { // long targets of many links
			return nil, ErrLoop
		}
		name, at := names[0], way[len(way)-1]
		names = names[1:]
		if name == ".." {
			way = way[:max(1, len(way)-1)]
			continue
		}
		next := at.kids[name]
		switch {
		case next == nil && !makes:
			return nil, nil //nolint:nilnil // not there, as find says
		case next == nil:
			next = newTreeDir()
			if err := t.set(at, name, next); err != nil {
				return nil, err
			}
		case next.target != "":
			if links++; links > maxLinks {
				return nil, ErrLoop
			}
			if path.IsAbs(next.target) {
				way = way[:1]
			}
			names = append(components(next.target), names...)
			continue
		case next.file != nil:
			return nil, fmt.Errorf("%.200q: %w", name, ErrNotDir)
		}
		if way = append(way, next); len(way) > maxDepth {
			return nil, &LimitError{What: "levels of directories", Limit: maxDepth}
		}
	}
	return way[len(way)-1], nil
}
