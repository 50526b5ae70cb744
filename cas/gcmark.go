package cas

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// marker finds what is needed among the objects of some index runs. It keeps
// one byte an object.
type marker struct {
	store *Store
	stop  func() error
	runs  []*indexRun
	marks [][]role        // for each run, as what each entry is needed
	newer map[Digest]role // likewise, of metadata written since the runs were taken
	stack []freshTouch
	lack  *LackError          // what is needed, names others and is not there; the first of them
	blobs map[Digest]struct{} // contents that are needed and not there

	touching bool // what is needed was only touched, so it may be anything
}

func newMarker(s *Store, runs []*indexRun, stop func() error) *marker {
	m := &marker{store: s, stop: stop, runs: runs, marks: make([][]role, len(runs)), newer: make(map[Digest]role), blobs: make(map[Digest]struct{})}
	for i, r := range runs {
		m.marks[i] = make([]role, r.count)
	}
	return m
}

// mark notes that d is needed as r, and reports whether that is news. Of
// several records of one object the newest is kept. What is indexed but in none
// of the runs was written since and is not in question, but what it names may
// be: its writer's session may have ended, and its touches with it, just before
// the touches were looked at. What is not indexed at all is lacking.
func (m *marker) mark(d Digest, r role) bool {
	for i := len(m.runs) - 1; i >= 0; i-- {
		if j, ok := m.runs[i].search(d); ok {
			news := m.marks[i][j]&r == 0
			m.marks[i][j] |= r
			return news
		}
	}
	switch {
	case m.newer[d]&r != 0:
		return false
	case !m.store.index.has(d):
		m.lacks(d, r)
		return false
	case r == roleBlob:
		return false
	}
	m.newer[d] |= r
	return true
}

// lacks notes that what is needed is not there. Had it been taken for naming
// nothing, what it names would go for good, though its pack may come back. What
// was only touched need not have been there ever.
func (m *marker) lacks(d Digest, r role) {
	switch {
	case m.touching:
	case r == roleBlob:
		m.blobs[d] = struct{}{}
	case m.lack == nil:
		m.lack = &LackError{Digest: d, What: r.String()}
	}
}

// lacking returns what was found to be lacking, as needed by another object or,
// with a zero digest, by a root, and forgets it.
func (m *marker) lacking(by Digest) error {
	lack := m.lack
	m.lack = nil
	if err := m.store.index.failed(); err != nil || lack == nil {
		return err // of a failed index the answer was none
	}
	lack.By = by
	return lack
}

// need marks d as r and everything that it names.
func (m *marker) need(d Digest, r role) error {
	m.push(d, r)
	if err := m.lacking(Digest{}); err != nil {
		return err
	}
	return m.drain()
}

// drain follows what was pushed. After an error the rest is still to be done.
func (m *marker) drain() error {
	for len(m.stack) > 0 {
		x := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		if err := m.stop(); err != nil {
			return err
		}
		if err := m.follow(x); err != nil {
			return fmt.Errorf("%s: %w", x.d, err)
		}
		if err := m.lacking(x.d); err != nil {
			return err
		}
	}
	return nil
}

func (m *marker) push(d Digest, r role) {
	if m.mark(d, r) && r != roleBlob {
		m.stack = append(m.stack, freshTouch{d, r})
	}
}

// follow pushes what an object names. Good bytes that are no object of that
// kind name nothing: anybody may ask for a file's digest as if it were a
// directory's, and must not keep collections from working with it.
func (m *marker) follow(x freshTouch) error {
	err := m.names(x)
	var bad *CorruptError
	unlike := (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrVersion)) && !errors.As(err, &bad)
	if unlike && (m.touching || !errors.Is(err, ErrVersion)) {
		m.store.log.Debug("object is not what somebody took it for, and names nothing", "digest", x.d, "error", err)
		return nil
	}
	return err
}

// names pushes what an object names as what it is needed.
func (m *marker) names(x freshTouch) error {
	switch x.role {
	case roleDir:
		dir, err := m.store.readDir(x.d)
		if err != nil {
			return err
		}
		for i := range dir.Entries {
			m.entry(&dir.Entries[i])
		}
	case roleList:
		list, err := m.store.readChunkList(x.d)
		if err != nil {
			return err
		}
		for _, c := range list.chunks {
			m.push(c.digest, roleBlob)
		}
	case roleCommit:
		c, err := m.store.readCommit(x.d)
		if err != nil {
			return err
		}
		m.push(c.Tree, roleDir)
	}
	return nil
}

func (m *marker) entry(x *Entry) {
	switch {
	case x.Type == TypeDir:
		m.push(x.Digest, roleDir)
	case x.Type == TypeFile && !x.Chunks.IsZero():
		m.push(x.Chunks, roleList)
	case x.Type == TypeFile && x.Size > 0:
		m.push(x.Digest, roleBlob)
	}
}

// history marks up to keep commits of a head, all if keep is 0, and returns
// the last one when its parent is left out.
func (m *marker) history(d Digest, keep int, shallow map[Digest]bool) (cut Digest, err error) {
	var child Digest
	for n := 1; !d.IsZero(); n++ {
		c, err := m.store.readCommit(d)
		if errors.Is(err, ErrNotFound) {
			m.lacks(d, roleCommit)
			return Digest{}, m.lacking(child)
		}
		if err == nil {
			err = m.need(d, roleCommit)
		}
		if err != nil {
			return Digest{}, fmt.Errorf("commit %s: %w", d, err)
		}
		if !c.Parent.IsZero() && (n == keep || shallow[d]) {
			return d, nil
		}
		child, d = d, c.Parent
	}
	return Digest{}, nil
}

// young keeps the records of a run whose packs are not in question, and what
// they name elsewhere.
func (m *marker) young(i int, before uint64) error {
	run := m.runs[i]
	if run.last <= before {
		return nil
	}
	var list []int
	for j := range run.count {
		if run.packOf(j) > before && !run.isDead(j) {
			m.marks[i][j] |= roleBlob
			list = append(list, j)
		}
	}
	run.byPlace(list)
	for len(list) > 0 {
		pack, n := run.packOf(list[0]), 1
		for n < len(list) && run.packOf(list[n]) == pack {
			n++
		}
		if err := m.youngPack(run, pack, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// youngPack looks at the kinds of a pack's records and follows those that name
// others. What they lack keeps no collection from working: no root needs it, and
// whoever is going to keep such a tree is told that it is not whole.
func (m *marker) youngPack(run *indexRun, pack uint64, list []int) error {
	f, err := os.Open(filepath.Join(m.store.packDir(), packName(pack)))
	if errors.Is(err, os.ErrNotExist) {
		m.store.log.Warn("pack is missing", "pack", packName(pack))
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, recordHeaderSize)
	for _, j := range list {
		e := run.entry(j)
		if _, err := f.ReadAt(head, e.loc.off); errors.Is(err, io.EOF) || unreadable(err) {
			continue // damaged: it is kept as it is
		} else if err != nil {
			return err
		}
		h, err := parseRecordHeader(head)
		if err != nil || h.kind == KindBlob {
			continue
		}
		err = m.need(e.digest, roleOf(h.kind))
		for errors.Is(err, ErrCorrupt) {
			m.store.log.Warn("object that is damaged or lacks others is kept as it is", "digest", e.digest, "error", err)
			err = m.drain() // what else it names is whole as ever
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// touched marks what writers touched.
func (m *marker) touched(list []freshTouch) error {
	m.touching = true
	defer func() { m.touching = false }()
	for _, x := range list {
		if err := m.need(x.d, x.role); err != nil {
			return err
		}
	}
	return nil
}
