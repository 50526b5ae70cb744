package cas

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dirWork is one directory of a walk.
type dirWork struct {
	ref    *dirRef
	parent *dirWork
	old    *dirNode // as it was the last time; nil if new
	id     statID
	racy   bool
	attrs  *attrs

	entries []node // sorted; old's own until something differs
	owned   bool   // entries may be written
	kids    []*dirWork
	slot    int        // in the parent's entries
	skip    SkipReason // not 0: could not be scanned
	gone    bool       // was deleted meanwhile
}

// path returns name's path from the root.
func (d *dirWork) path(name string) string {
	parts := []string{name}
	for ; d != nil && d.parent != nil; d = d.parent {
		parts = append(parts, d.ref.name)
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

// own makes entries writable without touching the published cache.
func (d *dirWork) own() {
	if !d.owned {
		d.entries, d.owned = slices.Clone(d.entries), true
	}
}

func (w *walker) scanRoot(d *dirWork, dropped bool) {
	if !dropped {
		w.scan(d, w.tree.root)
	}
}

// scanKid opens a directory by its parent and scans it. held says that the
// parent's descriptor was retained for it.
func (w *walker) scanKid(d *dirWork, held, dropped bool) {
	parent := d.parent.ref
	if held {
		defer parent.release()
	}
	if dropped {
		return
	}
	pfd, err := parent.acquire()
	if err != nil {
		d.cannotOpen(w, err)
		return
	}
	fd, err := w.tree.openDirAt(pfd, d.ref.name)
	parent.release()
	if err != nil {
		d.cannotOpen(w, err)
		return
	}
	d.ref.adopt(fd)
	defer d.ref.release()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.cannotOpen(w, err)
		return
	}
	if st.Dev != w.dev {
		d.skip = SkipMount
		return
	}
	d.id, d.ref.dev, d.ref.ino = statIDOf(&st), st.Dev, st.Ino
	w.scan(d, fd)
}

// cannotOpen records why a directory is left out, or fails the walk when the
// reason is the daemon's own lack of something.
func (d *dirWork) cannotOpen(w *walker, err error) {
	reason, gone, fatal := classify(err)
	switch {
	case fatal != nil:
		w.fail(fatal)
	case gone:
		d.gone = true
	default:
		d.skip = reason
	}
}

// scan looks at each name in d. When the directory is as it was, the names
// are known and only each one's status is asked for.
func (w *walker) scan(d *dirWork, fd int) {
	if d.old != nil && !d.old.racy && d.old.id.sameDir(&d.id) {
		d.entries, d.attrs = d.old.entries, d.old.attrs
	} else if !w.readNames(d, fd) {
		return
	}
	var reads []int
	for i := range d.entries {
		if i&1023 == 0 && w.stop() {
			return
		}
		if w.look(d, fd, i) {
			reads = append(reads, i)
		}
	}
	if w.failed.Load() {
		return
	}
	w.scheduleReads(d, fd, reads)
	w.scheduleKids(d)
}

// readNames lists the directory, and its attributes, and carries over what was
// known of each name.
func (w *walker) readNames(d *dirWork, fd int) bool {
	now := w.clock() // before the names are read: see statID.racy
	names, err := listNames(fd)
	if err != nil {
		d.cannotOpen(w, err)
		return false
	}
	if d.old != nil {
		w.giveBack(d.old.attrs.bytes())
	}
	d.attrs = w.readAttrs(fd)
	d.racy, d.owned = d.id.racy(now), true
	d.entries = make([]node, len(names))
	var known []node
	if d.old != nil {
		known = d.old.entries
	}
	for i, name := range names {
		for len(known) > 0 && known[0].name < name {
			w.forget(&known[0])
			known = known[1:]
		}
		if len(known) > 0 && known[0].name == name {
			d.entries[i], known = known[0], known[1:]
		} else {
			d.entries[i].name = name
		}
	}
	for i := range known {
		w.forget(&known[i])
	}
	return true
}

// look asks for the status of entry i and reports whether it must be read.
func (w *walker) look(d *dirWork, fd, i int) bool {
	n := &d.entries[i]
	id, err := lstatAt(fd, n.name)
	if err != nil {
		d.lost(w, i, err)
		return false
	}
	if !w.admit(d, n.name, &id) {
		return false
	}
	switch {
	case id.isDir():
		w.addKid(d, i, &id)
		return false
	case n.dir == nil && n.id == id && !n.racy && (n.skip == 0 || n.skip == SkipSpecial) && n.id.mode != 0:
		if w.recheck.chosen(n) {
			w.recheckEntry(d, fd, i)
		}
		return false
	case id.isRegular(), id.isSymlink():
		w.forget(n)
		d.own()
		d.entries[i] = node{name: n.name, id: id, file: n.lastContent(&id)}
		return true
	default:
		w.forget(n)
		d.own()
		d.entries[i] = node{name: n.name, id: id, skip: SkipSpecial}
		return false
	}
}

func (w *walker) addKid(d *dirWork, i int, id *statID) {
	n := &d.entries[i]
	if id.dev == w.self.dev && id.ino == w.self.ino {
		w.fail(fmt.Errorf("%.200q is the store itself; keep it outside of what is stored: %w", d.path(n.name), ErrInvalid))
		return
	}
	if id.dev != w.dev {
		d.own()
		d.entries[i] = node{name: n.name, id: *id, skip: SkipMount}
		return
	}
	// To fail here would let an agent make its workspace one that can never be
	// committed again, and so never be cleaned by a command either.
	if d.ref.depth >= maxDepth {
		d.own()
		d.entries[i] = node{name: n.name, id: *id, skip: SkipTooDeep}
		return
	}
	d.kids = append(d.kids, &dirWork{
		ref:    &dirRef{tree: w.tree, parent: d.ref, name: n.name, depth: d.ref.depth + 1, dev: id.dev, ino: id.ino},
		parent: d, old: n.dir, id: *id, slot: i,
	})
}

// lost records an entry whose status cannot be had.
func (d *dirWork) lost(w *walker, i int, err error) {
	d.own()
	n := &d.entries[i]
	w.forget(n)
	reason, gone, fatal := classify(err)
	switch {
	case fatal != nil:
		w.fail(fatal)
	case gone:
		n.name = "" // left out by finish
	default:
		*n = node{name: n.name, skip: reason, racy: true}
	}
	d.racy = d.racy || gone
}

// readBatch is how many files one task reads.
const readBatch = 32

// scheduleReads reads the first files here and hands the others out.
func (w *walker) scheduleReads(d *dirWork, fd int, reads []int) {
	if len(reads) == 0 {
		return
	}
	for rest := reads[min(readBatch, len(reads)):]; len(rest) > 0; {
		batch := rest[:min(readBatch, len(rest))]
		rest = rest[len(batch):]
		held := d.ref.retain()
		w.push(func(dropped bool) { w.readBatch(d, batch, held, dropped) })
	}
	w.readEntries(d, fd, reads[:min(readBatch, len(reads))])
}

func (w *walker) readBatch(d *dirWork, batch []int, held, dropped bool) {
	if held {
		defer d.ref.release()
	}
	if dropped {
		return
	}
	fd, err := d.ref.acquire()
	if err != nil {
		for _, i := range batch {
			d.lostRead(w, &d.entries[i], err)
		}
		return
	}
	defer d.ref.release()
	w.readEntries(d, fd, batch)
}

func (w *walker) readEntries(d *dirWork, fd int, batch []int) {
	for _, i := range batch {
		if w.stop() {
			return
		}
		w.read(d, fd, i)
	}
}

// scheduleKids puts the subdirectories on the stack, the first on top.
func (w *walker) scheduleKids(d *dirWork) {
	for _, kid := range slices.Backward(d.kids) {
		held := d.ref.retain()
		w.push(func(dropped bool) { w.scanKid(kid, held, dropped) })
	}
}
