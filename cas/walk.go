package cas

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// Walk calls fn for each entry below prefix, depth first, names in the order
// of their bytes, a directory before what it holds. Paths are relative to the
// tree's root. A prefix that is a file is the only entry; prefix itself, when
// it is a directory, is not passed to fn. fs.SkipDir, returned for a
// directory, leaves out what is below it; for another entry, what is left of
// its directory.
func (s *Store) Walk(ctx context.Context, tree Digest, prefix string, fn func(path string, x Entry) error) error {
	x, err := s.Lookup(ctx, tree, prefix)
	if err != nil {
		return err
	}
	names, err := splitPath(prefix)
	if err != nil {
		return err
	}
	at := ""
	for _, name := range names {
		at = joinPath(at, name)
	}
	if x.Type != TypeDir {
		err = fn(at, x)
	} else {
		err = s.walk(ctx, x.Digest, at, fn)
	}
	if errors.Is(err, fs.SkipDir) {
		return nil
	}
	return err
}

func (s *Store) walk(ctx context.Context, tree Digest, at string, fn func(string, Entry) error) error {
	dir, err := s.ReadDir(ctx, tree)
	if err != nil {
		return fmt.Errorf("walk %.200q: %w", at, err)
	}
	for _, x := range dir.Entries {
		path := joinPath(at, x.Name)
		err := fn(path, x)
		if err == nil && x.Type == TypeDir {
			err = s.walk(ctx, x.Digest, path, fn)
		} else if x.Type == TypeDir && errors.Is(err, fs.SkipDir) {
			continue
		}
		if errors.Is(err, fs.SkipDir) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func joinPath(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
