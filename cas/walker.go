package cas

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// walker is one snapshot in progress. Its tasks (directories to scan, batches
// of files to read) lie on a stack that a few goroutines work off; the
// objects of directories are made when all is read.
type walker struct {
	*workPool
	store *Store
	opt   SnapshotOptions
	tree  *dirTree
	dev   uint64 // of the root's file system
	self  inode  // the store's own directory

	clock    func() stamp
	entries  atomic.Int64
	bytes    atomic.Int64
	newBytes atomic.Int64
	newFiles atomic.Int64
	links    atomic.Int64 // names with a link count over 1
	recheck  recheck

	noXattrs  atomic.Bool  // the file system has none
	xattrRoom atomic.Int64 // bytes of them that may still be kept
}

func newWalker(ctx context.Context, s *Store, root int, o SnapshotOptions) *walker {
	w := &walker{workPool: newWorkPool(ctx, s.cfg.Workers), store: s, opt: o, tree: newDirTree(root)}
	w.clock = sync.OnceValue(fsClock{root}.now)
	return w
}

// run walks the tree and returns it; old is what it was the last time, or nil.
func (w *walker) run(old *dirNode) (*dirNode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(w.tree.root, &st); err != nil {
		return nil, fmt.Errorf("stat root: %w", err)
	}
	w.dev = st.Dev
	var self unix.Stat_t
	if err := unix.Stat(w.store.dir, &self); err != nil {
		return nil, fmt.Errorf("stat store: %w", err)
	}
	if w.self = (inode{self.Dev, self.Ino}); w.self == (inode{st.Dev, st.Ino}) {
		return nil, fmt.Errorf("the directory is the store itself: %w", ErrInvalid)
	}
	w.recheck.start(old, w.opt, w.store.cfg.recheckEvery)
	w.xattrRoom.Store(w.store.cfg.treeXattrBytes)
	if old != nil {
		w.xattrRoom.Add(-old.totals.attrs - old.attrs.bytes())
	}
	root := &dirWork{ref: &dirRef{tree: w.tree, dev: w.dev, ino: st.Ino}, old: old, id: statIDOf(&st)}
	if err := w.workPool.run(func(dropped bool) { w.scanRoot(root, dropped) }); err != nil {
		return nil, err
	}
	if root.skip != 0 {
		return nil, fmt.Errorf("root: %s", root.skip)
	}
	// A directory that was deleted, as by a restore that took its place, lists
	// as an empty one.
	if err := unix.Fstat(w.tree.root, &st); err != nil || root.gone || st.Nlink == 0 {
		return nil, errors.Join(fmt.Errorf("root was deleted; open the directory again: %w", ErrNotFound), err)
	}
	w.assignLinkGroups(root)
	return w.finish(root)
}

// admit counts an entry against the limits.
func (w *walker) admit(d *dirWork, name string, id *statID) bool {
	if n := w.entries.Add(1); w.opt.MaxFiles > 0 && n > w.opt.MaxFiles {
		w.fail(&LimitError{What: "files", Limit: w.opt.MaxFiles, Path: d.path(name)})
		return false
	}
	if !id.isRegular() {
		return true
	}
	if id.nlink > 1 {
		w.links.Add(1)
	}
	if n := w.bytes.Add(id.size); w.opt.MaxBytes > 0 && (n > w.opt.MaxBytes || n < 0) {
		w.fail(&LimitError{What: "bytes", Limit: w.opt.MaxBytes, Path: d.path(name)})
		return false
	}
	return true
}

func (w *walker) put(kind Kind, d Digest, content []byte) error {
	fresh, err := w.store.put(kind, d, content)
	if fresh {
		w.newBytes.Add(int64(len(content)))
	}
	return err
}
