package cas

import (
	"golang.org/x/sys/unix"
)

// statID is what must be the same for a file to count as unchanged.
type statID struct {
	dev, ino     uint64
	size         int64
	mtime, ctime stamp
	mode         uint32 // type and permissions, as stat(2) has them
	nlink        uint32
}

func statIDOf(st *unix.Stat_t) statID {
	return statID{
		dev: st.Dev, ino: st.Ino, size: st.Size,
		mtime: stamp{st.Mtim.Sec, int32(st.Mtim.Nsec)},
		ctime: stamp{st.Ctim.Sec, int32(st.Ctim.Nsec)},
		mode:  st.Mode, nlink: uint32(st.Nlink),
	}
}

func (id *statID) isDir() bool     { return id.mode&unix.S_IFMT == unix.S_IFDIR }
func (id *statID) isRegular() bool { return id.mode&unix.S_IFMT == unix.S_IFREG }
func (id *statID) isSymlink() bool { return id.mode&unix.S_IFMT == unix.S_IFLNK }
func (id *statID) perm() uint32    { return id.mode & permMask }

// sameDir compares directories: their size and number of links follow from
// their entries.
func (id *statID) sameDir(o *statID) bool {
	return id.dev == o.dev && id.ino == o.ino && id.mtime == o.mtime && id.ctime == o.ctime && id.mode == o.mode
}

// racy reports whether a later change could leave the stamps as they are: the
// file system's clock had not moved on when it was looked at. The ctime
// decides, since no program can set it; an mtime set far into the future must
// not make a file be read again for ever.
func (id *statID) racy(now stamp) bool {
	if !id.ctime.before(now) {
		return true
	}
	return !id.mtime.before(now) && id.mtime.sec <= now.sec+2
}

// skipKind classifies what cannot be stored.
func (id *statID) skipKind() SkipKind {
	switch id.mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return SkipFIFO
	case unix.S_IFSOCK:
		return SkipSocket
	case unix.S_IFCHR:
		return SkipCharDevice
	case unix.S_IFBLK:
		return SkipBlockDevice
	case unix.S_IFREG:
		return SkipFile
	case unix.S_IFDIR:
		return SkipDir
	case unix.S_IFLNK:
		return SkipSymlink
	}
	return SkipOther
}

// node is one name as the stat cache keeps it. Published nodes never change.
type node struct {
	name string
	id   statID
	racy bool // must be read again

	skip   SkipReason // not 0: recorded by name only
	digest Digest     // of a file
	file   *fileExtra // what few files have
	target string     // of a symlink
	group  uint64     // of a hard-linked file
	dir    *dirNode   // of a directory
	attrs  *attrs     // of a file; a directory's are in dir
}

// fileExtra is what a file has beside its digest.
type fileExtra struct {
	chunks   Digest
	sparse   bool
	extents  []Extent
	unstable bool
}

// chunks returns the file's chunk list, or zero.
func (n *node) chunks() Digest {
	if n.file == nil {
		return Digest{}
	}
	return n.file.chunks
}

// lastContent is what of n helps to read the same name again, which is id now.
func (n *node) lastContent(id *statID) *fileExtra {
	if !id.isRegular() {
		return nil
	}
	return n.file
}

// dirNode is a directory as the stat cache keeps it: the names it had, sorted,
// and the object made of them.
type dirNode struct {
	id      statID
	racy    bool // the names and attributes must be read again
	attrs   *attrs
	entries []node
	digest  Digest
	totals  dirTotals
}

// dirTotals counts what lies in a directory and below it.
type dirTotals struct {
	TreeStats
	nodes int64 // entries of any kind
	odd   int64 // entries that a result names: skipped, unstable, bits or attributes dropped
	attrs int64 // bytes of extended attributes
}

func (t *dirTotals) add(o *dirTotals) {
	t.Files += o.Files
	t.Dirs += o.Dirs
	t.Symlinks += o.Symlinks
	t.Bytes += o.Bytes
	t.Skipped += o.Skipped
	t.nodes += o.nodes
	t.odd += o.odd
	t.attrs += o.attrs
}

// count adds the node itself, without what is below it.
func (t *dirTotals) count(n *node) {
	t.nodes++
	if n.skip != 0 || n.unstable() || n.droppedBits() || n.attributes().loss() != 0 {
		t.odd++
	}
	t.attrs += n.attributes().bytes()
	switch {
	case n.skip != 0:
		t.Skipped++
	case n.dir != nil:
		t.Dirs++
	case n.id.isSymlink():
		t.Symlinks++
	default:
		t.Files++
		t.Bytes += n.id.size
	}
}

// attributes returns the file's or directory's extended attributes.
func (n *node) attributes() *attrs {
	if n.dir != nil {
		return n.dir.attrs
	}
	return n.attrs
}

func (n *node) unstable() bool { return n.file != nil && n.file.unstable }

// droppedBits reports whether the name has mode bits that are not stored.
func (n *node) droppedBits() bool {
	return n.skip == 0 && !n.id.isSymlink() && n.id.mode&(unix.S_ISUID|unix.S_ISGID|unix.S_ISVTX) != 0
}

// entry returns the directory entry that n stands for.
func (n *node) entry() Entry {
	x := Entry{Name: n.name, Mode: n.id.perm(), MTime: n.id.mtime.time(), Xattrs: n.attributes().xattrs()}
	switch {
	case n.dir != nil:
		x.Type, x.Digest = TypeDir, n.dir.digest
	case n.id.isSymlink():
		x.Type, x.Target = TypeSymlink, n.target
	default:
		x.Type, x.Size, x.Digest, x.LinkGroup = TypeFile, n.id.size, n.digest, n.group
		if n.file != nil {
			x.Chunks, x.Sparse, x.Extents, x.Unstable = n.file.chunks, n.file.sparse, n.file.extents, n.file.unstable
		}
	}
	return x
}
