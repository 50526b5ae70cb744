package cas

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// restoreDir is one directory of a restore.
type restoreDir struct {
	ref    *dirRef
	parent *restoreDir
	slot   int // in the parent's directory object
	entry  Entry
	dir    *Directory
	// left counts the tasks that still make something in it. The last one
	// gives it its mode and time.
	left atomic.Int32

	nodes  []node // for the stat cache; nil without one
	id     statID
	reread bool // what is there differs from the directory object
}

func (d *restoreDir) path(name string) string {
	parts := []string{name}
	for ; d.parent != nil; d = d.parent {
		parts = append(parts, d.entry.Name)
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

func (r *restorer) fillRoot(dropped bool) {
	if !dropped {
		r.attempt(r.root, "", r.fill(r.root, r.tree.root))
		r.complete(r.root)
	}
}

// attempt fails the restore with err, naming where it happened.
func (r *restorer) attempt(d *restoreDir, name string, err error) {
	if err != nil {
		r.fail(fmt.Errorf("%.200q: %w", strings.TrimSuffix(d.path(name), "/"), err))
	}
}

// fillKid opens a directory that its parent made, and fills it. held says
// that the parent's descriptor was retained for it.
func (r *restorer) fillKid(d *restoreDir, held, dropped bool) {
	if held {
		defer d.ref.parent.release()
	}
	if dropped {
		return
	}
	fd, err := openKid(d.ref)
	if err != nil {
		r.attempt(d, "", fmt.Errorf("open: %w", err))
		return
	}
	defer d.ref.release()
	r.attempt(d, "", r.fill(d, fd))
	r.complete(d)
}

// fill makes the names of d, or sees to it that tasks make them.
func (r *restorer) fill(d *restoreDir, fd int) error {
	if d.ref.depth > maxDepth {
		return &LimitError{What: "levels of directories", Limit: maxDepth}
	}
	dir, err := r.store.readDir(d.entry.Digest)
	if err != nil {
		return err
	}
	if d == r.root && r.opt.Only != "" {
		dir = dir.only(r.opt.Only)
	}
	d.dir = dir
	r.skipped(dir, strings.TrimSuffix(d.path(""), "/"))
	if r.opt.CacheKey != "" {
		d.nodes = make([]node, len(dir.Entries))
		d.reread = len(dir.Skipped) > 0
	}
	var kids, leaves []int
	for i := range dir.Entries {
		x := &dir.Entries[i]
		switch {
		case x.Type == TypeDir:
			if err := unix.Mkdirat(fd, x.Name, 0o700); err != nil {
				return fmt.Errorf("%.200q: %w", x.Name, err)
			}
			kids = append(kids, i)
		case x.Type == TypeFile && x.LinkGroup != 0:
			r.postpone(d, i)
		default:
			leaves = append(leaves, i)
		}
	}
	r.scheduleLeaves(d, fd, leaves)
	r.scheduleKids(d, kids)
	return nil
}

// A task makes as many files of one directory as these allow. Tasks in the
// same directory wait for each other at each name that they make, so that
// only what takes long to write is worth sharing.
const (
	leafBatchFiles = 1024
	leafBatchBytes = 8 << 20
)

// cutLeaves returns how many of the leaves make one task.
func (d *restoreDir) cutLeaves(leaves []int) int {
	bytes := int64(0)
	for n, i := range leaves {
		if bytes += d.dir.Entries[i].Size; n >= leafBatchFiles || n > 0 && bytes > leafBatchBytes {
			return n
		}
	}
	return len(leaves)
}

// scheduleLeaves makes the first files and symlinks here and hands the others
// out.
func (r *restorer) scheduleLeaves(d *restoreDir, fd int, leaves []int) {
	first := leaves[:d.cutLeaves(leaves)]
	for rest := leaves[len(first):]; len(rest) > 0; {
		batch := rest[:d.cutLeaves(rest)]
		rest = rest[len(batch):]
		d.left.Add(1)
		held := d.ref.retain()
		r.push(func(dropped bool) { r.leafBatch(d, batch, held, dropped) })
	}
	r.leaves(d, fd, first)
}

func (r *restorer) leafBatch(d *restoreDir, batch []int, held, dropped bool) {
	if held {
		defer d.ref.release()
	}
	if dropped {
		return
	}
	fd, err := d.ref.acquire()
	if err != nil {
		r.attempt(d, "", err)
		return
	}
	defer d.ref.release()
	r.leaves(d, fd, batch)
	r.complete(d)
}

func (r *restorer) leaves(d *restoreDir, fd int, batch []int) {
	var made RestoreResult
	defer func() { r.tally(&made) }()
	for _, i := range batch {
		if r.stop() {
			return
		}
		x := &d.dir.Entries[i]
		n, err := r.leaf(d, fd, x, &made)
		if err != nil {
			r.attempt(d, x.Name, err)
			return
		}
		if d.nodes != nil {
			d.nodes[i] = n
		}
	}
}

func (r *restorer) scheduleKids(d *restoreDir, kids []int) {
	for _, i := range slices.Backward(kids) {
		x := &d.dir.Entries[i]
		kid := &restoreDir{parent: d, slot: i, entry: *x,
			ref: &dirRef{tree: r.tree, parent: d.ref, name: x.Name, depth: d.ref.depth + 1}}
		kid.left.Store(1)
		d.left.Add(1)
		held := d.ref.retain()
		r.push(func(dropped bool) { r.fillKid(kid, held, dropped) })
	}
}

// complete ends one task of d. The last one finishes the directory, and is a
// task of its parent's. A directory whose permissions would keep an ordinary
// user from coming back to it gets them when all else is done.
func (r *restorer) complete(d *restoreDir) {
	for ; d.left.Add(-1) == 0 && d.parent != nil; d = d.parent {
		r.tally(&RestoreResult{Dirs: 1})
		if d.entry.Mode&0o700 != 0o700 {
			r.sum.Lock()
			r.late = append(r.late, d)
			r.sum.Unlock()
		} else if err := r.finish(d); err != nil {
			r.fail(err)
			return
		}
	}
}

// finish gives a directory its owner, mode and time.
func (r *restorer) finish(d *restoreDir) error {
	fd, err := d.ref.acquire()
	if err == nil {
		defer d.ref.release()
		err = r.setDir(fd, d)
	}
	if err == nil && d.nodes != nil {
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		d.id = statIDOf(&st)
	}
	if err != nil {
		return fmt.Errorf("%.200q: %w", d.path(""), err)
	}
	if d.parent.nodes != nil {
		d.parent.nodes[d.slot] = node{name: d.entry.Name, id: d.id, dir: d.cacheNode()}
	}
	return nil
}

// only is the directory with no entry but the one called name.
func (d *Directory) only(name string) *Directory {
	one := *d
	one.Entries = slices.DeleteFunc(slices.Clone(d.Entries), func(x Entry) bool { return x.Name != name })
	one.Skipped = slices.DeleteFunc(slices.Clone(d.Skipped), func(x SkippedName) bool { return x.Name != name })
	return &one
}
