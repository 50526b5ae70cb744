package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"skerry.internal/cas"
)

// record makes a pack record of any content, true or not.
func record(kind, codec byte, d cas.Digest, size uint64, payload []byte) []byte {
	b := append([]byte{'S', 'K', 'R', 1, kind, codec, 0, 0}, d.Bytes()...)
	b = binary.LittleEndian.AppendUint64(b, size)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(payload)))
	table := crc32.MakeTable(crc32.Castagnoli)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, table))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, table))
	return append(b, payload...)
}

// liar is a Source whose answers a test makes up.
type liar struct {
	answer func(ctx context.Context, b Batch, send func(Slice) error) error
}

func (l *liar) Fetch(ctx context.Context, b Batch) (Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &directStream{slices: make(chan Slice), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = l.answer(ctx, b, func(out Slice) error {
			select {
			case s.slices <- out:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return s, nil
}

// oneFile is a tree of one file, so that the first batch asks for the
// directory and the second for the blob.
type oneFile struct {
	content, dir []byte
	blob, root   cas.Digest
}

func newOneFile(content []byte) oneFile {
	o := oneFile{content: content, blob: cas.DigestOf(content)}
	o.dir = encodeDir(fileEntry("f", uint64(len(content)), o.blob))
	o.root = cas.DigestOf(o.dir)
	return o
}

// server answers the directory truly and the blob with what lie gives.
func (o oneFile) server(lie func(ctx context.Context, send func(Slice) error) error) *liar {
	return &liar{func(ctx context.Context, b Batch, send func(Slice) error) error {
		if len(b.Directories) > 0 {
			rec := record(3, 0, o.root, uint64(len(o.dir)), o.dir)
			return send(Slice{Records: rec, Done: &Totals{1, int64(len(rec))}})
		}
		return lie(ctx, send)
	}}
}

func bomb(t *testing.T, inner, claimed int) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	small := enc.EncodeAll(make([]byte, claimed), nil)
	return append(small, enc.EncodeAll(make([]byte, inner), nil)...) // a second frame behind the promised one
}

func TestHostileSource(t *testing.T) {
	o := newOneFile(noise(1, 5000))
	n := uint64(len(o.content))
	good := record(1, 0, o.blob, n, o.content)
	wrong := bytes.Clone(o.content)
	wrong[7] ^= 1
	once := func(s Slice) func(context.Context, func(Slice) error) error {
		return func(_ context.Context, send func(Slice) error) error {
			if s.Done == nil {
				s.Done = &Totals{1, int64(len(s.Records))}
			}
			return send(s)
		}
	}
	stranger := []byte("nobody asked for this")
	for name, c := range map[string]struct {
		lie  func(context.Context, func(Slice) error) error
		want Reason
	}{
		"wrong bytes":        {once(Slice{Records: record(1, 0, o.blob, n, wrong)}), BadObject},
		"bad checksum":       {once(Slice{Records: append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1)}), BadObject},
		"other object":       {once(Slice{Records: record(1, 0, cas.DigestOf(stranger), uint64(len(stranger)), stranger)}), Protocol},
		"twice":              {once(Slice{Records: append(bytes.Clone(good), good...), Done: &Totals{2, int64(2 * len(good))}}), Protocol},
		"longer":             {once(Slice{Records: record(1, 0, o.blob, n+1, append(bytes.Clone(o.content), 0))}), Protocol},
		"huge header":        {once(Slice{Records: record(1, 1, o.blob, 1<<30, o.content)}), Protocol},
		"garbage":            {once(Slice{Records: noise(3, 4000)}), Protocol},
		"nothing":            {once(Slice{Done: &Totals{}}), Protocol},
		"half a record":      {once(Slice{Records: good[:3000]}), Protocol},
		"miscounted":         {once(Slice{Records: good, Done: &Totals{1, 1}}), Protocol},
		"negative plan":      {once(Slice{Plan: &Totals{-1, 0}}), Protocol},
		"great plan":         {once(Slice{Plan: &Totals{1000, 0}}), Protocol},
		"lacks it":           {once(Slice{Lacking: []cas.Digest{o.blob}, Done: &Totals{}}), NotFound},
		"cannot read it":     {once(Slice{Damaged: []cas.Digest{o.blob}, Done: &Totals{}}), NotFound},
		"no zstd":            {once(Slice{Records: record(1, 1, o.blob, n, o.content[:2000])}), BadObject},
		"bomb":               {once(Slice{Records: record(1, 1, o.blob, n, bomb(t, 8<<20, 5000))}), BadObject},
		"hangs up":           {func(context.Context, func(Slice) error) error { return io.ErrUnexpectedEOF }, CutOff},
		"ends early":         {func(context.Context, func(Slice) error) error { return nil }, CutOff},
		"hangs up in middle": {func(_ context.Context, send func(Slice) error) error { return errors.Join(send(Slice{Records: good[:99]}), io.EOF) }, CutOff},
		"never ends": {func(_ context.Context, send func(Slice) error) error {
			for {
				if err := send(Slice{}); err != nil {
					return err
				}
			}
		}, Protocol},
		"never ends with records": {func(_ context.Context, send func(Slice) error) error {
			for i := uint64(0); ; i++ {
				x := noise(i, 100)
				if err := send(Slice{Records: record(1, 0, cas.DigestOf(x), 100, x)}); err != nil {
					return err
				}
			}
		}, Protocol},
		"says nothing": {func(ctx context.Context, _ func(Slice) error) error { <-ctx.Done(); return ctx.Err() }, Stalled},
	} {
		t.Run(name, func(t *testing.T) {
			to := openStore(t)
			_, err := Pull(t.Context(), to, o.server(c.lie), o.root, PullOptions{Peer: "mallory", Stall: 300 * time.Millisecond, Pin: "p"})
			var e *Error
			if !errors.As(err, &e) || e.Reason != c.want || e.Peer != "mallory" {
				t.Fatalf("%v, want %s", err, c.want)
			}
			if c.want == BadObject && e.Object != o.blob {
				t.Errorf("blames object %s", e.Object)
			}
			for _, d := range []cas.Digest{o.root, cas.DigestOf(wrong)} {
				if has, _ := to.Has(t.Context(), d); has {
					t.Errorf("%s was stored", d)
				}
			}
			if has, _ := to.Has(t.Context(), o.blob); has && c.want == BadObject {
				t.Error("a bad object was stored")
			}
			if rep, err := to.Verify(t.Context(), cas.VerifyOptions{}); err != nil || !rep.OK() {
				t.Errorf("verify %+v, %v", rep, err)
			}
			honest := o.server(once(Slice{Records: good}))
			if _, err := Pull(t.Context(), to, honest, o.root, PullOptions{Pin: "p"}); err != nil {
				t.Errorf("from an honest source: %v", err)
			}
		})
	}
}

// TestBombIsNotInflated: a compressed record that holds far more than it says
// costs no more memory than it says.
func TestBombIsNotInflated(t *testing.T) {
	const inner = 512 << 20
	payload := bomb(t, inner, 1<<20)
	raw := record(1, 1, cas.DigestOf(nil), 1<<20, payload)
	h, err := cas.ParseRecordHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = h.Open(raw[cas.RecordHeaderSize:])
	runtime.ReadMemStats(&after)
	if !errors.Is(err, cas.ErrCorrupt) {
		t.Errorf("opened: %v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > inner/8 {
		t.Errorf("used %d bytes", used)
	}
}

// TestBadObjectsAreAskedForAgain: a few are, one too many ends it.
func TestBadObjectsAreAskedForAgain(t *testing.T) {
	o := newOneFile(noise(1, 5000))
	wrong := bytes.Clone(o.content)
	wrong[7] ^= 1
	for _, c := range []struct {
		bad, most int
		want      Reason
	}{{2, 2, ""}, {3, 2, BadObject}, {1, -1, BadObject}} {
		left := c.bad
		src := o.server(func(_ context.Context, send func(Slice) error) error {
			content := o.content
			if left > 0 {
				left--
				content = wrong
			}
			rec := record(1, 0, o.blob, uint64(len(content)), content)
			return send(Slice{Records: rec, Done: &Totals{1, int64(len(rec))}})
		})
		to := openStore(t)
		if _, err := Pull(t.Context(), to, src, o.root, PullOptions{MaxBad: c.most, Pin: "p"}); ReasonOf(err) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestOrderOfAnswersDoesNotMatter shuffles the records of each answer and cuts
// them into slices of all sizes.
func TestOrderOfAnswersDoesNotMatter(t *testing.T) {
	from, to := openStore(t), openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	r := rand.New(rand.NewPCG(1, 2))
	src := &liar{func(ctx context.Context, b Batch, send func(Slice) error) error {
		var all [][]byte
		var digests []cas.Digest
		_ = b.each(func(w wanted) error { digests = append(digests, w.digest); return nil })
		if err := from.ReadStored(ctx, digests, func(rec cas.StoredRecord) error {
			all = append(all, slices.Clone(rec.Record))
			return rec.Err
		}); err != nil {
			return err
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		text := bytes.Join(all, nil)
		done := &Totals{int64(len(all)), int64(len(text))}
		for len(text) > 0 {
			n := 1 + r.IntN(min(len(text), 100_000))
			if r.IntN(4) == 0 {
				n = min(len(text), 1+r.IntN(70))
			}
			if err := send(Slice{Records: text[:n]}); err != nil {
				return err
			}
			text = text[n:]
		}
		return send(Slice{Done: done})
	}}
	if _, err := Pull(t.Context(), to, src, root, PullOptions{Pin: "p", Batches: 1}); err != nil {
		t.Fatal(err)
	}
	checkSame(t, from, to, root)
}

func TestPullEndsWithItsContext(t *testing.T) {
	o := newOneFile(noise(1, 5000))
	ctx, cancel := context.WithCancel(t.Context())
	src := o.server(func(ctx context.Context, _ func(Slice) error) error { cancel(); <-ctx.Done(); return ctx.Err() })
	start := time.Now()
	_, err := Pull(ctx, openStore(t), src, o.root, PullOptions{})
	if !errors.Is(err, context.Canceled) || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}

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
	sub := top.Entries[0].Digest
	absent := cas.DigestOf([]byte("in no store"))
	h, err := from.Head(t.Context(), "ws")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		batches []Batch
		ok      bool // what the last one gives
	}{
		"root":                          {[]Batch{{Directories: []cas.Digest{root}}}, true},
		"inner directory at once":       {[]Batch{{Directories: []cas.Digest{sub}}}, true},
		"file at once":                  {[]Batch{{Blobs: []cas.Digest{cas.DigestOf([]byte("mine"))}}}, true},
		"file after its directory":      {[]Batch{{Directories: []cas.Digest{root}}, {Directories: []cas.Digest{sub}}, {Blobs: []cas.Digest{cas.DigestOf(trap)}}}, true},
		"other root":                    {[]Batch{{Directories: []cas.Digest{otherRoot}}}, false},
		"secret":                        {[]Batch{{Blobs: []cas.Digest{cas.DigestOf(secret)}}}, false},
		"secret after the trap":         {[]Batch{{Blobs: []cas.Digest{cas.DigestOf(trap)}}, {Blobs: []cas.Digest{cas.DigestOf(secret)}}}, false},
		"trap as a directory":           {[]Batch{{Directories: []cas.Digest{cas.DigestOf(trap)}}}, false},
		"trap as one, then the secret":  {[]Batch{{Directories: []cas.Digest{cas.DigestOf(trap)}}, {Blobs: []cas.Digest{cas.DigestOf(secret)}}}, false},
		"directory as a file":           {[]Batch{{Blobs: []cas.Digest{sub}}}, false},
		"commit":                        {[]Batch{{Blobs: []cas.Digest{h.Commit}}}, false},
		"absent":                        {[]Batch{{Blobs: []cas.Digest{absent}}}, false},
		"absent as a directory":         {[]Batch{{Directories: []cas.Digest{absent}}}, false},
		"absent as a chunk list":        {[]Batch{{ChunkLists: []cas.Digest{absent}}}, false},
		"directory as a chunk list too": {[]Batch{{ChunkLists: []cas.Digest{sub}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server, a := newServer(t, from, Limits{})
			token := a.grant(t, root)
			for i, b := range c.batches {
				got, lacking, err := ask(server, token, "rcv", b)
				if err != nil {
					t.Fatal(err)
				}
				if i < len(c.batches)-1 {
					continue
				}
				if c.ok && (len(got) != 1 || len(lacking) != 0) || !c.ok && (len(got) != 0 || len(lacking) != 1) {
					t.Errorf("got %v, lacking %v", got, lacking)
				}
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
