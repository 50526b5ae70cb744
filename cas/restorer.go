package cas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// restorer is one restore in progress. Directories and batches of files are
// tasks of its pool; hard-linked files come after them, one by one.
type restorer struct {
	*workPool
	store *Store
	opt   RestoreOptions
	root  *restoreDir
	tree  *dirTree
	links map[linkKey]linkSource

	source *cloneSource
	era    uint64 // of the stat caches, at the start

	sum  sync.Mutex // guards what follows
	res  RestoreResult
	late []*restoreDir // children before parents
	hard []hardLink
}

func newRestorer(ctx context.Context, s *Store, o RestoreOptions, root Entry) *restorer {
	r := &restorer{workPool: newWorkPool(ctx, s.cfg.Workers), store: s, opt: o, links: make(map[linkKey]linkSource), era: s.caches.now()}
	r.root = &restoreDir{entry: root}
	return r
}

// run fills the temporary directory and puts it in the place of dest. It
// belongs to the daemon alone with mode 0700 until everything below it is
// done, so nobody can step in between.
func (r *restorer) run(temp, dest string) error {
	f, err := os.Open(temp)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	r.source = newCloneSource(&r.opt, dest, r.store.cfg.clone)
	defer r.source.close()
	r.tree = &dirTree{root: fd}
	r.root.ref = &dirRef{tree: r.tree}
	r.root.left.Store(1)
	if err := r.workPool.run(func(dropped bool) { r.fillRoot(dropped) }); err != nil {
		return err
	}
	if err := r.makeLinks(); err != nil {
		return err
	}
	for _, d := range r.late {
		if err := r.finish(d); err != nil {
			return err
		}
	}
	if err := r.setDir(fd, r.root); err != nil {
		return err
	}
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	now := r.settledClock(fd)
	replaced, err := r.opt.swap(temp, dest)
	if err != nil {
		return err
	}
	if replaced { // dest is the new tree by now, whatever becomes of the old one
		r.res.NotRemoved = RemoveTree(temp)
	}
	slices.Sort(r.res.NoXattrs)
	slices.SortFunc(r.res.Skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	r.seed(fd, now)
	return nil
}

// tally adds what a task made to the result.
func (r *restorer) tally(c *RestoreResult) {
	r.sum.Lock()
	defer r.sum.Unlock()
	r.res.Files += c.Files
	r.res.Dirs += c.Dirs
	r.res.Symlinks += c.Symlinks
	r.res.Links += c.Links
	r.res.Bytes += c.Bytes
	r.res.ClonedBytes += c.ClonedBytes
}

func (r *restorer) skipped(dir *Directory, at string) {
	r.sum.Lock()
	defer r.sum.Unlock()
	for _, x := range dir.Skipped {
		if r.res.SkippedTotal++; len(r.res.Skipped) < maxReported {
			r.res.Skipped = append(r.res.Skipped, Skipped{joinPath(at, x.Name), x.Kind, x.Reason})
		}
	}
}

// setXattrs gives the entry x of d, or d itself, its extended attributes, and
// notes when the file system does not take them all.
func (r *restorer) setXattrs(fd int, d *restoreDir, x *Entry) (whole bool, err error) {
	if len(x.Xattrs) == 0 {
		return true, nil
	}
	if whole, err = setXattrs(fd, x.Xattrs); whole || err != nil {
		return whole, err
	}
	name := x.Name
	if x == &d.entry {
		name = ""
	}
	path := strings.TrimSuffix(d.path(name), "/")
	r.sum.Lock()
	defer r.sum.Unlock()
	if r.res.NoXattrsTotal++; len(r.res.NoXattrs) < maxReported {
		r.res.NoXattrs = append(r.res.NoXattrs, path)
	}
	return false, nil
}

// setDir sets a directory's attributes, owner, mode and time, once nothing
// more is going to be made in it.
func (r *restorer) setDir(fd int, d *restoreDir) error {
	x := &d.entry
	whole, err := r.setXattrs(fd, d, x)
	if err != nil {
		return err
	}
	d.reread = d.reread || !whole
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

// openKid opens a directory just made, with one reference.
func openKid(ref *dirRef) (int, error) {
	pfd, err := ref.parent.acquire()
	if err != nil {
		return -1, err
	}
	defer ref.parent.release()
	fd, err := ref.tree.openDirAt(pfd, ref.name)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	ref.dev, ref.ino = st.Dev, st.Ino
	ref.adopt(fd)
	return fd, nil
}
