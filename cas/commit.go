package cas

import (
	"fmt"
	"time"
)

const (
	commitVersion   = 1
	maxHeadName     = 512
	maxSource       = 4096
	commitHasParent = 1 << 0
)

// TreeStats counts what a tree holds.
type TreeStats struct {
	Files, Dirs, Symlinks int64
	Bytes                 int64 // sum of the files' sizes; names of one hard-linked file count each
	Skipped               int64
}

// Commit is a durable, immutable step in a head's history.
type Commit struct {
	Digest     Digest // of the commit object; not part of it
	Head       string
	Tree       Digest
	Parent     Digest // commit before it; zero in the first
	ParentTree Digest // that commit's tree
	Epoch, Seq uint64 // Seq counts the head's commits from 1
	Time       time.Time
	Source     string // what made it, such as "execution:ex_..."
	Stats      TreeStats
}

func (c *Commit) marshal() ([]byte, error) {
	e := &encoder{b: make([]byte, 0, 256)}
	e.b = append(e.b, 'S', 'K', 'C', commitVersion)
	if c.Parent.IsZero() {
		e.u8(0)
	} else {
		e.u8(commitHasParent)
	}
	e.str(c.Head)
	e.digest(c.Tree)
	if !c.Parent.IsZero() {
		e.digest(c.Parent)
		e.digest(c.ParentTree)
	}
	e.uvarint(c.Epoch)
	e.uvarint(c.Seq)
	e.time(c.Time)
	e.str(c.Source)
	for _, n := range []int64{c.Stats.Files, c.Stats.Dirs, c.Stats.Symlinks, c.Stats.Bytes, c.Stats.Skipped} {
		e.uvarint(uint64(n))
	}
	return e.b, c.check()
}

func parseCommit(b []byte) (Commit, error) {
	d := &decoder{b: b}
	d.magic('C', commitVersion, "commit")
	flags := d.u8("commit flags")
	if flags&^commitHasParent != 0 {
		d.fail("commit flags")
	}
	c := Commit{Head: d.str(maxHeadName, "head"), Tree: d.digest("tree")}
	if flags&commitHasParent != 0 {
		c.Parent, c.ParentTree = d.digest("parent"), d.digest("parent tree")
		if c.Parent.IsZero() {
			d.fail("parent")
		}
	}
	c.Epoch, c.Seq = d.uvarint("epoch"), d.uvarint("seq")
	c.Time = d.time("time")
	c.Source = d.str(maxSource, "source")
	for _, n := range []*int64{&c.Stats.Files, &c.Stats.Dirs, &c.Stats.Symlinks, &c.Stats.Bytes, &c.Stats.Skipped} {
		*n = int64(d.upTo(1<<63-1, "stats"))
	}
	if err := d.end("commit"); err != nil {
		return Commit{}, err
	}
	return c, c.check()
}

func (c *Commit) check() error {
	switch {
	case c.Head == "" || len(c.Head) > maxHeadName:
		return fmt.Errorf("commit: head name of %d bytes, want 1 to %d: %w", len(c.Head), maxHeadName, ErrInvalid)
	case len(c.Source) > maxSource:
		return fmt.Errorf("commit: source of %d bytes, want at most %d: %w", len(c.Source), maxSource, ErrInvalid)
	case c.Tree.IsZero():
		return fmt.Errorf("commit: no tree: %w", ErrInvalid)
	case c.Parent.IsZero() != c.ParentTree.IsZero():
		return fmt.Errorf("commit: parent and parent tree belong together: %w", ErrInvalid)
	case min(c.Stats.Files, c.Stats.Dirs, c.Stats.Symlinks, c.Stats.Bytes, c.Stats.Skipped) < 0:
		return fmt.Errorf("commit: negative stats: %w", ErrInvalid)
	}
	return nil
}
