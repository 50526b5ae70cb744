package cas

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// TreeWriter makes a tree in the store out of entries that come in any order,
// as those of an archive do, without a directory on disk. What it wrote is kept
// from collections until Close. It is for one goroutine.
//
// Paths are slash-separated and relative to the tree's root; "." and empty
// components are left out, ".." is ErrOutside. A symlink in the place of a
// parent directory is followed inside the tree, as a container's root would
// have it: it cannot lead out. Parents that are missing are made with mode 0755.
type TreeWriter struct {
	ctx     context.Context //nolint:containedctx // lives from NewTree to Close
	store   *Store
	root    *treeNode
	layer   int
	most    int64
	entries int64
	end     func()
}

// treeNode is a name in the tree; of a hard-linked file each name has its own,
// and they share the file.
type treeNode struct {
	TreeMeta
	kids   map[string]*treeNode // of a directory, else nil
	file   *treeFile            // of a file, else nil
	target string               // of a symlink
	layer  int                  // that set it last
	swept  int                  // last layer whose whiteouts went through all below it
}

// TreeMeta is what a TreeWriter keeps of a file or directory beside its content.
type TreeMeta struct {
	Mode   uint32 // permission bits; others are left out
	MTime  time.Time
	Xattrs []Xattr // see ValidXattrs
}

func (m TreeMeta) checked() (TreeMeta, error) {
	m.Mode &= permMask
	if !ValidXattrs(m.Xattrs) {
		return m, fmt.Errorf("extended attributes: %w", ErrInvalid)
	}
	return m, nil
}

type treeFile struct {
	size   int64
	digest Digest
	chunks Digest
	names  int
	group  uint64
}

// NewTree begins an empty tree of at most so many entries; ctx bounds all of its
// calls. The caller must Close it.
func (s *Store) NewTree(ctx context.Context, mostEntries int64) (*TreeWriter, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	session := s.session()
	return &TreeWriter{ctx: ctx, store: s, root: newTreeDir(), most: mostEntries,
		end: func() { session(); release() }}, nil
}

// Close lets go of what was written; what was committed or kept in another way
// by then stays. Closing again does nothing.
func (t *TreeWriter) Close() {
	if t.end != nil {
		t.end()
		t.end = nil
	}
}

// Dir makes a directory, or gives one that is there its mode and time.
func (t *TreeWriter) Dir(p string, m TreeMeta) error {
	m, err := m.checked()
	if err != nil {
		return fmt.Errorf("%.200q: %w", p, err)
	}
	parent, name, err := t.find(p, true)
	if err != nil {
		return err
	}
	old := t.root
	if name != "" {
		old = parent.kids[name]
	}
	if old != nil && old.kids != nil {
		old.TreeMeta, old.layer = m, t.layer
		return nil
	}
	return t.set(parent, name, &treeNode{TreeMeta: m, kids: map[string]*treeNode{}})
}

// File stores what r gives as a file. What the path had before is replaced.
func (t *TreeWriter) File(p string, m TreeMeta, r io.Reader) error {
	m, err := m.checked()
	if err != nil {
		return fmt.Errorf("%.200q: %w", p, err)
	}
	parent, name, err := t.named(p)
	if err != nil {
		return err
	}
	x, err := t.store.putFile(&contextReader{t.ctx, r})
	if err != nil {
		return fmt.Errorf("%.200q: %w", p, err)
	}
	return t.set(parent, name, &treeNode{TreeMeta: m, file: &treeFile{size: x.Size, digest: x.Digest, chunks: x.Chunks}})
}

// Symlink makes a symbolic link. The target is not looked at.
func (t *TreeWriter) Symlink(p, target string, mtime time.Time) error {
	parent, name, err := t.named(p)
	if err != nil {
		return err
	}
	if len(target) > maxTarget || target == "" {
		return fmt.Errorf("%.200q: target of %d bytes: %w", p, len(target), ErrInvalid)
	}
	return t.set(parent, name, &treeNode{TreeMeta: TreeMeta{Mode: permMask, MTime: mtime}, target: target})
}

// Link makes another name of a file that is there; of a symlink, a copy.
func (t *TreeWriter) Link(p, existing string) error {
	from, old, err := t.find(existing, false)
	if err != nil {
		return err
	}
	n := from.kid(old)
	if n == nil || n.kids != nil {
		return fmt.Errorf("%.200q links to %.200q, which is no file: %w", p, existing, ErrNotFound)
	}
	parent, name, err := t.named(p)
	if err != nil {
		return err
	}
	if parent == from && name == old {
		return nil
	}
	return t.set(parent, name, &treeNode{TreeMeta: n.TreeMeta, file: n.file, target: n.target})
}

// NextLayer ends a layer: Remove and Clear leave what is set from now on alone.
func (t *TreeWriter) NextLayer() { t.layer++ }

// Remove takes a path out, with all below it, as far as earlier layers set it.
// One that is not there is no error.
func (t *TreeWriter) Remove(p string) error {
	parent, name, err := t.find(p, false)
	switch n := parent.kid(name); {
	case err != nil:
		return err
	case name == "":
		return rootError(p)
	case n != nil && t.clear(n):
		t.drop(parent, name)
	}
	return nil
}

// Clear takes out what earlier layers set below a directory. One that is not
// there is no error.
func (t *TreeWriter) Clear(p string) error {
	dir, name, err := t.find(p, false)
	if err != nil {
		return err
	}
	if name != "" {
		dir = dir.kid(name)
	}
	if dir != nil {
		t.clear(dir)
	}
	return nil
}

// clear drops what earlier layers set below n, and reports whether n may go too.
// Once a layer is enough: what comes into n from then on is of this layer.
func (t *TreeWriter) clear(n *treeNode) bool {
	if n.swept == t.layer && t.layer > 0 {
		return n.layer < t.layer && len(n.kids) == 0
	}
	n.swept = t.layer
	for name, kid := range n.kids {
		if t.clear(kid) {
			t.drop(n, name)
		}
	}
	return n.layer < t.layer && len(n.kids) == 0
}

// Finish stores the directories and gives the tree. It is durable after the next
// Commit, Pin or Sync.
func (t *TreeWriter) Finish() (Digest, TreeStats, error) {
	var stats TreeStats
	t.group(t.root, "")
	d, err := t.build(t.root, true, &stats)
	if err == nil {
		t.store.made(d)
	}
	return d, stats, err
}

func (t *TreeWriter) set(parent *treeNode, name string, n *treeNode) error {
	t.drop(parent, name)
	if t.entries++; t.entries > t.most {
		return &LimitError{What: "entries in a tree", Limit: t.most}
	}
	parent.kids[name] = n
	n.layer = t.layer
	if n.file != nil {
		n.file.names++
	}
	return nil
}

func (t *TreeWriter) drop(parent *treeNode, name string) {
	n := parent.kids[name]
	if n == nil {
		return
	}
	for kid := range n.kids {
		t.drop(n, kid)
	}
	if n.file != nil {
		n.file.names--
	}
	delete(parent.kids, name)
	t.entries--
}

// newTreeDir is a directory that nothing described yet.
func newTreeDir() *treeNode {
	return &treeNode{TreeMeta: TreeMeta{Mode: 0o755, MTime: time.Unix(0, 0)}, kids: map[string]*treeNode{}}
}

// kid gives an entry of a directory; nil where there is none.
func (n *treeNode) kid(name string) *treeNode {
	if n == nil {
		return nil
	}
	return n.kids[name]
}

func (n *treeNode) sorted() []string {
	names := make([]string, 0, len(n.kids))
	for name := range n.kids {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// group numbers hard-linked files by the path of their first name.
func (t *TreeWriter) group(dir *treeNode, at string) {
	for _, name := range dir.sorted() {
		switch n := dir.kids[name]; {
		case n.kids != nil:
			t.group(n, at+name+"/")
		case n.file != nil && n.file.names > 1 && n.file.group == 0:
			n.file.group = linkGroup(at + name)
		}
	}
}

// build stores a directory behind what it names.
func (t *TreeWriter) build(n *treeNode, root bool, stats *TreeStats) (Digest, error) {
	if err := t.ctx.Err(); err != nil {
		return Digest{}, err
	}
	dir := &Directory{Entries: make([]Entry, 0, len(n.kids))}
	if root {
		dir.Root, dir.Mode, dir.MTime, dir.Xattrs = true, n.Mode, n.MTime, n.Xattrs
	}
	for _, name := range n.sorted() {
		kid := n.kids[name]
		x := Entry{Name: name, Mode: kid.Mode, MTime: kid.MTime, Xattrs: kid.Xattrs}
		switch {
		case kid.kids != nil:
			d, err := t.build(kid, false, stats)
			if err != nil {
				return Digest{}, err
			}
			x.Type, x.Digest = TypeDir, d
			stats.Dirs++
		case kid.file != nil:
			f := kid.file
			x.Type, x.Size, x.Digest, x.Chunks, x.LinkGroup = TypeFile, f.size, f.digest, f.chunks, f.group
			stats.Files++
			stats.Bytes += f.size
		default:
			x.Type, x.Target = TypeSymlink, kid.target
			stats.Symlinks++
		}
		dir.Entries = append(dir.Entries, x)
	}
	content, err := dir.marshal()
	if err != nil {
		return Digest{}, err
	}
	d := DigestOf(content)
	_, err = t.store.put(KindDirectory, d, content)
	return d, err
}
