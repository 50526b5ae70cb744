package cas

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// walker is one snapshot in progress. Its tasks (directories to scan, batches
// of files to read) lie on a stack that a few goroutines work off; the
// objects of directories are made when all is read.
type walker struct {
	ctx   context.Context //nolint:containedctx // lives as long as the snapshot
	store *Store
	opt   SnapshotOptions
	tree  *dirTree
	dev   uint64 // of the root's file system

	clock    func() stamp
	entries  atomic.Int64
	bytes    atomic.Int64
	newBytes atomic.Int64
	newFiles atomic.Int64
	links    atomic.Int64 // names with a link count over 1

	wg      sync.WaitGroup
	failed  atomic.Bool
	mu      sync.Mutex
	ready   sync.Cond
	stack   []task
	pending int // tasks on the stack or at work
	workers int
	err     error
}

// task is a piece of a walk. When dropped is true the walk has failed and the
// task only lets go of what it holds.
type task func(dropped bool)

func newWalker(ctx context.Context, s *Store, root int, o SnapshotOptions) *walker {
	w := &walker{ctx: ctx, store: s, opt: o, tree: newDirTree(root)}
	w.ready.L = &w.mu
	w.clock = sync.OnceValue(fsClock{root}.now)
	return w
}

// run walks the tree and returns it; old is what it was the last time, or nil.
func (w *walker) run(old *dirNode) (*dirNode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(w.tree.root, &st); err != nil {
		return nil, fmt.Errorf("stat root: %w", err)
	}
	w.dev = uint64(st.Dev)
	root := &dirWork{ref: &dirRef{tree: w.tree, dev: w.dev, ino: st.Ino}, old: old, id: statIDOf(&st)}
	w.push(func(dropped bool) { w.scanRoot(root, dropped) })
	w.workers++
	w.work()
	w.wg.Wait()
	if w.err != nil {
		return nil, w.err
	}
	if root.skip != 0 {
		return nil, fmt.Errorf("root: %s", root.skip)
	}
	w.assignLinkGroups(root)
	return w.finish(root)
}

// push puts a task on the stack and sees to it that someone takes it.
func (w *walker) push(t task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stack = append(w.stack, t)
	w.pending++
	if len(w.stack) > 1 && w.workers < w.store.cfg.Workers {
		w.workers++
		w.wg.Go(w.work)
	}
	w.ready.Signal()
}

func (w *walker) work() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.stack) == 0 {
			if w.pending == 0 {
				return
			}
			w.ready.Wait()
		}
		t := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		w.mu.Unlock()
		t(w.stop())
		w.mu.Lock()
		if w.pending--; w.pending == 0 {
			w.ready.Broadcast()
		}
	}
}

// fail makes the walk end with err; the first one counts.
func (w *walker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.failed.Store(true)
}

// stop reports whether the walk has failed or was cancelled.
func (w *walker) stop() bool {
	if !w.failed.Load() && w.ctx.Err() != nil {
		w.fail(w.ctx.Err())
	}
	return w.failed.Load()
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
