package cas

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// linkKey identifies a hard-linked file. What all names share is part of it,
// so that no forged group can make one file of two.
type linkKey struct {
	group  uint64
	digest Digest
	mode   uint32
	mtime  stamp
	xattrs string // encoded
}

func linkKeyOf(x *Entry) linkKey {
	key := linkKey{group: x.LinkGroup, digest: x.Digest, mode: x.Mode, mtime: stampOf(x.MTime)}
	if len(x.Xattrs) > 0 {
		e := &encoder{}
		encodeXattrs(e, x.Xattrs)
		key.xattrs = string(e.b)
	}
	return key
}

// linkSource is the first name made of a hard-linked file.
type linkSource struct {
	dir   *dirRef
	name  string
	whole bool // it has all its extended attributes
}

// hardLink is a name of a hard-linked file that is still to be made.
type hardLink struct {
	d *restoreDir
	i int
}

// postpone leaves a name of a hard-linked file for makeLinks. Its directory
// waits for it.
func (r *restorer) postpone(d *restoreDir, i int) {
	d.left.Add(1)
	r.sum.Lock()
	defer r.sum.Unlock()
	r.hard = append(r.hard, hardLink{d, i})
}

// makeLinks makes the hard-linked files and their further names. A file's
// status is final only when all its names are there.
func (r *restorer) makeLinks() error {
	for _, l := range r.hard {
		if r.stop() {
			return r.err
		}
		if err := r.inDir(l, r.makeLink); err != nil {
			return err
		}
	}
	for _, l := range r.hard {
		if err := r.inDir(l, r.cacheLink); err != nil {
			return err
		}
		r.complete(l.d)
	}
	return r.err
}

// inDir runs fn with l's directory open.
func (r *restorer) inDir(l hardLink, fn func(fd int, l hardLink, x *Entry) error) error {
	x := &l.d.dir.Entries[l.i]
	fd, err := l.d.ref.acquire()
	if err == nil {
		err = fn(fd, l, x)
		l.d.ref.release()
	}
	if err != nil {
		return fmt.Errorf("%.200q: %w", l.d.path(x.Name), err)
	}
	return nil
}

func (r *restorer) makeLink(fd int, l hardLink, x *Entry) error {
	key := linkKeyOf(x)
	if first, ok := r.links[key]; ok {
		done, err := r.link(first, fd, x.Name)
		if done || err != nil {
			return err
		}
	}
	_, whole, err := r.file(l.d, fd, x, &r.res)
	r.links[key] = linkSource{l.d.ref, x.Name, whole}
	return err
}

// link makes another name of a file. It reports false when the file has as
// many names as its file system allows: the next one starts a new file.
func (r *restorer) link(first linkSource, fd int, name string) (bool, error) {
	from, err := first.dir.acquire()
	if err != nil {
		return false, err
	}
	defer first.dir.release()
	err = unix.Linkat(from, first.name, fd, name, 0)
	if errors.Is(err, unix.EMLINK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("link: %w", err)
	}
	r.res.Links++
	return true, nil
}

func (r *restorer) cacheLink(fd int, l hardLink, x *Entry) error {
	if l.d.nodes == nil {
		return nil
	}
	id, err := lstatAt(fd, x.Name)
	if err != nil {
		return err
	}
	n := nodeOf(x, id)
	n.racy = n.racy || !r.links[linkKeyOf(x)].whole
	if id.nlink < 2 { // its other names are not in the part restored
		n.group, l.d.reread = 0, true
	}
	l.d.nodes[l.i] = n
	return nil
}
