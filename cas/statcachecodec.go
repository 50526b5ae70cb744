package cas

import "fmt"

const statCacheVersion = 2

func encodeStatCache(uuid [16]byte, key string, root *dirNode) []byte {
	e := &encoder{b: make([]byte, 0, 256+160*root.totals.nodes)}
	e.b = append(e.b, 'S', 'K', 'S', statCacheVersion)
	e.b = append(e.b, uuid[:]...)
	e.str(key)
	e.dirNode(root)
	return appendChecksum(e.b)
}

func decodeStatCache(b []byte, uuid [16]byte, key string) (*dirNode, error) {
	body, ok := cutChecksum(b)
	if !ok {
		return nil, fmt.Errorf("stat cache checksum: %w", ErrCorrupt)
	}
	d := &decoder{b: body}
	d.magic('S', statCacheVersion, "stat cache")
	if got := d.take(16, "uuid"); d.err == nil && [16]byte(got) != uuid {
		return nil, fmt.Errorf("stat cache of another store: %w", ErrInvalid)
	}
	if got := d.str(1<<20, "key"); d.err == nil && got != key {
		return nil, fmt.Errorf("stat cache of key %.100q: %w", got, ErrInvalid)
	}
	root := d.dirNode(0)
	return root, d.end("stat cache")
}

func (e *encoder) statID(id *statID) {
	e.uvarint(id.dev)
	e.uvarint(id.ino)
	e.varint(id.size)
	e.stamp(id.mtime)
	e.stamp(id.ctime)
	e.uvarint(uint64(id.mode))
	e.uvarint(uint64(id.nlink))
}

func (d *decoder) statID() statID {
	return statID{dev: d.uvarint("dev"), ino: d.uvarint("ino"), size: d.varint("size"),
		mtime: d.stamp("mtime"), ctime: d.stamp("ctime"),
		mode: uint32(d.upTo(1<<32-1, "mode")), nlink: uint32(d.upTo(1<<32-1, "nlink"))}
}

func (e *encoder) flag(v bool) {
	if v {
		e.u8(1)
	} else {
		e.u8(0)
	}
}

func (e *encoder) attrs(a *attrs) {
	e.u8(byte(a.loss()))
	e.flag(len(a.xattrs()) > 0)
	if len(a.xattrs()) > 0 {
		encodeXattrs(e, a.list)
	}
}

func (d *decoder) attrs() *attrs {
	a := attrs{lost: XattrLoss(d.u8("attributes lost"))}
	if d.u8("attributes") != 0 {
		a.list = decodeXattrs(d)
	}
	if a.lost == 0 && a.list == nil {
		return nil
	}
	return &a
}

func (e *encoder) dirNode(n *dirNode) {
	e.statID(&n.id)
	e.flag(n.racy)
	e.digest(n.digest)
	e.attrs(n.attrs)
	e.uvarint(uint64(len(n.entries)))
	for i := range n.entries {
		e.node(&n.entries[i])
	}
}

func (e *encoder) node(n *node) {
	e.str(n.name)
	e.statID(&n.id)
	e.flag(n.racy)
	e.u8(byte(n.skip))
	switch {
	case n.skip != 0:
	case n.dir != nil:
		e.dirNode(n.dir)
	case n.id.isSymlink():
		e.str(n.target)
	default:
		x := n.entry()
		x.encodeFile(e)
		e.attrs(n.attrs)
	}
}

func (d *decoder) dirNode(depth int) *dirNode {
	n := &dirNode{id: d.statID(), racy: d.u8("racy") != 0, digest: d.digest("digest"), attrs: d.attrs()}
	if depth > maxDepth {
		d.fail("depth")
	}
	count := d.count(10, "entries")
	n.entries = make([]node, 0, min(count, 4096))
	for i := 0; i < count && d.err == nil; i++ {
		n.entries = append(n.entries, d.node(depth))
		last := &n.entries[len(n.entries)-1]
		n.totals.count(last)
		if last.dir != nil {
			n.totals.add(&last.dir.totals)
		}
	}
	return n
}

func (d *decoder) node(depth int) node {
	n := node{name: d.str(maxName, "name"), id: d.statID(), racy: d.u8("racy") != 0, skip: SkipReason(d.u8("skip"))}
	switch {
	case n.skip != 0:
	case n.id.isDir():
		n.dir = d.dirNode(depth + 1)
	case n.id.isSymlink():
		n.target = d.str(maxTarget, "target")
	default:
		var x Entry
		decodeFile(d, &x)
		n.digest, n.group, n.attrs = x.Digest, x.LinkGroup, d.attrs()
		if !x.Chunks.IsZero() || x.Sparse || x.Unstable {
			n.file = &fileExtra{chunks: x.Chunks, sparse: x.Sparse, extents: x.Extents, unstable: x.Unstable}
		}
	}
	return n
}
