package cas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// RestoreOptions says how to restore.
type RestoreOptions struct {
	// UID and GID own everything restored; -1 leaves them to the system. The
	// zero value is root: set both.
	UID, GID int
	// Path is the directory of the tree to restore; "" is all of it.
	Path string
	// Only is the one entry of that directory to restore, of any type; "" is
	// all of them. It goes without a CacheKey.
	Only string
	// CacheKey names the stat cache that is filled with what was made, so
	// that the next snapshot of dest with this key reads no file. Empty: none.
	CacheKey string
	// Replace lets dest hold something. It is exchanged for the tree in one
	// step where the file system can (RENAME_EXCHANGE), and then removed.
	Replace bool
}

// RestoreResult counts what was made.
type RestoreResult struct {
	Files, Dirs, Symlinks int64
	Links                 int64 // names made as hard links; not in Files
	Bytes                 int64 // of data written; holes are not
	ClonedBytes           int64 // not written, since large files that dest had share them
	// Skipped lists what the snapshot could not keep and is therefore not
	// there, at most 1000; SkippedTotal counts all.
	Skipped      []Skipped
	SkippedTotal int64
	// NoXattrs lists the files and directories whose extended attributes the
	// file system did not take, at most 1000; "" is dest itself. They lack
	// some or all of them.
	NoXattrs      []string
	NoXattrsTotal int64
	// NotRemoved is why what dest held before is still there, beside dest, where
	// EndRestores finds it; nil when it is gone.
	NotRemoved error
}

// Restore makes dest hold exactly the tree. Everything is written beside it
// under a temporary name, forced to disk and renamed, so that dest is whole
// or as it was. Unless o.Replace is set, dest must not exist or be an empty
// directory, else ErrExist; its parent must be the caller's own. Nothing
// shares storage with the store in a way that writing to dest could reach;
// the store itself must lie elsewhere.
func (s *Store) Restore(ctx context.Context, tree Digest, dest string, o RestoreOptions) (RestoreResult, error) {
	res, err := s.restore(ctx, tree, filepath.Clean(dest), o)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("restore to %s: %w", dest, err)
	}
	return res, nil
}

func (s *Store) restore(ctx context.Context, tree Digest, dest string, o RestoreOptions) (RestoreResult, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return RestoreResult{}, err
	}
	defer release()
	for field, id := range map[string]int{"UID": o.UID, "GID": o.GID} {
		if int64(id) < -1 || int64(id) >= math.MaxUint32 {
			return RestoreResult{}, fmt.Errorf("%s %d: give one from 0 to %d, or -1 to leave it to the system: %w", field, id, uint32(math.MaxUint32-1), ErrInvalid)
		}
	}
	if err := s.apart(dest); err != nil {
		return RestoreResult{}, err
	}
	defer s.session()()
	s.hit(tree, roleDir)
	root, err := s.Lookup(ctx, tree, o.Path)
	if err != nil {
		return RestoreResult{}, err
	}
	if root.Type != TypeDir {
		return RestoreResult{}, fmt.Errorf("%.200q is a %s: %w", o.Path, root.Type, ErrNotDir)
	}
	if o.Only != "" {
		if o.CacheKey != "" {
			return RestoreResult{}, fmt.Errorf("restore of one entry with a stat cache: %w", ErrInvalid)
		}
		if _, err := s.Lookup(ctx, tree, path.Join(o.Path, o.Only)); err != nil {
			return RestoreResult{}, err
		}
	}
	if err := vacant(dest, o.Replace); err != nil {
		return RestoreResult{}, err
	}
	temp := filepath.Join(filepath.Dir(dest), besideName(dest)+rand.Text())
	if err := os.Mkdir(temp, 0o700); err != nil {
		return RestoreResult{}, err
	}
	r := newRestorer(ctx, s, o, root)
	if err := r.run(temp, dest); err != nil {
		return RestoreResult{}, errors.Join(err, RemoveTree(temp))
	}
	return r.res, nil
}

// besideName begins the names that a restore to dest has beside it. It tells
// them from those of other destinations there; dest's own name may be too long.
func besideName(dest string) string {
	return fmt.Sprintf(".skerry-restore-%.8s-", DigestOf([]byte(filepath.Base(dest))).Hex())
}

// vacant reports an error unless dest is missing, an empty directory or, if
// it may be replaced, a directory.
func vacant(dest string, replace bool) error {
	names, err := os.ReadDir(dest)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrExist, err)
	case len(names) > 0 && !replace:
		return ErrExist
	}
	return nil
}

// swap puts temp in the place of dest, durably. What dest held lies at temp
// then: replaced says that there was something.
func (o *RestoreOptions) swap(temp, dest string) (replaced bool, err error) {
	// rename(2) itself, because os.Rename refuses an empty directory.
	err = unix.Rename(temp, dest)
	replaced = o.Replace && (errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST))
	if replaced {
		err = exchange(temp, dest)
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		err = ErrExist
	}
	if err == nil {
		err = syncDir(filepath.Dir(dest))
	}
	return replaced, err
}

// exchange swaps two directories. Where the file system cannot do it in one
// step, dest is missing for an instant; should a crash hit it, the old tree
// lies beside under temp's name with ".old" behind it.
func exchange(temp, dest string) error {
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, dest, unix.RENAME_EXCHANGE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	aside := temp + asideSuffix
	if err := unix.Rename(dest, aside); err != nil {
		return err
	}
	if err := unix.Rename(temp, dest); err != nil {
		return errors.Join(err, unix.Rename(aside, dest))
	}
	return unix.Rename(aside, temp)
}

// EndRestores removes what restores to dest left beside it when they were
// interrupted. Where the exchange took two steps and a crash hit between them,
// dest gets its old content back. Nothing may be restored to dest meanwhile.
func EndRestores(dest string) error {
	dest = filepath.Clean(dest)
	parent := filepath.Dir(dest)
	left, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, x := range left {
		if !strings.HasPrefix(x.Name(), besideName(dest)) {
			continue
		}
		name := filepath.Join(parent, x.Name())
		if filepath.Ext(name) == asideSuffix {
			err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, dest, unix.RENAME_NOREPLACE)
			if err == nil {
				err = syncDir(parent)
			}
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("put %s back: %w", dest, err)
			}
		}
		if err := RemoveTree(name); err != nil {
			return fmt.Errorf("end restore: %w", err)
		}
	}
	return nil
}

const asideSuffix = ".old"
