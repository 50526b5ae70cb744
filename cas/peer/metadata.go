package peer

import (
	"context"

	"skerry.internal/cas"
)

// storeMetadata stores chunk lists and then directories, each behind what it
// names, so that what the store has is complete at every instant.
func (p *puller) storeMetadata(ctx context.Context, root cas.Digest) error {
	for _, l := range p.spool.lists {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, payload, _, err := p.spool.read(l.span)
		if err != nil {
			return err
		}
		fresh, err := p.session.PutRecord(ctx, cas.KindChunkList, h, payload)
		if err != nil {
			return err
		}
		if fresh {
			p.newLists++
		}
	}
	return p.storeDirectories(ctx, root)
}

// frame is a directory whose children are being stored.
type frame struct {
	dir      cas.Digest
	children []cas.Digest
}

// storeDirectories goes through the spooled directories depth first and
// stores each after its children.
func (p *puller) storeDirectories(ctx context.Context, root cas.Digest) error {
	if _, ok := p.spool.dirs[root]; !ok {
		return nil // it was complete
	}
	begun := map[cas.Digest]bool{}
	var stack []frame
	enter := func(d cas.Digest) error {
		if _, ok := p.spool.dirs[d]; !ok || begun[d] {
			return nil
		}
		begun[d] = true
		children, err := p.childrenOf(d)
		stack = append(stack, frame{d, children})
		return err
	}
	if err := enter(root); err != nil {
		return err
	}
	for len(stack) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		top := &stack[len(stack)-1]
		if n := len(top.children); n > 0 {
			child := top.children[n-1]
			top.children = top.children[:n-1]
			if err := enter(child); err != nil {
				return err
			}
			continue
		}
		if err := p.storeDirectory(ctx, top.dir); err != nil {
			return err
		}
		stack = stack[:len(stack)-1]
	}
	return nil
}

// childrenOf returns the directories in d, and checks that what it says of
// chunked files is what their lists say.
func (p *puller) childrenOf(d cas.Digest) (children []cas.Digest, err error) {
	_, _, content, err := p.spool.read(p.spool.dirs[d])
	if err != nil {
		return nil, err
	}
	refs, err := cas.References(cas.KindDirectory, content)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		switch r.Kind {
		case cas.KindDirectory:
			children = append(children, r.Digest)
		case cas.KindChunkList:
			if l, ok := p.spool.lists[r.Digest]; ok && (l.size != r.Size || l.file != r.File) {
				return nil, malformed(r.Digest, "%s names a file of %d bytes; its chunk list has %d, or of another file", d, r.Size, l.size)
			}
		}
	}
	return children, nil
}

func (p *puller) storeDirectory(ctx context.Context, d cas.Digest) error {
	h, payload, _, err := p.spool.read(p.spool.dirs[d])
	if err != nil {
		return err
	}
	fresh, err := p.session.PutRecord(ctx, cas.KindDirectory, h, payload)
	if fresh {
		p.newDirs++
	}
	return err
}
