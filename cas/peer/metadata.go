package peer

import (
	"context"

	"skerry.internal/cas"
)

// storeMetadata stores chunk lists and then directories, each behind what it
// names, so that what the store has is complete at every instant. All blobs
// are there by now.
func (p *puller) storeMetadata(ctx context.Context, root cas.Digest) error {
	for _, at := range p.spool.lists {
		fresh, err := p.storeSpooled(ctx, cas.KindChunkList, at)
		if err != nil {
			return err
		}
		if fresh {
			p.newLists++
		}
	}
	return p.storeDirectories(ctx, root)
}

func (p *puller) storeSpooled(ctx context.Context, kind cas.Kind, at span) (fresh bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	h, payload, err := p.spool.read(at)
	if err != nil {
		return false, err
	}
	return p.session.PutRecord(ctx, kind, h, payload)
}

// frame is a directory whose children are being stored.
type frame struct {
	dir      cas.Digest
	children []cas.Digest
}

// storeDirectories goes through the spooled directories depth first and
// stores each after its children. Those that are not spooled are complete.
func (p *puller) storeDirectories(ctx context.Context, root cas.Digest) error {
	begun := make(map[cas.Digest]bool, len(p.spool.dirs))
	var stack []frame
	enter := func(d cas.Digest) {
		if x, ok := p.spool.dirs[d]; ok && !begun[d] {
			begun[d] = true
			stack = append(stack, frame{d, x.children})
		}
	}
	for enter(root); len(stack) > 0; {
		top := &stack[len(stack)-1]
		if len(top.children) > 0 {
			child := top.children[0]
			top.children = top.children[1:]
			enter(child)
			continue
		}
		fresh, err := p.storeSpooled(ctx, cas.KindDirectory, p.spool.dirs[top.dir].span)
		if err != nil {
			return err
		}
		if fresh {
			p.newDirs++
		}
		stack = stack[:len(stack)-1]
	}
	return nil
}
