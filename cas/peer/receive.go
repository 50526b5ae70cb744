package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"skerry.internal/cas"
)

// arrival is an object that has been received and checked. Its slices are
// valid during the call alone.
type arrival struct {
	ref     cas.Ref
	header  cas.RecordHeader
	record  []byte // header and payload
	content []byte
	names   []cas.Ref // what a directory or chunk list names
}

func (a *arrival) payload() []byte { return a.record[cas.RecordHeaderSize:] }

// receiver takes one answer apart. It believes nothing: what was not asked
// for, comes twice, is larger than it may be or never ends fails the answer.
type receiver struct {
	p        *puller
	expected map[cas.Digest]cas.Ref
	accept   func(arrival) error

	partial []byte // the beginning of a record whose end has not come
	bad     []cas.Ref
	got     Totals
	idle    int // slices in a row that held no record bytes
}

// maxIdleSlices is how many slices without records a source may send.
const maxIdleSlices = 16

// fetch asks for refs and passes each good record to accept. It returns those
// that came damaged; the receiver counts them.
func (p *puller) fetch(ctx context.Context, refs []cas.Ref, accept func(arrival) error) (bad []cas.Ref, err error) {
	r := &receiver{p: p, expected: make(map[cas.Digest]cas.Ref, len(refs)), accept: accept}
	for _, ref := range refs {
		if _, twice := r.expected[ref.Digest]; twice {
			return nil, malformed(ref.Digest, "%s is named as a directory and as a chunk list", ref.Digest)
		}
		r.expected[ref.Digest] = ref
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The timer rests while this side works.
	stall := time.AfterFunc(p.opt.Stall, func() {
		cancel(p.blame(failure(Stalled, "try again; what has arrived is kept", "nothing came for %s", p.opt.Stall)))
	})
	defer stall.Stop()
	stream, err := p.source.Fetch(ctx, batchOf(refs))
	if err != nil {
		return nil, p.lost(ctx, err)
	}
	defer func() { _ = stream.Close() }()
	for {
		s, err := stream.Next()
		stall.Stop()
		if errors.Is(err, io.EOF) {
			return nil, p.lost(ctx, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return nil, p.lost(ctx, err)
		}
		if err := r.slice(ctx, s); err != nil {
			return nil, err
		}
		if s.Done != nil {
			return r.bad, r.finish(s)
		}
		stall.Reset(p.opt.Stall)
	}
}

// lost says why an answer ended early.
func (p *puller) lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && ReasonOf(cause) != "" {
		return cause
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var said *Error
	if errors.As(err, &said) {
		answer := *said
		return p.blame(&answer)
	}
	e := p.blame(failure(CutOff, "try again; what has arrived is kept", "the answer was cut off"))
	e.Cause = err
	return e
}

func (p *puller) blame(e *Error) *Error {
	e.Peer = p.opt.Peer
	return e
}

func (p *puller) broken(format string, args ...any) error {
	return p.blame(failure(Protocol, "the source is faulty or hostile; use another", format, args...))
}

func (r *receiver) slice(ctx context.Context, s Slice) error {
	if s.Plan != nil {
		if s.Plan.Objects < 0 || s.Plan.Objects > int64(len(r.expected)) || s.Plan.Bytes < 0 {
			return r.p.broken("it announces %d objects where %d were asked for", s.Plan.Objects, len(r.expected))
		}
		r.p.meter.add(Progress{KnownBytes: min(s.Plan.Bytes, 1<<50)})
	}
	if len(s.Damaged) > 0 {
		e := r.p.blame(failure(NotFound, "run `runnerd cas verify` at the source", "it cannot read %s and %d others", s.Damaged[0], len(s.Damaged)-1))
		e.Object = s.Damaged[0]
		return e
	}
	if len(s.Lacking) > 0 {
		e := r.p.blame(failure(NotFound, "ask for a grant of a tree that the source has whole", "it has not got %s and %d others", s.Lacking[0], len(s.Lacking)-1))
		e.Object = s.Lacking[0]
		return e
	}
	if r.idle++; len(s.Records) > 0 {
		r.idle = 0
	} else if r.idle > maxIdleSlices {
		return r.p.broken("it sends without sending anything")
	}
	if err := r.p.opt.Bandwidth.wait(ctx, len(s.Records)); err != nil {
		return err
	}
	return r.records(s.Records)
}

// records works off what has come. A record that lies in one slice whole is
// not copied.
func (r *receiver) records(b []byte) error {
	for len(b) > 0 {
		if len(r.partial) == 0 {
			n, err := r.whole(b)
			if err != nil {
				return err
			}
			if b = b[n:]; n > 0 {
				continue
			}
		}
		need, err := r.need()
		if err != nil {
			return err
		}
		n := min(need-len(r.partial), len(b))
		r.partial = append(r.partial, b[:n]...)
		b = b[n:]
		if len(r.partial) < cas.RecordHeaderSize {
			continue
		}
		if n, err = r.whole(r.partial); err != nil {
			return err
		} else if n > 0 {
			r.partial = r.partial[:0]
		}
	}
	return nil
}

// need is how long the partial record gets: its header first.
func (r *receiver) need() (int, error) {
	if len(r.partial) < cas.RecordHeaderSize {
		return cas.RecordHeaderSize, nil
	}
	h, _, err := r.header(r.partial)
	return cas.RecordHeaderSize + int(h.StoredSize()), err
}

// header reads a header and finds what it answers.
func (r *receiver) header(b []byte) (cas.RecordHeader, cas.Ref, error) {
	h, err := cas.ParseRecordHeader(b)
	if err != nil {
		return h, cas.Ref{}, r.p.broken("it sends no record: %v", err)
	}
	ref, ok := r.expected[h.Digest()]
	if !ok {
		return h, ref, r.p.broken("it sends %s, which was not asked for, or twice", h.Digest())
	}
	most := r.p.opt.MaxMetadata
	if ref.Kind == cas.KindBlob {
		most = ref.Size
		if h.Size() != ref.Size {
			return h, ref, r.p.broken("it sends %s with %d bytes; the tree says %d", h.Digest(), h.Size(), ref.Size)
		}
	}
	if h.Size() > most || h.StoredSize() > most {
		e := r.p.blame(over(fmt.Sprintf("%d bytes in one object", most), "split the directory, or raise the limit", "it sends %s with %d bytes", h.Digest(), h.Size()))
		e.Object = h.Digest()
		return h, ref, e
	}
	return h, ref, nil
}

// whole takes the record at the start of b, if all of it is there, and
// returns its length.
func (r *receiver) whole(b []byte) (int, error) {
	if len(b) < cas.RecordHeaderSize {
		return 0, nil
	}
	h, ref, err := r.header(b)
	if err != nil {
		return 0, err
	}
	n := cas.RecordHeaderSize + int(h.StoredSize())
	if len(b) < n {
		return 0, nil
	}
	delete(r.expected, ref.Digest)
	r.got.Objects++
	r.got.Bytes += int64(n)
	if err := r.p.received(int64(n)); err != nil {
		return 0, err
	}
	return n, r.open(arrival{ref: ref, header: h, record: b[:n]})
}

// bigObject is the size from which objects are opened one at a time, since a
// directory takes several times its size in memory.
const bigObject = 4 << 20

// open checks what has arrived and passes it on.
func (r *receiver) open(a arrival) (err error) {
	if a.header.Size() > bigObject {
		r.p.big.Lock()
		defer r.p.big.Unlock()
	}
	a.content, err = a.header.Open(a.payload())
	if err == nil && a.ref.Kind != cas.KindBlob {
		a.names, err = cas.References(a.ref.Kind, a.content)
	}
	if err != nil {
		r.bad = append(r.bad, a.ref)
		return r.p.spoiled(a.ref, err)
	}
	r.p.meter.add(Progress{Objects: 1, Bytes: int64(len(a.record))})
	return r.accept(a)
}

// finish checks that all came that was asked for.
func (r *receiver) finish(s Slice) error {
	if len(r.partial) > 0 || len(r.expected) > 0 || *s.Done != r.got {
		return r.p.broken("it ends an answer in which %d objects are missing", len(r.expected))
	}
	return nil
}
