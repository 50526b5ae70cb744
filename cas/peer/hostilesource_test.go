package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
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

// lie is an answer to the request for oneFile's blob, and what comes of it.
type lie struct {
	tell func(context.Context, func(Slice) error) error
	want Reason
}

// once answers with one slice, which is also the end unless it says otherwise.
func once(s Slice) func(context.Context, func(Slice) error) error {
	return func(_ context.Context, send func(Slice) error) error {
		if s.Done == nil {
			s.Done = &Totals{1, int64(len(s.Records))}
		}
		return send(s)
	}
}

// forever sends slices without an end.
func forever(next func(i uint64) Slice) func(context.Context, func(Slice) error) error {
	return func(_ context.Context, send func(Slice) error) error {
		for i := uint64(0); ; i++ {
			if err := send(next(i)); err != nil {
				return err
			}
		}
	}
}

func (o oneFile) good() []byte { return record(1, 0, o.blob, uint64(len(o.content)), o.content) }

func (o oneFile) wrong() []byte {
	wrong := bytes.Clone(o.content)
	wrong[7] ^= 1
	return wrong
}

func (o oneFile) lies(t *testing.T) map[string]lie {
	n, good := uint64(len(o.content)), o.good()
	flipped := append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1)
	stranger := func(i uint64) []byte {
		x := noise(i, 100)
		return record(1, 0, cas.DigestOf(x), 100, x)
	}
	return map[string]lie{
		"wrong bytes":             {once(Slice{Records: record(1, 0, o.blob, n, o.wrong())}), BadObject},
		"bad checksum":            {once(Slice{Records: flipped}), BadObject},
		"no zstd":                 {once(Slice{Records: record(1, 1, o.blob, n, o.content[:2000])}), BadObject},
		"bomb":                    {once(Slice{Records: record(1, 1, o.blob, n, bomb(t, 8<<20, len(o.content)))}), BadObject},
		"other object":            {once(Slice{Records: stranger(9)}), Protocol},
		"twice":                   {once(Slice{Records: append(bytes.Clone(good), good...), Done: &Totals{2, int64(2 * len(good))}}), Protocol},
		"longer":                  {once(Slice{Records: record(1, 0, o.blob, n+1, append(bytes.Clone(o.content), 0))}), Protocol},
		"huge header":             {once(Slice{Records: record(1, 1, o.blob, 1<<30, o.content)}), Protocol},
		"garbage":                 {once(Slice{Records: noise(3, 4000)}), Protocol},
		"nothing":                 {once(Slice{Done: &Totals{}}), Protocol},
		"half a record":           {once(Slice{Records: good[:3000]}), Protocol},
		"miscounted":              {once(Slice{Records: good, Done: &Totals{1, 1}}), Protocol},
		"negative plan":           {once(Slice{Plan: &Totals{-1, 0}}), Protocol},
		"great plan":              {once(Slice{Plan: &Totals{1000, 0}}), Protocol},
		"never ends":              {forever(func(uint64) Slice { return Slice{} }), Protocol},
		"never ends with records": {forever(func(i uint64) Slice { return Slice{Records: stranger(i)} }), Protocol},
		"lacks it":                {once(Slice{Lacking: []cas.Digest{o.blob}, Done: &Totals{}}), NotFound},
		"cannot read it":          {once(Slice{Damaged: []cas.Digest{o.blob}, Done: &Totals{}}), NotFound},
		"hangs up":                {func(context.Context, func(Slice) error) error { return io.ErrUnexpectedEOF }, CutOff},
		"ends early":              {func(context.Context, func(Slice) error) error { return nil }, CutOff},
		"hangs up in the middle": {func(_ context.Context, send func(Slice) error) error {
			return errors.Join(send(Slice{Records: good[:99]}), io.EOF)
		}, CutOff},
		"says nothing": {func(ctx context.Context, _ func(Slice) error) error { <-ctx.Done(); return ctx.Err() }, Stalled},
	}
}

func TestHostileSource(t *testing.T) {
	o := newOneFile(noise(1, 5000))
	for name, c := range o.lies(t) {
		t.Run(name, func(t *testing.T) {
			to := openStore(t)
			_, err := Pull(t.Context(), to, o.server(c.tell), o.root, PullOptions{Peer: "mallory", Stall: 300 * time.Millisecond, Pin: "p"})
			var e *Error
			if !errors.As(err, &e) || e.Reason != c.want || e.Peer != "mallory" {
				t.Fatalf("%v, want %s", err, c.want)
			}
			if c.want == BadObject && e.Object != o.blob {
				t.Errorf("blames object %s", e.Object)
			}
			for _, d := range []cas.Digest{o.root, cas.DigestOf(o.wrong())} {
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
			if _, err := Pull(t.Context(), to, o.server(once(Slice{Records: o.good()})), o.root, PullOptions{Pin: "p"}); err != nil {
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
	for _, c := range []struct {
		bad, most int
		want      Reason
	}{{2, 2, ""}, {3, 2, BadObject}, {1, -1, BadObject}} {
		left := c.bad
		src := o.server(func(_ context.Context, send func(Slice) error) error {
			content := o.content
			if left > 0 {
				left--
				content = o.wrong()
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
	var calls atomic.Uint64
	src := &liar{func(ctx context.Context, b Batch, send func(Slice) error) error {
		r := rand.New(rand.NewPCG(1, calls.Add(1)))
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
