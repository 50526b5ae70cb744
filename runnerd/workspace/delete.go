package workspace

import (
	"errors"
	"fmt"
	"os"
	"path"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// Delete takes the path asked out of the directory, with everything below it if
// recursive. The caller holds the lane, or the workspace needs repair, so that no
// process writes: this is how an agent makes room when a command of its own has
// filled the disk and no other may start. It commits nothing.
func (w *Workspace) Delete(asked string, recursive bool) error {
	p, err := CleanPath("path", asked)
	if err == nil {
		err = w.manager.cfg.Floor.CheckWrite("path", p)
	}
	if err != nil {
		return err
	}
	if p == "" {
		return problem.Invalid("path", "name a file or directory", "%q is the workspace itself", asked)
	}
	root, err := os.OpenRoot(w.Tree())
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	parent, err := root.OpenFile(path.Dir(p), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return pathError(err)
	}
	defer func() { _ = parent.Close() }()
	name := path.Base(p)
	if err := w.checkResolved(root, parent, name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError(err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && !recursive {
		e := problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "set recursive to delete it with all below it", "%s is a directory", Display(p))
		e.Field = "path"
		return e
	}
	if err := w.takeOut(parent, name); err != nil {
		return pathError(fmt.Errorf("delete %s: %w", name, err))
	}
	if err := parent.Sync(); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// takeOut moves name out of the workspace in one step and removes it there.
// Where the disk is too full even for that, it removes a file where it is.
func (w *Workspace) takeOut(parent *os.File, name string) error {
	if _, err := w.movable(parent, name); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(w.dir+"/tmp", "delete-*")
	if err == nil {
		err = unix.Renameat(int(parent.Fd()), name, unix.AT_FDCWD, stage+"/old")
		if rmErr := cas.RemoveTree(stage); rmErr != nil { // the next start does
			w.manager.log.Warn("deleted files not removed", "workspace", w.ID, "err", rmErr)
		}
	}
	if diskFull(err) {
		if unlinked := unix.Unlinkat(int(parent.Fd()), name, 0); !errors.Is(unlinked, unix.EISDIR) {
			return unlinked
		}
	}
	return err
}
