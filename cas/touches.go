package cas

import "sync"

// role says as what an object is needed. The same bytes may be needed as
// several things: a file may hold what is also a directory object.
type role uint8

const (
	roleBlob role = 1 << iota
	roleDir
	roleList
	roleCommit
)

// String names the role as errors do.
func (r role) String() string {
	switch r {
	case roleDir:
		return "directory"
	case roleList:
		return "chunk list"
	case roleCommit:
		return "commit"
	}
	return "content"
}

func roleOf(k Kind) role {
	switch k {
	case KindChunkList:
		return roleList
	case KindDirectory:
		return roleDir
	case KindCommit:
		return roleCommit
	}
	return roleBlob
}

// maxTouches bounds what touches remembers (about 100 bytes each). Beyond it
// the next collection removes nothing.
const maxTouches = 1 << 20

// touches remembers which objects writers relied on without writing them, so
// that a collection keeps them. Generations are counted by collections: no
// clock is involved. A touch counts in its generation and the next one, and
// for as long as a session lasts that was there when it was made.
type touches struct {
	mu       sync.Mutex
	gen      uint64
	at       map[Digest]touch
	full     bool
	sessions map[*session]struct{}
	watched  bool // a collection marks: fresh lists what it has not seen
	fresh    []freshTouch
}

type touch struct {
	gen   uint64
	roles role
	whole role // as what all that it names was there, and stays as long as the touch counts
}

type freshTouch struct {
	d    Digest
	role role
}

// session is a snapshot, commit or restore in progress. What it writes lies
// in pack first or later, which is never 0.
type session struct {
	gen   uint64
	first uint64
}

func newTouches() *touches {
	return &touches{gen: 1, at: make(map[Digest]touch), sessions: make(map[*session]struct{})}
}

// note records that d is relied on. The caller holds mu.
func (t *touches) note(d Digest, r role) {
	was, ok := t.at[d]
	if ok && was.gen == t.gen && was.roles&r == r {
		return
	}
	if !ok && len(t.at) >= maxTouches {
		t.full = true
		return
	}
	t.at[d] = touch{t.gen, was.roles | r, was.whole}
	if t.watched {
		t.fresh = append(t.fresh, freshTouch{d, r})
	}
}

// vouch notes that all that d names is there. d was touched before as what it
// names things as, so that collections keep it so.
func (t *touches) vouch(d Digest, r role) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x, ok := t.at[d]; ok && x.roles&r != 0 {
		x.whole |= r
		t.at[d] = x
	}
}

// unvouch forgets of which objects it was known that all they name is there.
func (t *touches) unvouch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d, x := range t.at {
		if x.whole != 0 {
			x.whole = 0
			t.at[d] = x
		}
	}
}

func (t *touches) vouched(d Digest, r role) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[d].whole&r != 0
}

// begin starts a session; the result ends it.
func (t *touches) begin(pack uint64) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &session{gen: t.gen, first: max(1, pack)} // there is no pack 0, and watch says none by it
	t.sessions[s] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.sessions, s)
	}
}

// watch begins a generation and returns what was touched and still counts,
// and the lowest pack that a session in progress may write to (0: none).
// What is touched from now on comes out of drain.
func (t *touches) watch() (kept []freshTouch, first uint64, full bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.gen
	for s := range t.sessions {
		oldest = min(oldest, s.gen)
		if first == 0 || s.first < first {
			first = s.first
		}
	}
	t.gen++
	for d, x := range t.at {
		if x.gen+1 < oldest {
			delete(t.at, d)
			continue
		}
		for _, r := range []role{roleBlob, roleDir, roleList, roleCommit} {
			if x.roles&r != 0 {
				kept = append(kept, freshTouch{d, r})
			}
		}
	}
	full, t.full = t.full, false
	t.watched, t.fresh = true, nil
	return kept, first, full
}

// drain returns what was touched since it was called last.
func (t *touches) drain() []freshTouch {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh := t.fresh
	t.fresh = nil
	return fresh
}

func (t *touches) unwatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched, t.fresh = false, nil
}

// hit reports whether the store has d, and if so keeps the next collections
// from removing it. No collection can come between the answer and the touch.
func (s *Store) hit(d Digest, r role) bool {
	if !s.index.has(d) || s.isDamaged(d) {
		return false
	}
	s.touches.mu.Lock()
	defer s.touches.mu.Unlock()
	if !s.index.has(d) {
		return false
	}
	s.touches.note(d, r)
	return true
}

// session protects what the caller relies on until end is called.
func (s *Store) session() (end func()) { return s.touches.begin(s.writer.current()) }
