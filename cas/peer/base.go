package peer

import (
	"context"
	"errors"
	"slices"

	"skerry.internal/cas"
)

// bases says for directories which directories of trees that are known to be
// complete lie in the same place.
type bases map[cas.Digest][]cas.Digest

// baseTrees returns those to begin with, and keeps them. While something in the
// store may be damaged or lost there are none, so a repeated pull heals it.
func (p *puller) baseTrees(ctx context.Context) ([]cas.Digest, error) {
	if !p.store.Sound() {
		return nil, nil
	}
	trees := slices.Clone(p.opt.Base)
	for _, held := range []struct {
		name string
		tree func(context.Context, string) (cas.Digest, error)
	}{{p.opt.Pin, p.store.PinnedTree}, {p.opt.Lease, p.store.LeasedTree}} {
		if held.name == "" {
			continue
		}
		d, err := held.tree(ctx, held.name)
		if err != nil && !errors.Is(err, cas.ErrNotFound) {
			return nil, err
		}
		if err == nil {
			trees = append(trees, d)
		}
	}
	return slices.DeleteFunc(trees, func(d cas.Digest) bool {
		_, ok := p.session.Has(d, cas.KindDirectory)
		return !ok
	}), nil
}

// isBase reports whether r lies in the same place in a complete tree. It is
// kept by that tree's root.
func (b bases) isBase(r cas.Ref) bool {
	return r.Kind == cas.KindDirectory && slices.Contains(b[r.Digest], r.Digest)
}

// below returns, by name, the directories in dirs.
func (p *puller) below(ctx context.Context, dirs []cas.Digest) map[string][]cas.Digest {
	named := make(map[string][]cas.Digest)
	for _, d := range dirs {
		content, err := p.store.GetBytes(ctx, d)
		if err != nil {
			continue // it only spares work
		}
		refs, err := cas.References(cas.KindDirectory, content)
		if err != nil {
			continue
		}
		for _, r := range refs {
			if r.Kind == cas.KindDirectory && !slices.Contains(named[r.Name], r.Digest) {
				named[r.Name] = append(named[r.Name], r.Digest)
			}
		}
	}
	return named
}
