package reapi

import (
	"context"
	"errors"
	"io"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	bspb "google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const readChunk = 1 << 20

// Read implements ByteStreamServer.
func (s *Service) Read(req *bspb.ReadRequest, out bspb.ByteStream_ReadServer) error {
	want, err := parseRead(req.GetResourceName())
	if err != nil {
		return err
	}
	switch {
	case req.GetReadLimit() < 0:
		return status.Error(codes.InvalidArgument, "read_limit is negative")
	case req.GetReadOffset() < 0 || req.GetReadOffset() > want.GetSizeBytes():
		return status.Errorf(codes.OutOfRange, "read_offset %d is outside the blob of %d bytes", req.GetReadOffset(), want.GetSizeBytes())
	}
	f, err := s.open(out.Context(), want)
	if err != nil {
		return s.fail(err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	left := f.Size() - req.GetReadOffset()
	if limit := req.GetReadLimit(); limit > 0 {
		left = min(left, limit)
	}
	section := io.NewSectionReader(f, req.GetReadOffset(), left)
	buf := make([]byte, min(readChunk, left))
	for left > 0 {
		n, err := io.ReadFull(section, buf[:min(int64(len(buf)), left)])
		if err != nil {
			return s.fail(s.lost(want, err))
		}
		if err := out.Send(&bspb.ReadResponse{Data: buf[:n]}); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// Write implements ByteStreamServer. A write that breaks off begins anew: the
// client learns from QueryWriteStatus that nothing was kept.
func (s *Service) Write(in bspb.ByteStream_WriteServer) error {
	first, err := in.Recv()
	if err != nil {
		return s.fail(unexpected(err))
	}
	want, err := parseWrite(first.GetResourceName())
	if err != nil {
		return err
	}
	d, size, err := parseDigest(want)
	if err != nil {
		return err
	}
	session, err := s.store.NewSession(in.Context())
	if err != nil {
		return s.fail(err)
	}
	there := s.has(session, d, size)
	session.End()
	if there { // as the API has it, whatever the client sent so far
		return in.SendAndClose(&bspb.WriteResponse{CommittedSize: size})
	}
	w := &writeReader{in: in, idle: s.cfg.WriteIdle, name: first.GetResourceName(), next: first}
	if err := s.put(in.Context(), d, size, w); err != nil {
		return s.fail(err)
	}
	if !w.finished {
		if err := w.end(); err != nil {
			return s.fail(err)
		}
	}
	return in.SendAndClose(&bspb.WriteResponse{CommittedSize: size})
}

// unexpected is the end of a stream in which a message was due.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "the stream ended without finish_write")
	}
	return err
}

// writeReader gives the data of a write's messages.
type writeReader struct {
	in       bspb.ByteStream_WriteServer
	name     string
	idle     time.Duration
	next     *bspb.WriteRequest // nil: receive it
	data     []byte
	offset   int64
	finished bool
}

// Read implements io.Reader.
func (w *writeReader) Read(p []byte) (int, error) {
	for len(w.data) == 0 {
		if w.finished {
			return 0, io.EOF
		}
		if err := w.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(p, w.data)
	w.data = w.data[n:]
	return n, nil
}

func (w *writeReader) receive() error {
	m := w.next
	if w.next = nil; m == nil {
		var err error
		if m, err = w.await(); err != nil {
			return unexpected(err)
		}
	}
	switch {
	case m.GetResourceName() != "" && m.GetResourceName() != w.name:
		return status.Error(codes.InvalidArgument, "resource_name changes within a write")
	case m.GetWriteOffset() != w.offset:
		return status.Errorf(codes.InvalidArgument, "write_offset %d, want %d: see QueryWriteStatus", m.GetWriteOffset(), w.offset)
	}
	w.data, w.finished = m.GetData(), m.GetFinishWrite()
	w.offset += int64(len(w.data))
	return nil
}

// await gives the next message. A client that sends none for too long would
// keep collections from what others put meanwhile; when its handler returns, the
// receiving goroutine ends too.
func (w *writeReader) await() (*bspb.WriteRequest, error) {
	type received struct {
		m   *bspb.WriteRequest
		err error
	}
	got := make(chan received, 1)
	go func() {
		m, err := w.in.Recv()
		got <- received{m, err}
	}()
	timer := time.NewTimer(w.idle)
	defer timer.Stop()
	select {
	case r := <-got:
		return r.m, r.err
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "nothing came for %s: begin the write anew", w.idle)
	}
}

// end reads on to finish_write after all data has come.
func (w *writeReader) end() error {
	for !w.finished {
		if err := w.receive(); err != nil {
			return err
		}
		if len(w.data) > 0 {
			return status.Error(codes.InvalidArgument, "more data than the resource_name's size")
		}
	}
	return nil
}

// QueryWriteStatus implements ByteStreamServer: a blob is there, or nothing of it.
func (s *Service) QueryWriteStatus(ctx context.Context, req *bspb.QueryWriteStatusRequest) (*bspb.QueryWriteStatusResponse, error) {
	want, err := parseWrite(req.GetResourceName())
	if err != nil {
		return nil, err
	}
	out, err := s.FindMissingBlobs(ctx, &repb.FindMissingBlobsRequest{BlobDigests: []*repb.Digest{want}})
	if err != nil {
		return nil, err
	}
	if len(out.GetMissingBlobDigests()) > 0 {
		return &bspb.QueryWriteStatusResponse{}, nil
	}
	return &bspb.QueryWriteStatusResponse{CommittedSize: want.GetSizeBytes(), Complete: true}, nil
}
