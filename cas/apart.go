package cas

import (
	"fmt"
	"os"
	"path/filepath"
)

// apart reports an error when a restore to dest would touch the store itself:
// dest is it, holds it or lies in it.
func (s *Store) apart(dest string) error {
	below, err := lies(s.dir, dest)
	if err == nil && !below {
		below, err = lies(filepath.Dir(dest), s.dir)
	}
	if err == nil && below {
		err = fmt.Errorf("the store %s lies there, or it lies in the store; choose another directory: %w", s.dir, ErrInvalid)
	}
	return err
}

// lies reports whether path, which exists, is dir or lies below it.
func lies(path, dir string) (bool, error) {
	want, err := os.Stat(dir)
	if err != nil {
		return false, nil //nolint:nilerr // what does not exist holds nothing
	}
	path, err = filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	for err == nil {
		var info os.FileInfo
		if info, err = os.Stat(path); err == nil && os.SameFile(info, want) {
			return true, nil
		}
		if path == filepath.Dir(path) {
			break
		}
		path = filepath.Dir(path)
	}
	return false, err
}
