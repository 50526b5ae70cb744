package peer

import (
	"context"
	"errors"

	"skerry.internal/cas"
)

// sendError is a failure of the transport, not of this side.
type sendError struct{ err error }

func (e *sendError) Error() string { return "send: " + e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

func isSend(err error) bool {
	var e *sendError
	return errors.As(err, &e)
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// answer is one batch on its way out.
type answer struct {
	ctx     context.Context //nolint:containedctx // lives as long as the call
	server  *Server
	reach   *reach
	grant   *Grant
	account *account
	send    func(Slice) error

	kinds            map[cas.Digest]cas.Kind
	lacking, damaged []cas.Digest
	buf              []byte
	sent             Totals
}

func (a *answer) run(wants []wanted) error {
	digests := make([]cas.Digest, 0, len(wants))
	plan, largest := Totals{}, int64(0)
	for _, w := range wants {
		a.kinds[w.digest] = w.kind
		digests = append(digests, w.digest)
		if n, ok := a.server.store.StoredSize(w.digest); ok {
			plan.Objects++
			plan.Bytes += n
			largest = max(largest, n)
		}
	}
	if err := a.out(Slice{Plan: &plan}); err != nil {
		return err
	}
	release, err := a.server.reserve(a.ctx, largest)
	if err != nil {
		return err
	}
	defer release()
	if err := a.server.store.ReadStored(a.ctx, digests, a.record); err != nil {
		return err
	}
	if err := a.flush(); err != nil {
		return err
	}
	return a.out(Slice{Lacking: a.lacking, Damaged: a.damaged, Done: &a.sent})
}

// record passes one record on, cut where a slice is full.
func (a *answer) record(rec cas.StoredRecord) error {
	switch {
	case errors.Is(rec.Err, cas.ErrNotFound):
		a.lacking = append(a.lacking, rec.Digest)
		return nil
	case errors.Is(rec.Err, cas.ErrCorrupt):
		a.damaged = append(a.damaged, rec.Digest)
		return nil
	case rec.Err != nil:
		return rec.Err
	}
	if kind := a.kinds[rec.Digest]; kind != cas.KindBlob {
		if err := a.learn(kind, rec); err != nil {
			return err
		}
	}
	a.sent.Objects++
	a.sent.Bytes += int64(len(rec.Record))
	size := a.server.cfg.Bandwidth.slice()
	for rest := rec.Record; len(rest) > 0; {
		n := min(len(rest), size-len(a.buf))
		a.buf = append(a.buf, rest[:n]...)
		rest = rest[n:]
		if len(a.buf) < size {
			continue
		}
		if err := a.flush(); err != nil {
			return err
		}
	}
	return nil
}

// learn makes what the object names askable, before the receiver knows it.
// What is not what it should be goes out all the same: the receiver checks.
func (a *answer) learn(kind cas.Kind, rec cas.StoredRecord) error {
	h, err := cas.ParseRecordHeader(rec.Record)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	content, err := h.Open(rec.Record[cas.RecordHeaderSize:])
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	if err := a.reach.learn(kind, content); ReasonOf(err) != "" {
		return err
	}
	return nil
}

func (a *answer) flush() error {
	if len(a.buf) == 0 {
		return nil
	}
	if err := a.server.spend(a.grant, a.account, len(a.buf)); err != nil {
		return err
	}
	if err := a.server.cfg.Bandwidth.wait(a.ctx, len(a.buf)); err != nil {
		return err
	}
	err := a.out(Slice{Records: a.buf})
	a.buf = a.buf[:0]
	return err
}

func (a *answer) out(s Slice) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	if err := a.send(s); err != nil {
		return &sendError{err}
	}
	return nil
}
