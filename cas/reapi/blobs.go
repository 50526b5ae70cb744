package reapi

import (
	"bytes"
	"context"
	"io"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skerry.internal/cas"
)

// FindMissingBlobs implements ContentAddressableStorageServer. What it does not
// name counts as used.
func (s *Service) FindMissingBlobs(ctx context.Context, req *repb.FindMissingBlobsRequest) (*repb.FindMissingBlobsResponse, error) {
	if err := checkRequest(req.GetInstanceName(), req.GetDigestFunction()); err != nil {
		return nil, err
	}
	if err := checkCount(len(req.GetBlobDigests())); err != nil {
		return nil, err
	}
	session, err := s.store.NewSession(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	defer session.End()
	out := &repb.FindMissingBlobsResponse{}
	for _, want := range req.GetBlobDigests() {
		d, size, err := parseDigest(want)
		if err != nil {
			return nil, err
		}
		if !s.has(session, d, size) {
			out.MissingBlobDigests = append(out.MissingBlobDigests, digestProto(d, size))
		}
	}
	return out, nil
}

func checkCount(n int) error {
	if n > maxDigests {
		return status.Errorf(codes.InvalidArgument, "%d digests in one request, at most %d: split it", n, maxDigests)
	}
	return nil
}

var emptyDigest = cas.DigestOf(nil)

// has reports whether a blob can be read. The empty one always can.
func (s *Service) has(session *cas.Session, d cas.Digest, size int64) bool {
	if d == emptyDigest && size == 0 {
		return true
	}
	x, ok := s.blobs.get(d, size)
	return ok && present(session, x)
}

// BatchUpdateBlobs implements ContentAddressableStorageServer.
func (s *Service) BatchUpdateBlobs(ctx context.Context, req *repb.BatchUpdateBlobsRequest) (*repb.BatchUpdateBlobsResponse, error) {
	if err := checkRequest(req.GetInstanceName(), req.GetDigestFunction()); err != nil {
		return nil, err
	}
	total := 0
	for _, r := range req.GetRequests() {
		total += len(r.GetData())
	}
	if total > maxBatch {
		return nil, status.Errorf(codes.InvalidArgument, "%d bytes in one batch, at most %d (max_batch_total_size_bytes): split it or use ByteStream.Write", total, maxBatch)
	}
	out := &repb.BatchUpdateBlobsResponse{}
	for _, r := range req.GetRequests() {
		err := s.update(ctx, r)
		if err != nil && ctx.Err() != nil {
			return nil, s.fail(err)
		}
		out.Responses = append(out.Responses, &repb.BatchUpdateBlobsResponse_Response{Digest: r.GetDigest(), Status: s.status(err)})
	}
	return out, nil
}

func (s *Service) update(ctx context.Context, r *repb.BatchUpdateBlobsRequest_Request) error {
	d, size, err := parseDigest(r.GetDigest())
	if err != nil {
		return err
	}
	if r.GetCompressor() != repb.Compressor_IDENTITY {
		return status.Errorf(codes.InvalidArgument, "compressor %v: this cache takes blobs as they are", r.GetCompressor())
	}
	return s.put(ctx, d, size, bytes.NewReader(r.GetData()))
}

// put stores a blob after its digest and size were found to be right.
func (s *Service) put(ctx context.Context, d cas.Digest, size int64, r io.Reader) error {
	if size > s.cfg.MaxBlobBytes {
		return status.Errorf(codes.ResourceExhausted, "blob of %d bytes, at most %d (max_cas_blob_size_bytes)", size, s.cfg.MaxBlobBytes)
	}
	if s.cfg.Admit != nil {
		if err := s.cfg.Admit(ctx); err != nil {
			return status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	session, err := s.store.NewSession(ctx)
	if err != nil {
		return err
	}
	// One byte more than promised is enough to know.
	x, err := s.store.PutFile(ctx, io.LimitReader(r, size+1))
	switch {
	case err != nil:
	case x.Size != size:
		err = status.Errorf(codes.InvalidArgument, "blob %s: the content does not have %d bytes", d.Hex(), size)
	case x.Digest != d:
		err = status.Errorf(codes.InvalidArgument, "blob %s: the content has digest %s", d.Hex(), x.Digest.Hex())
	}
	if err != nil {
		session.End()
		return err
	}
	s.blobs.add(session, x)
	return nil
}

// BatchReadBlobs implements ContentAddressableStorageServer.
func (s *Service) BatchReadBlobs(ctx context.Context, req *repb.BatchReadBlobsRequest) (*repb.BatchReadBlobsResponse, error) {
	if err := checkRequest(req.GetInstanceName(), req.GetDigestFunction()); err != nil {
		return nil, err
	}
	if err := checkCount(len(req.GetDigests())); err != nil {
		return nil, err
	}
	left := int64(maxBatch)
	for _, d := range req.GetDigests() {
		if left -= d.GetSizeBytes(); d.GetSizeBytes() < 0 || d.GetSizeBytes() > maxBatch || left < 0 {
			return nil, status.Errorf(codes.InvalidArgument, "a batch has at most %d bytes (max_batch_total_size_bytes): split it or use ByteStream.Read", maxBatch)
		}
	}
	out := &repb.BatchReadBlobsResponse{}
	for _, want := range req.GetDigests() {
		content, err := s.read(ctx, want)
		if err != nil && ctx.Err() != nil {
			return nil, s.fail(err)
		}
		out.Responses = append(out.Responses, &repb.BatchReadBlobsResponse_Response{Digest: want, Data: content, Status: s.status(err)})
	}
	return out, nil
}

// read gives a whole blob, whose size the caller bounded.
func (s *Service) read(ctx context.Context, want *repb.Digest) ([]byte, error) {
	f, err := s.open(ctx, want)
	if err != nil {
		return nil, err
	}
	content := make([]byte, f.Size())
	if _, err := io.ReadFull(f, content); err != nil {
		return nil, s.lost(want, err)
	}
	return content, f.Close()
}

// lost takes a blob out of the cache when reading it shows that it is damaged,
// so that it is missing until somebody puts it again. It gives the error back.
func (s *Service) lost(blob *repb.Digest, err error) error {
	if d, _, bad := parseDigest(blob); unreadable(err) && bad == nil {
		s.blobs.forget(d)
	}
	return err
}

// open opens a blob for reading.
func (s *Service) open(ctx context.Context, want *repb.Digest) (*cas.File, error) {
	d, size, err := parseDigest(want)
	if err != nil {
		return nil, err
	}
	x, ok := s.blobs.get(d, size)
	if !ok && (d != emptyDigest || size != 0) {
		return nil, status.Errorf(codes.NotFound, "blob %s/%d is not in the cache", d.Hex(), size)
	}
	if !ok {
		x = cas.Entry{Type: cas.TypeFile, Digest: d}
	}
	f, err := s.store.OpenFile(ctx, x)
	return f, s.lost(want, err)
}

// fail maps an error to the wire and logs what is nobody's mistake.
func (s *Service) fail(err error) error {
	if err == nil {
		return nil
	}
	out := failure(err)
	if c := status.Code(out); c == codes.Internal || c == codes.Unavailable {
		s.log.Error("remote cache call failed", "err", err)
	}
	return out
}

// status is the outcome of one blob in a batch.
func (s *Service) status(err error) *rpcstatus.Status {
	if err == nil {
		return &rpcstatus.Status{}
	}
	return status.Convert(s.fail(err)).Proto()
}
