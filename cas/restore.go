package cas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RestoreOptions says how to restore.
type RestoreOptions struct {
	// UID and GID own everything restored; -1 leaves them to the system. The
	// zero value is root: set both.
	UID, GID int
	// Path is the directory of the tree to restore; "" is all of it.
	Path string
}

// RestoreResult counts what was made.
type RestoreResult struct {
	Files, Dirs, Symlinks int64
	Links                 int64 // names made as hard links; not in Files
	Bytes                 int64 // of data written; holes are not
	// Skipped lists what the snapshot could not keep and is therefore not
	// there, at most 1000; SkippedTotal counts all.
	Skipped      []Skipped
	SkippedTotal int64
}

// Restore makes dest hold exactly the tree. Everything is written beside it
// under a temporary name, forced to disk and renamed, so that dest is whole
// or absent. dest must not exist or be an empty directory, else ErrExist; its
// parent must be the caller's own. Nothing shares storage with the store in a
// way that writing to dest could reach.
func (s *Store) Restore(ctx context.Context, tree Digest, dest string, o RestoreOptions) (RestoreResult, error) {
	res, err := s.restore(ctx, tree, dest, o)
	if err != nil {
		return RestoreResult{}, fmt.Errorf("restore to %s: %w", dest, err)
	}
	return res, nil
}

func (s *Store) restore(ctx context.Context, tree Digest, dest string, o RestoreOptions) (RestoreResult, error) {
	root, err := s.Lookup(ctx, tree, o.Path)
	if err != nil {
		return RestoreResult{}, err
	}
	if root.Type != TypeDir {
		return RestoreResult{}, fmt.Errorf("%.200q is a %s: %w", o.Path, root.Type, ErrNotDir)
	}
	if err := vacant(dest); err != nil {
		return RestoreResult{}, err
	}
	parent := filepath.Dir(dest)
	temp := filepath.Join(parent, ".skerry-restore-"+rand.Text())
	if err := os.Mkdir(temp, 0o700); err != nil {
		return RestoreResult{}, err
	}
	r := &restorer{ctx: ctx, store: s, opt: o, links: make(map[linkKey]linkSource)}
	if err := r.run(temp, root); err != nil {
		return RestoreResult{}, errors.Join(err, removeTree(temp))
	}
	// rename(2) itself, because os.Rename refuses an empty directory.
	if err := unix.Rename(temp, dest); err != nil {
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			err = ErrExist
		}
		return RestoreResult{}, errors.Join(err, removeTree(temp))
	}
	return r.res, syncDir(parent)
}

// vacant reports an error unless dest is missing or an empty directory.
func vacant(dest string) error {
	names, err := os.ReadDir(dest)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrExist, err)
	case len(names) > 0:
		return ErrExist
	}
	return nil
}

type restorer struct {
	ctx   context.Context //nolint:containedctx // lives as long as the call
	store *Store
	opt   RestoreOptions
	res   RestoreResult
	tree  *dirTree
	links map[linkKey]linkSource
	late  []lateDir // children before parents
}

// lateDir is a directory whose permissions would keep an ordinary user from
// coming back to it. It gets them when all else is done.
type lateDir struct {
	ref   *dirRef
	entry Entry
}

// run fills the temporary directory. It belongs to the daemon alone with mode
// 0700 until everything below it is done, so nobody can step in between.
func (r *restorer) run(temp string, root Entry) error {
	dir, err := os.Open(temp)
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	r.tree = &dirTree{root: fd}
	if err := r.fill(&dirRef{tree: r.tree}, root.Digest, ""); err != nil {
		return err
	}
	for _, d := range r.late {
		if err := r.finishDir(d.ref, &d.entry); err != nil {
			return fmt.Errorf("%.200q: %w", d.entry.Name, err)
		}
	}
	if err := r.setDir(fd, &root); err != nil {
		return err
	}
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// fill makes what the directory object names in the directory ref, whose
// descriptor stays open meanwhile unless too many are.
func (r *restorer) fill(ref *dirRef, tree Digest, at string) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if ref.depth > maxDepth {
		return &LimitError{What: "levels of directories", Limit: maxDepth, Path: at}
	}
	dir, err := r.store.ReadDir(r.ctx, tree)
	if err != nil {
		return err
	}
	r.skipped(dir, at)
	fd, err := ref.acquire()
	if err != nil {
		return err
	}
	kids, err := r.fillNames(ref, fd, dir, at)
	held := ref.retain()
	ref.release()
	if held {
		defer ref.release()
	}
	for i := 0; i < len(kids) && err == nil; i++ {
		err = r.fillKid(ref, kids[i], joinPath(at, kids[i].Name))
	}
	return err
}

// fillNames makes files and links, and empty directories, which it returns.
func (r *restorer) fillNames(ref *dirRef, fd int, dir *Directory, at string) ([]*Entry, error) {
	var kids []*Entry
	for i := range dir.Entries {
		x := &dir.Entries[i]
		var err error
		if x.Type == TypeDir {
			kids = append(kids, x)
			err = unix.Mkdirat(fd, x.Name, 0o700)
		} else {
			err = r.leaf(ref, fd, x)
		}
		if err != nil {
			return nil, fmt.Errorf("%.200q: %w", joinPath(at, x.Name), err)
		}
	}
	return kids, nil
}

func (r *restorer) skipped(dir *Directory, at string) {
	for _, x := range dir.Skipped {
		if r.res.SkippedTotal++; len(r.res.Skipped) < maxReported {
			r.res.Skipped = append(r.res.Skipped, Skipped{joinPath(at, x.Name), x.Kind, x.Reason})
		}
	}
}

func (r *restorer) fillKid(parent *dirRef, x *Entry, at string) error {
	kid, err := openKid(parent, x.Name)
	if err != nil {
		return fmt.Errorf("open %.200q: %w", at, err)
	}
	err = r.fill(kid, x.Digest, at)
	kid.release()
	if err != nil {
		return err
	}
	r.res.Dirs++
	if x.Mode&0o700 != 0o700 {
		r.late = append(r.late, lateDir{kid, *x})
		return nil
	}
	if err := r.finishDir(kid, x); err != nil {
		return fmt.Errorf("%.200q: %w", at, err)
	}
	return nil
}

// openKid opens a directory just made, with one reference.
func openKid(parent *dirRef, name string) (*dirRef, error) {
	pfd, err := parent.acquire()
	if err != nil {
		return nil, err
	}
	defer parent.release()
	fd, err := parent.tree.openDirAt(pfd, name)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	kid := &dirRef{tree: parent.tree, parent: parent, name: name, depth: parent.depth + 1, dev: uint64(st.Dev), ino: st.Ino}
	kid.adopt(fd)
	return kid, nil
}

func (r *restorer) finishDir(ref *dirRef, x *Entry) error {
	fd, err := ref.acquire()
	if err != nil {
		return err
	}
	defer ref.release()
	return r.setDir(fd, x)
}

// setDir sets a directory's owner, mode and time, once nothing more is going
// to be made in it.
func (r *restorer) setDir(fd int, x *Entry) error {
	if err := r.chown(fd); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, x.Mode); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return setTimeAt(fd, "", x)
}

func (r *restorer) chown(fd int) error {
	if r.opt.UID < 0 && r.opt.GID < 0 {
		return nil
	}
	if err := unix.Fchown(fd, r.opt.UID, r.opt.GID); err != nil {
		return fmt.Errorf("chown to %d:%d: %w", r.opt.UID, r.opt.GID, err)
	}
	return nil
}

// removeTree removes what a failed restore left, also where its modes would
// keep an ordinary user out.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
