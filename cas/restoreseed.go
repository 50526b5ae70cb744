package cas

import (
	"time"

	"golang.org/x/sys/unix"
)

// settledClock returns the file system's time once it has moved past
// everything restored, so that no file must be read again because of the
// racy rule. It waits for one tick of the clock at most, some milliseconds.
func (r *restorer) settledClock(fd int) stamp {
	if r.opt.CacheKey == "" {
		return stamp{}
	}
	clock := fsClock{fd}
	start := clock.now()
	for range 25 {
		if now := clock.now(); start.before(now) {
			return now
		}
		time.Sleep(time.Millisecond)
	}
	return start
}

// seed fills the stat cache with what was made. now is a time before which
// nobody else could have changed it. The root's own names are listed again,
// since the rename touched it.
func (r *restorer) seed(fd int, now stamp) {
	if r.opt.CacheKey == "" || r.root.nodes == nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return // a cache is an aid
	}
	root := r.root.cacheNode()
	root.id = statIDOf(&st)
	root.age(now)
	root.racy = true
	r.store.caches.keep(r.opt.CacheKey, root, true, r.era)
}

// cacheNode is the directory as the stat cache keeps it, but for the totals
// and what the clock decides.
func (d *restoreDir) cacheNode() *dirNode {
	return &dirNode{id: d.id, racy: d.reread, attrs: attrsOf(d.entry.Xattrs), entries: d.nodes, digest: d.entry.Digest}
}

// age decides what is racy, and counts.
func (n *dirNode) age(now stamp) {
	n.racy = n.racy || n.id.racy(now)
	for i := range n.entries {
		x := &n.entries[i]
		if x.dir != nil {
			x.dir.age(now)
			n.totals.add(&x.dir.totals)
		} else {
			x.racy = x.racy || x.id.racy(now)
		}
		n.totals.count(x)
	}
}

// nodeOf is the file or symlink that was made of x.
func nodeOf(x *Entry, id statID) node {
	n := node{name: x.Name, id: id}
	if x.Type == TypeSymlink {
		n.target = x.Target
		return n
	}
	n.digest, n.group, n.racy, n.attrs = x.Digest, x.LinkGroup, x.Unstable, attrsOf(x.Xattrs)
	if !x.Chunks.IsZero() || x.Sparse {
		n.file = &fileExtra{chunks: x.Chunks, sparse: x.Sparse, extents: x.Extents}
	}
	return n
}
