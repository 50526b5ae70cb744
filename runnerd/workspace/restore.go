package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// Restore makes the directory, or the path p in it, what the snapshot with this
// digest has, and commits that. The caller holds the lane. Until the new content
// lies whole on the disk nothing is replaced; what is replaced is in the head
// that the new one follows.
func (w *Workspace) Restore(ctx context.Context, snapshot, p string) (Committed, error) {
	if snapshot == "" {
		return Committed{}, problem.Invalid("snapshot", "use a digest that History shows", "is empty")
	}
	v, err := w.View(ctx, snapshot)
	if err != nil {
		return Committed{}, err
	}
	source := "restore:" + v.Digest()
	if p == "" {
		if err = w.roomForAll(ctx, v.Tree); err == nil {
			err = w.restoreAll(ctx, v.Tree)
		}
	} else {
		source += " " + p
		err = w.restorePath(ctx, v, p)
	}
	if err != nil {
		return Committed{}, noRoom(err)
	}
	// The files are in their place: the commit goes on though the caller leaves.
	return w.Commit(context.WithoutCancel(ctx), source)
}

func (w *Workspace) restoreAll(ctx context.Context, tree cas.Digest) error {
	res, err := w.manager.store.Restore(ctx, tree, w.Tree(), cas.RestoreOptions{UID: w.UID, GID: w.GID, CacheKey: w.ID, Replace: true})
	if res.NotRemoved != nil { // the next start does
		w.manager.log.Warn("files before a restore not removed", "workspace", w.ID, "err", res.NotRemoved)
	}
	return err
}

// restorePath makes the one entry beside the workspace and puts it in.
func (w *Workspace) restorePath(ctx context.Context, v *View, asked string) error {
	p, err := CleanPath("path", asked)
	if err == nil {
		err = w.manager.cfg.Floor.CheckWrite("path", p)
	}
	if err != nil {
		return err
	}
	if p == "" {
		return problem.Invalid("path", "leave it empty to restore everything", "%q is the workspace itself", asked)
	}
	if err := w.roomForPath(ctx, v.Tree, p); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(w.dir+"/tmp", "restore-*")
	if err != nil {
		return fmt.Errorf("stage restore: %w", err)
	}
	defer func() {
		if err := cas.RemoveTree(stage); err != nil { // the next start does
			w.manager.log.Warn("staged restore not removed", "workspace", w.ID, "err", err)
		}
	}()
	dir, name := path.Dir(p), path.Base(p)
	if dir == "." {
		dir = ""
	}
	made := stage + "/made"
	_, err = w.manager.store.Restore(ctx, v.Tree, made, cas.RestoreOptions{UID: w.UID, GID: w.GID, Path: dir, Only: name})
	if err != nil {
		return storeError("path", err)
	}
	return w.putIn(made, p, stage+"/old")
}

// putIn moves made/NAME to the path p in the workspace. What lies there moves
// out, to be removed by the caller. The path is walked by os.Root, so that no
// symlink leads outside, and its last component is never followed.
func (w *Workspace) putIn(made, p, old string) error {
	root, err := os.OpenRoot(w.Tree())
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	parent, err := w.openParent(root, path.Dir(p))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	name := path.Base(p)
	if err := w.checkResolved(root, parent, name); err != nil {
		return err
	}
	from, err := os.Open(made)
	if err != nil {
		return fmt.Errorf("open staged restore: %w", err)
	}
	defer func() { _ = from.Close() }()
	if err := os.Chmod(made, 0o700); err != nil { // it has the mode of the directory above p
		return fmt.Errorf("open staged restore: %w", err)
	}
	mode, err := w.movable(from, name)
	if err != nil {
		return err
	}
	if _, err := w.movable(parent, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := exchange(from, parent, name, old); err != nil {
		return pathError(fmt.Errorf("put %s in: %w", name, err))
	}
	if mode != 0 {
		if err := unix.Fchmodat(int(parent.Fd()), name, mode, 0); err != nil {
			return fmt.Errorf("put %s in: %w", name, err)
		}
	}
	if err := parent.Sync(); err != nil {
		return fmt.Errorf("put %s in: %w", name, err)
	}
	return nil
}

// movable lets the daemon as an ordinary user rename a directory, which needs
// the right to write to it. It gives the mode that the directory had, or 0 when
// nothing had to be done.
func (w *Workspace) movable(dir *os.File, name string) (uint32, error) {
	const owner = 0o700
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, pathError(err)
	}
	if w.UID >= 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&owner == owner {
		return 0, nil
	}
	mode := st.Mode & 0o777
	if err := unix.Fchmodat(int(dir.Fd()), name, mode|owner, 0); err != nil {
		return 0, pathError(err)
	}
	return mode, nil
}

// exchange moves name from one directory to another. What the other has of
// that name goes to old, in one step where the file system can.
func exchange(from, to *os.File, name, old string) error {
	src, dst := int(from.Fd()), int(to.Fd())
	err := unix.Renameat2(src, name, dst, name, unix.RENAME_NOREPLACE)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	err = unix.Renameat2(src, name, dst, name, unix.RENAME_EXCHANGE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err := unix.Renameat(dst, name, unix.AT_FDCWD, old); err != nil {
		return err
	}
	return unix.Renameat2(src, name, dst, name, unix.RENAME_NOREPLACE)
}
