package cas

import "errors"

// roots follows all that is kept, and decides whether it can be relied on.
func (v *verifier) roots() error {
	doubts := v.store.doubt.times.Load()
	if err := errors.Join(v.heads(), v.pinned()); err != nil {
		return err
	}
	if len(v.report.Missing) > 0 {
		v.store.raiseDoubt()
		return nil
	}
	return v.store.dispel(doubts)
}

func (v *verifier) heads() error {
	heads, err := v.store.heads()
	if err != nil {
		return err
	}
	for _, h := range heads {
		v.report.Heads++
		v.why = Missing{Head: h.Name}
		if err := v.history(h.Commit); err != nil {
			return err
		}
	}
	return nil
}

// pinned follows the trees that pins and leases keep.
func (v *verifier) pinned() error {
	all, err := v.store.meta.pinned()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Lease {
			v.report.Leases++
			v.why = Missing{Lease: p.Name}
		} else {
			v.report.Pins++
			v.why = Missing{Pin: p.Name}
		}
		if err := v.tree(p.Tree, ""); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) history(d Digest) error {
	for !d.IsZero() && v.first(d, roleCommit) {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		v.why.Commit = d
		c, err := v.store.readCommit(d)
		if err != nil {
			v.missing(d, "", err)
			return nil
		}
		v.report.Commits++
		if err := v.tree(c.Tree, ""); err != nil {
			return err
		}
		if v.shallow[d] {
			return nil
		}
		d = c.Parent
	}
	return nil
}

// first reports whether d was not met before as what it is needed now.
func (v *verifier) first(d Digest, r role) bool {
	was := v.seen[d]
	if was&r != 0 {
		return false
	}
	v.seen[d] = was | r
	if was == 0 {
		v.report.Reached++
	}
	return true
}

func (v *verifier) missing(d Digest, path string, err error) {
	reason := err.Error()
	if errors.Is(err, ErrNotFound) {
		reason = "not in the store"
	}
	m := v.why
	m.Digest, m.Path, m.Reason = d, path, reason
	v.report.Missing = append(v.report.Missing, m)
}

func (v *verifier) tree(d Digest, path string) error {
	if !v.first(d, roleDir) {
		return v.ctx.Err()
	}
	dir, err := v.store.readDir(d)
	if err != nil {
		v.missing(d, path, err)
		return v.ctx.Err()
	}
	for i := range dir.Entries {
		x := &dir.Entries[i]
		at := joinPath(path, x.Name)
		switch {
		case x.Type == TypeDir:
			if err := v.tree(x.Digest, at); err != nil {
				return err
			}
		case x.Type == TypeFile && !x.Chunks.IsZero():
			v.chunks(x, at)
		case x.Type == TypeFile && x.Size > 0:
			v.blob(x.Digest, at)
		}
	}
	return nil
}

func (v *verifier) chunks(x *Entry, at string) {
	if !v.first(x.Chunks, roleList) {
		return
	}
	list, err := v.store.readChunkList(x.Chunks)
	if err != nil {
		v.missing(x.Chunks, at, err)
		return
	}
	for _, ref := range list.chunks {
		v.blob(ref.digest, at)
	}
}

// blob makes sure that the object is indexed; its content was checked with
// its record, and is read again only where that was damaged.
func (v *verifier) blob(d Digest, at string) {
	if !v.first(d, roleBlob) {
		return
	}
	if v.bad[d] == "" && v.store.index.has(d) && !v.store.isDamaged(d) {
		return
	}
	if _, err := v.store.get(d); err != nil {
		v.missing(d, at, err)
	}
}
