package peer

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"skerry.internal/cas"
)

func ask(server *Server, token, receiver string, b Batch) (got []cas.Digest, lacking []cas.Digest, err error) {
	var text []byte
	err = server.Fetch(context.Background(), receiver, token, b, func(s Slice) error {
		text = append(text, s.Records...)
		lacking = append(lacking, s.Lacking...)
		return nil
	})
	for len(text) >= cas.RecordHeaderSize {
		h, e := cas.ParseRecordHeader(text)
		if e != nil {
			return got, lacking, e
		}
		got = append(got, h.Digest())
		text = text[cas.RecordHeaderSize+h.StoredSize():]
	}
	return got, lacking, err
}

// TestServerGivesWhatTheRootLeadsTo and nothing else, and does not tell what
// it has beside.
func TestServerGivesWhatTheRootLeadsTo(t *testing.T) {
	from := openStore(t)
	granted, other := t.TempDir(), t.TempDir()
	secret := []byte("another agent's file")
	writeFile(t, filepath.Join(other, "sub/secret"), secret)
	otherRoot := snapshot(t, from, other, "other")
	// A file of the granted tree holds the bytes of a directory that names the
	// secret: it is a file, and leads nowhere.
	trap := encodeDir(fileEntry("x", uint64(len(secret)), cas.DigestOf(secret)))
	writeFile(t, filepath.Join(granted, "d/trap"), trap)
	writeFile(t, filepath.Join(granted, "d/f"), []byte("mine"))
	root := snapshot(t, from, granted, "ws")
	top, err := from.ReadDir(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	sub, trapFile := top.Entries[0].Digest, cas.DigestOf(trap)
	absent := cas.DigestOf([]byte("in no store"))
	h, err := from.Head(t.Context(), "ws")
	if err != nil {
		t.Fatal(err)
	}
	blobs := func(d cas.Digest) Batch { return Batch{Blobs: []cas.Digest{d}} }
	dirs := func(d cas.Digest) Batch { return Batch{Directories: []cas.Digest{d}} }
	for name, c := range map[string]struct {
		batches []Batch
		ok      bool // what the last one gives
	}{
		"root":                         {[]Batch{dirs(root)}, true},
		"inner directory at once":      {[]Batch{dirs(sub)}, true},
		"file at once":                 {[]Batch{blobs(cas.DigestOf([]byte("mine")))}, true},
		"file after its directory":     {[]Batch{dirs(root), dirs(sub), blobs(trapFile)}, true},
		"other root":                   {[]Batch{dirs(otherRoot)}, false},
		"secret":                       {[]Batch{blobs(cas.DigestOf(secret))}, false},
		"secret after the trap":        {[]Batch{blobs(trapFile), blobs(cas.DigestOf(secret))}, false},
		"trap as a directory":          {[]Batch{dirs(trapFile)}, false},
		"trap as one, then the secret": {[]Batch{dirs(trapFile), blobs(cas.DigestOf(secret))}, false},
		"directory as a file":          {[]Batch{blobs(sub)}, false},
		"directory as a chunk list":    {[]Batch{{ChunkLists: []cas.Digest{sub}}}, false},
		"commit":                       {[]Batch{blobs(h.Commit)}, false},
		"absent":                       {[]Batch{blobs(absent)}, false},
		"absent as a directory":        {[]Batch{dirs(absent)}, false},
		"absent as a chunk list":       {[]Batch{{ChunkLists: []cas.Digest{absent}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server, a := newServer(t, from, Limits{})
			token := a.grant(t, root)
			var got, lacking []cas.Digest
			for _, b := range c.batches {
				if got, lacking, err = ask(server, token, "rcv", b); err != nil {
					t.Fatal(err)
				}
			}
			if c.ok && (len(got) != 1 || len(lacking) != 0) || !c.ok && (len(got) != 0 || len(lacking) != 1) {
				t.Errorf("got %v, lacking %v", got, lacking)
			}
		})
	}
	server, a := newServer(t, from, Limits{})
	if _, _, err := ask(server, a.grant(t, absent), "rcv", Batch{Directories: []cas.Digest{absent}}); ReasonOf(err) != NotFound {
		t.Errorf("a grant for a tree that is not there: %v", err)
	}
}

func TestServerRefuses(t *testing.T) {
	from := openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{Batch: 10})
	one := Batch{Directories: []cas.Digest{root}}
	many := Batch{}
	for i := range 11 {
		many.Blobs = append(many.Blobs, cas.DigestOf([]byte{byte(i)}))
	}
	stranger := &authority{noise(99, 64)}
	for name, c := range map[string]struct {
		token, receiver string
		batch           Batch
		want            Reason
	}{
		"too many":       {a.grant(t, root), "rcv", many, Limit},
		"nothing":        {a.grant(t, root), "rcv", Batch{}, Invalid},
		"one twice":      {a.grant(t, root), "rcv", Batch{Directories: []cas.Digest{root}, Blobs: []cas.Digest{root}}, Invalid},
		"zero digest":    {a.grant(t, root), "rcv", Batch{Blobs: []cas.Digest{{}}}, Invalid},
		"no grant":       {"", "rcv", one, GrantInvalid},
		"forged":         {stranger.grant(t, root), "rcv", one, GrantInvalid},
		"other receiver": {a.grant(t, root), "mallory", one, GrantAudience},
		"expired": {a.grant(t, root, func(g *Grant) { g.NotBefore, g.NotAfter = g.NotBefore.Add(-2*time.Hour), g.NotAfter.Add(-2*time.Hour) }),
			"rcv", one, GrantExpired},
		"few bytes": {a.grant(t, root, func(g *Grant) { g.MaxBytes = 10 }), "rcv", one, GrantSpent},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := ask(server, c.token, c.receiver, c.batch)
			if ReasonOf(err) != c.want || len(got) > 0 {
				t.Errorf("%v with %v, want %s", err, got, c.want)
			}
		})
	}
}

func TestServerAccountsForAllAnswersOfAGrant(t *testing.T) {
	from := openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{})
	size, _ := from.StoredSize(root)
	token := a.grant(t, root, func(g *Grant) { g.MaxBytes = uint64(2*size + size/2) })
	for i := range 3 {
		_, _, err := ask(server, token, "rcv", Batch{Directories: []cas.Digest{root}})
		if i < 2 && err != nil || i == 2 && ReasonOf(err) != GrantSpent {
			t.Errorf("answer %d: %v", i, err)
		}
	}
}

// TestServerBoundsAnswersAtOnce: receivers that do not read hold a place each,
// and get it back when they go.
func TestServerBoundsAnswersAtOnce(t *testing.T) {
	from := openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{Streams: 3, PerGrant: 2})
	one := Batch{Directories: []cas.Digest{root}}
	hold := func(token string) (release func()) {
		reading, proceed, done := make(chan bool), make(chan bool), make(chan bool)
		first := true
		go func() {
			defer close(done)
			_ = server.Fetch(context.Background(), "rcv", token, one, func(Slice) error {
				if first {
					first = false
					close(reading)
					<-proceed
				}
				return nil
			})
		}()
		<-reading
		return func() { close(proceed); <-done }
	}
	first, second := a.grant(t, root), a.grant(t, root)
	r1, r2 := hold(first), hold(first)
	_, _, err := ask(server, first, "rcv", one)
	var e *Error
	if !errors.As(err, &e) || e.Reason != Busy || e.Limit != "2 answers for one grant" || !e.Retryable() {
		t.Errorf("third of a grant: %v", err)
	}
	r3 := hold(second)
	if _, _, err := ask(server, a.grant(t, root), "rcv", one); ReasonOf(err) != Busy {
		t.Errorf("fourth: %v", err)
	}
	r1()
	r3()
	if _, _, err := ask(server, first, "rcv", one); err != nil {
		t.Errorf("after some went: %v", err)
	}
	r2()
}

// TestServerBoundsMemory: an answer for which there is no room waits a while
// and is then refused.
func TestServerBoundsMemory(t *testing.T) {
	from := openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{Memory: leastMemory, Send: 50 * time.Millisecond})
	one := Batch{Directories: []cas.Digest{root}}
	err := server.Fetch(t.Context(), "rcv", a.grant(t, root), one, func(s Slice) error {
		if len(s.Records) > 0 {
			if _, _, err := ask(server, a.grant(t, root), "rcv", one); ReasonOf(err) != Busy {
				t.Errorf("a second one: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, _, err := ask(server, a.grant(t, root), "rcv", one); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestServerBoundsTrees: a tree of too many objects is refused, and again at
// once; idle trees make room for others.
func TestServerBoundsTrees(t *testing.T) {
	from := openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{Objects: 20})
	for range 2 {
		_, _, err := ask(server, a.grant(t, root), "rcv", Batch{Blobs: []cas.Digest{cas.DigestOf([]byte("?"))}})
		if ReasonOf(err) != Limit {
			t.Errorf("%v", err)
		}
	}
	roomy, a := newServer(t, from, Limits{Roots: 2})
	for i := range 5 {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "f"), noise(uint64(i), 100))
		tree := snapshot(t, from, dir, "many")
		if _, _, err := ask(roomy, a.grant(t, tree), "rcv", Batch{Directories: []cas.Digest{tree}}); err != nil {
			t.Errorf("tree %d: %v", i, err)
		}
		if n := len(roomy.reaches.roots); n > 2 {
			t.Errorf("%d trees are remembered", n)
		}
	}
}
