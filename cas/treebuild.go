package cas

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// inode identifies a file among its names.
type inode struct{ dev, ino uint64 }

// linkName is one name of a file that has several.
type linkName struct {
	d *dirWork
	i int
}

// assignLinkGroups gives the names of each hard-linked file a common number,
// made of the first one's path, so that it depends on the tree alone. A file
// whose other names lie outside the tree has none.
func (w *walker) assignLinkGroups(root *dirWork) {
	if w.links.Load() == 0 {
		return
	}
	groups := make(map[inode][]linkName)
	collectLinks(root, groups)
	for _, names := range groups {
		group := uint64(0)
		if len(names) > 1 {
			group = linkGroup(names[0].d.path(names[0].d.entries[names[0].i].name))
		}
		for _, l := range names {
			if l.d.entries[l.i].group != group {
				l.d.own()
				l.d.entries[l.i].group = group
			}
		}
	}
}

func linkGroup(path string) uint64 {
	sum := sha256.Sum256([]byte(path))
	return max(1, binary.LittleEndian.Uint64(sum[:8]))
}

// collectLinks visits the names in the order of the tree: sorted, a
// directory's entries where the directory stands.
func collectLinks(d *dirWork, groups map[inode][]linkName) {
	kids := d.kids
	for i := range d.entries {
		if len(kids) > 0 && kids[0].slot == i {
			if kid := kids[0]; kid.skip == 0 && !kid.gone {
				collectLinks(kid, groups)
			}
			kids = kids[1:]
			continue
		}
		n := &d.entries[i]
		if n.name != "" && n.skip == 0 && n.id.isRegular() && n.id.nlink > 1 {
			key := inode{n.id.dev, n.id.ino}
			groups[key] = append(groups[key], linkName{d, i})
		}
	}
}

// finish makes the objects of d and of what is below it. A directory in which
// nothing differs is the one it was.
func (w *walker) finish(d *dirWork) (*dirNode, error) {
	for _, kid := range d.kids {
		if err := w.finishKid(d, kid); err != nil {
			return nil, err
		}
	}
	if !d.owned && d.old != nil && d.old.id == d.id && d.old.racy == d.racy {
		return d.old, nil
	}
	d.own()
	d.entries = slices.DeleteFunc(d.entries, func(n node) bool { return n.name == "" })
	return w.build(d)
}

func (w *walker) finishKid(d, kid *dirWork) error {
	was := &d.entries[kid.slot]
	if kid.gone || kid.skip != 0 {
		d.own()
		n := &d.entries[kid.slot]
		*n = node{name: n.name, id: kid.id, skip: kid.skip, racy: true}
		if kid.gone {
			n.name, d.racy = "", true
		}
		return nil
	}
	done, err := w.finish(kid)
	if err != nil {
		return err
	}
	if was.dir != done {
		d.own()
		d.entries[kid.slot] = node{name: was.name, id: kid.id, dir: done}
	}
	return nil
}

func (w *walker) build(d *dirWork) (*dirNode, error) {
	out := &dirNode{id: d.id, racy: d.racy, attrs: d.attrs, entries: d.entries}
	dir := &Directory{Entries: make([]Entry, 0, len(d.entries))}
	if d.parent == nil {
		dir.Root, dir.Mode, dir.MTime, dir.Xattrs = true, d.id.perm(), d.id.mtime.time(), d.attrs.xattrs()
	}
	for i := range d.entries {
		n := &d.entries[i]
		if n.skip != 0 {
			dir.Skipped = append(dir.Skipped, SkippedName{n.name, n.id.skipKind(), n.skip})
		} else {
			dir.Entries = append(dir.Entries, n.entry())
		}
		out.totals.count(n)
		if n.dir != nil {
			out.totals.add(&n.dir.totals)
		}
	}
	content, err := dir.marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %.200q: %w", d.path(""), err)
	}
	out.digest = DigestOf(content)
	return out, w.put(KindDirectory, out.digest, content)
}
