package reapi

import (
	"context"
	"errors"
	"io"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skerry.internal/cas"
)

// SplitBlob implements ContentAddressableStorageServer.
func (s *Service) SplitBlob(ctx context.Context, req *repb.SplitBlobRequest) (*repb.SplitBlobResponse, error) {
	chunks, err := s.split(ctx, req.GetInstanceName(), req.GetDigestFunction(), req.GetBlobDigest())
	if err != nil {
		return nil, s.fail(err)
	}
	if len(chunks) > chunksInMessage {
		return nil, status.Errorf(codes.ResourceExhausted, "the blob has %d chunks, at most %d in one answer: use GetChunkMapping", len(chunks), chunksInMessage)
	}
	return &repb.SplitBlobResponse{ChunkDigests: chunks, ChunkingFunction: repb.ChunkingFunction_FAST_CDC_2020}, nil
}

// chunksInMessage keeps an answer below the size that gRPC clients take.
const chunksInMessage = 30_000

// GetChunkMapping implements ContentAddressableStorageServer.
func (s *Service) GetChunkMapping(req *repb.GetChunkMappingRequest, out repb.ContentAddressableStorage_GetChunkMappingServer) error {
	chunks, err := s.split(out.Context(), req.GetInstanceName(), req.GetDigestFunction(), req.GetBlobDigest())
	if err != nil {
		return s.fail(err)
	}
	for {
		n := min(len(chunks), chunksInMessage)
		err := out.Send(&repb.GetChunkMappingResponse{ChunkDigests: chunks[:n], ChunkingFunction: repb.ChunkingFunction_FAST_CDC_2020})
		if chunks = chunks[n:]; err != nil || len(chunks) == 0 {
			return err
		}
	}
}

// split names the chunks of a blob, which are blobs of the cache from then on.
// A blob below the size that is kept in chunks is its own only chunk.
func (s *Service) split(ctx context.Context, instance string, function repb.DigestFunction_Value, want *repb.Digest) ([]*repb.Digest, error) {
	if err := checkRequest(instance, function); err != nil {
		return nil, err
	}
	d, size, err := parseDigest(want)
	if err != nil {
		return nil, err
	}
	x, ok := s.blobs.get(d, size)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "blob %s/%d is not in the cache", d.Hex(), size)
	}
	if x.Chunks.IsZero() {
		return []*repb.Digest{digestProto(d, size)}, nil
	}
	session, err := s.store.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	out, parts, err := s.parts(ctx, session, x)
	if err != nil {
		session.End()
		return nil, s.lost(want, err)
	}
	s.blobs.add(session, parts...)
	return out, nil
}

func (s *Service) parts(ctx context.Context, session *cas.Session, x cas.Entry) ([]*repb.Digest, []cas.Entry, error) {
	content, err := s.store.GetBytes(ctx, x.Chunks)
	if err != nil {
		return nil, nil, err
	}
	refs, err := cas.References(cas.KindChunkList, content)
	if err != nil {
		return nil, nil, err
	}
	var out []*repb.Digest
	var parts []cas.Entry
	for _, r := range refs {
		part := cas.Entry{Type: cas.TypeFile, Digest: r.Digest, Size: r.Size}
		if !present(session, part) {
			return nil, nil, cas.ErrNotFound
		}
		out, parts = append(out, digestProto(r.Digest, r.Size)), append(parts, part)
	}
	return out, parts, nil
}

// SpliceBlob implements ContentAddressableStorageServer.
func (s *Service) SpliceBlob(ctx context.Context, req *repb.SpliceBlobRequest) (*repb.SpliceBlobResponse, error) {
	if err := checkRequest(req.GetInstanceName(), req.GetDigestFunction()); err != nil {
		return nil, err
	}
	if err := s.splice(ctx, req.GetBlobDigest(), req.GetChunkDigests()); err != nil {
		return nil, s.fail(err)
	}
	return &repb.SpliceBlobResponse{BlobDigest: req.GetBlobDigest()}, nil
}

// RegisterChunkMapping implements ContentAddressableStorageServer.
func (s *Service) RegisterChunkMapping(in repb.ContentAddressableStorage_RegisterChunkMappingServer) error {
	var first *repb.RegisterChunkMappingRequest
	var chunks []*repb.Digest
	for {
		req, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if first == nil {
			first = req
			if err := checkRequest(req.GetInstanceName(), req.GetDigestFunction()); err != nil {
				return err
			}
		}
		if chunks = append(chunks, req.GetChunkDigests()...); len(chunks) > maxChunks {
			return status.Errorf(codes.InvalidArgument, "more than %d chunks", maxChunks)
		}
	}
	if first == nil {
		return status.Error(codes.InvalidArgument, "an empty stream")
	}
	if err := s.splice(in.Context(), first.GetBlobDigest(), chunks); err != nil {
		return s.fail(err)
	}
	return in.SendAndClose(&repb.RegisterChunkMappingResponse{BlobDigest: first.GetBlobDigest()})
}

const maxChunks = 1 << 20

// splice makes a blob of others. Nothing that the client says is believed: the
// content is put together, cut anew and hashed.
func (s *Service) splice(ctx context.Context, want *repb.Digest, chunks []*repb.Digest) error {
	d, size, err := parseDigest(want)
	if err != nil {
		return err
	}
	if len(chunks) > maxChunks {
		return status.Errorf(codes.InvalidArgument, "%d chunks, at most %d", len(chunks), maxChunks)
	}
	sum := int64(0)
	for _, c := range chunks {
		cd, csize, err := parseDigest(c)
		if err != nil {
			return err
		}
		if sum += csize; csize > size || sum > size {
			return status.Errorf(codes.InvalidArgument, "the chunks have more than the blob's %d bytes", size)
		}
		if _, ok := s.blobs.get(cd, csize); !ok && csize > 0 {
			return status.Errorf(codes.NotFound, "chunk %s/%d is not in the cache", cd.Hex(), csize)
		}
	}
	return s.put(ctx, d, size, &joined{ctx: ctx, s: s, left: chunks})
}

// joined reads blobs one behind the other.
type joined struct {
	ctx  context.Context //nolint:containedctx // lives as long as the call
	s    *Service
	left []*repb.Digest
	now  *cas.File
	of   *repb.Digest // that now reads
}

// Read implements io.Reader.
func (j *joined) Read(p []byte) (int, error) {
	for {
		if j.now == nil {
			if len(j.left) == 0 {
				return 0, io.EOF
			}
			var err error
			j.of = j.left[0]
			if j.now, err = j.s.open(j.ctx, j.of); err != nil {
				return 0, err
			}
			j.left = j.left[1:]
		}
		n, err := j.now.Read(p)
		if errors.Is(err, io.EOF) {
			err = j.now.Close()
			j.now = nil
		}
		err = j.s.lost(j.of, err)
		if n > 0 || err != nil {
			return n, err
		}
	}
}
