package cas

import (
	"errors"
	"fmt"
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
}

func newMarker(s *Store, runs []*indexRun, stop func() error) *marker {
	m := &marker{store: s, stop: stop, runs: runs, marks: make([][]role, len(runs)), newer: make(map[Digest]role)}
	for i, r := range runs {
		m.marks[i] = make([]role, r.count)
	}
	return m
}

// mark notes that d is needed as r, and reports whether that is news. Of
// several records of one object the newest is kept. What is in none of the
// runs was written since and is not in question, but what it names may be: its
// writer's session may have ended, and its touches with it, just before the
// touches were looked at.
func (m *marker) mark(d Digest, r role) bool {
	for i := len(m.runs) - 1; i >= 0; i-- {
		if j, ok := m.runs[i].search(d); ok {
			news := m.marks[i][j]&r == 0
			m.marks[i][j] |= r
			return news
		}
	}
	if r == roleBlob || m.newer[d]&r != 0 || !m.store.index.has(d) {
		return false
	}
	m.newer[d] |= r
	return true
}

// need marks d as r and everything that it names.
func (m *marker) need(d Digest, r role) error {
	m.push(d, r)
	for len(m.stack) > 0 {
		x := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		if err := m.stop(); err != nil {
			return err
		}
		if err := m.follow(x); err != nil {
			return fmt.Errorf("%s: %w", x.d, err)
		}
	}
	return nil
}

func (m *marker) push(d Digest, r role) {
	if m.mark(d, r) && r != roleBlob {
		m.stack = append(m.stack, freshTouch{d, r})
	}
}

func (m *marker) follow(x freshTouch) error {
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
	for n := 1; !d.IsZero(); n++ {
		c, err := m.store.readCommit(d)
		if err == nil {
			err = m.need(d, roleCommit)
		}
		if err != nil {
			return Digest{}, fmt.Errorf("commit %s: %w", d, err)
		}
		if !c.Parent.IsZero() && (n == keep || shallow[d]) {
			return d, nil
		}
		d = c.Parent
	}
	return Digest{}, nil
}

// young keeps a pack that is not in question whole, and what its records
// name elsewhere.
func (m *marker) young(i int) error {
	run := m.runs[i]
	f, err := os.Open(filepath.Join(m.store.packDir(), packName(run.first)))
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, recordHeaderSize)
	for j := range run.count {
		if run.isDead(j) {
			continue
		}
		m.marks[i][j] |= roleBlob
		e := run.entry(j)
		if _, err := f.ReadAt(head, e.loc.off); err != nil {
			return err
		}
		h, err := parseRecordHeader(head)
		if err != nil || h.kind == KindBlob {
			continue
		}
		err = m.need(e.digest, roleOf(h.kind))
		if errors.Is(err, ErrCorrupt) {
			m.stack = m.stack[:0]
			m.store.log.Warn("damaged object is kept as it is", "digest", e.digest, "error", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// touched marks what writers touched.
func (m *marker) touched(list []freshTouch) error {
	for _, x := range list {
		if err := m.need(x.d, x.role); err != nil {
			return err
		}
	}
	return nil
}
