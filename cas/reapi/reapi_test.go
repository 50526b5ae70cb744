package reapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"go.uber.org/goleak"
	bspb "google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"skerry.internal/cas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "0123456789abcdef0123456789abcdef"

// bed is a service with clients over a real connection.
type bed struct {
	dir   string
	store *cas.Store
	svc   *Service
	cas   repb.ContentAddressableStorageClient
	caps  repb.CapabilitiesClient
	bytes bspb.ByteStreamClient
	stop  func()
}

func newBed(t *testing.T, cfg Config) *bed {
	t.Helper()
	b := &bed{dir: t.TempDir()}
	b.start(t, cfg)
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bed) start(t *testing.T, cfg Config) {
	t.Helper()
	store, err := cas.Open(t.Context(), filepath.Join(b.dir, "store"), cas.Config{})
	must(t, err)
	if cfg.FlushEvery == 0 {
		cfg.FlushEvery = time.Hour
	}
	svc, err := New(t.Context(), store, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must(t, err)
	file := filepath.Join(b.dir, "token")
	must(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	token, err := ReadToken(file)
	must(t, err)
	options, err := token.ServerOptions()
	must(t, err)
	server := grpc.NewServer(options...)
	svc.Register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	b.store, b.svc = store, svc
	b.cas, b.caps, b.bytes = repb.NewContentAddressableStorageClient(conn), repb.NewCapabilitiesClient(conn), bspb.NewByteStreamClient(conn)
	b.stop = func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := svc.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func with(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
}

func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func name(content []byte) *repb.Digest {
	return digestProto(cas.DigestOf(content), int64(len(content)))
}

func (b *bed) batch(t *testing.T, blobs ...[]byte) {
	t.Helper()
	req := &repb.BatchUpdateBlobsRequest{}
	for _, c := range blobs {
		req.Requests = append(req.Requests, &repb.BatchUpdateBlobsRequest_Request{Digest: name(c), Data: c})
	}
	res, err := b.cas.BatchUpdateBlobs(with(t.Context()), req)
	must(t, err)
	for _, r := range res.Responses {
		must(t, status.ErrorProto(r.Status))
	}
}

func (b *bed) write(t *testing.T, d *repb.Digest, content []byte, piece int) (int64, error) {
	t.Helper()
	s, err := b.bytes.Write(with(t.Context()))
	must(t, err)
	resource := fmt.Sprintf("uploads/00000000-0000-4000-8000-000000000000/blobs/%s/%d/meta/data", d.Hash, d.SizeBytes)
	for off := 0; ; off += piece {
		end := min(off+piece, len(content))
		err := s.Send(&bspb.WriteRequest{ResourceName: resource, WriteOffset: int64(off), Data: content[off:end], FinishWrite: end == len(content)})
		if err != nil || end == len(content) {
			break // the answer says why
		}
	}
	res, err := s.CloseAndRecv()
	return res.GetCommittedSize(), err
}

func (b *bed) read(t *testing.T, d *repb.Digest, offset, limit int64) ([]byte, error) {
	t.Helper()
	s, err := b.bytes.Read(with(t.Context()), &bspb.ReadRequest{ResourceName: fmt.Sprintf("blobs/%s/%d", d.Hash, d.SizeBytes), ReadOffset: offset, ReadLimit: limit})
	must(t, err)
	var out []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m.Data...)
	}
}

func (b *bed) missing(t *testing.T, all ...*repb.Digest) int {
	t.Helper()
	res, err := b.cas.FindMissingBlobs(with(t.Context()), &repb.FindMissingBlobsRequest{BlobDigests: all})
	must(t, err)
	return len(res.MissingBlobDigests)
}

func TestBatches(t *testing.T) {
	b := newBed(t, Config{})
	one, two := []byte("one"), random(1, 100_000)
	if n := b.missing(t, name(one), name(two), name(nil)); n != 2 {
		t.Fatalf("%d missing before", n)
	}
	b.batch(t, one, two)
	if n := b.missing(t, name(one), name(two), name(nil)); n != 0 {
		t.Fatalf("%d missing after", n)
	}
	res, err := b.cas.BatchReadBlobs(with(t.Context()), &repb.BatchReadBlobsRequest{Digests: []*repb.Digest{name(two), name(nil), name([]byte("none")), name(one)}})
	must(t, err)
	for i, want := range [][]byte{two, nil, nil, one} {
		r := res.Responses[i]
		if code := codes.Code(r.Status.Code); !bytes.Equal(r.Data, want) || (code == codes.NotFound) != (i == 2) || (code == codes.OK) != (i != 2) {
			t.Errorf("response %d: %v, %d bytes", i, r.Status, len(r.Data))
		}
	}
}

func TestByteStream(t *testing.T) {
	b := newBed(t, Config{})
	for _, size := range []int{0, 1, 2<<20 - 1, 2 << 20, 9<<20 + 5} {
		content := random(2, size)
		n, err := b.write(t, name(content), content, 700_000)
		if err != nil || n != int64(size) {
			t.Fatalf("write of %d: %d, %v", size, n, err)
		}
		got, err := b.read(t, name(content), 0, 0)
		if err != nil || !bytes.Equal(got, content) {
			t.Fatalf("read of %d: %d bytes, %v", size, len(got), err)
		}
		q, err := b.bytes.QueryWriteStatus(with(t.Context()), &bspb.QueryWriteStatusRequest{ResourceName: fmt.Sprintf("uploads/x/blobs/%s/%d", name(content).Hash, size)})
		if err != nil || !q.Complete || q.CommittedSize != int64(size) {
			t.Fatalf("status of %d: %v %v", size, q, err)
		}
		again, err := b.write(t, name(content), content[:min(size, 10)], 10)
		if err != nil || again != int64(size) {
			t.Fatalf("write of what is there: %d, %v", again, err)
		}
	}
	content := random(2, 9<<20+5)
	got, err := b.read(t, name(content), 3<<20, 4<<20)
	if err != nil || !bytes.Equal(got, content[3<<20:7<<20]) {
		t.Fatalf("a part: %d bytes, %v", len(got), err)
	}
}

func TestSplitAndSplice(t *testing.T) {
	b := newBed(t, Config{})
	content := random(3, 8<<20)
	if _, err := b.write(t, name(content), content, 1<<20); err != nil {
		t.Fatal(err)
	}
	split, err := b.cas.SplitBlob(with(t.Context()), &repb.SplitBlobRequest{BlobDigest: name(content)})
	must(t, err)
	stream, err := b.cas.GetChunkMapping(with(t.Context()), &repb.GetChunkMappingRequest{BlobDigest: name(content)})
	must(t, err)
	mapping, err := stream.Recv()
	must(t, err)
	if len(split.ChunkDigests) < 4 || len(mapping.ChunkDigests) != len(split.ChunkDigests) || split.ChunkingFunction != repb.ChunkingFunction_FAST_CDC_2020 {
		t.Fatalf("%d and %d chunks, %v", len(split.ChunkDigests), len(mapping.ChunkDigests), split.ChunkingFunction)
	}
	var joined []byte
	for _, c := range split.ChunkDigests {
		part, err := b.read(t, c, 0, 0)
		must(t, err)
		joined = append(joined, part...)
	}
	if !bytes.Equal(joined, content) {
		t.Fatal("the chunks are not the blob")
	}

	other := newBed(t, Config{})
	var pieces []*repb.Digest
	for part := range bytesIn(content, 1_000_000) {
		other.batch(t, part)
		pieces = append(pieces, name(part))
	}
	spliced, err := other.cas.SpliceBlob(with(t.Context()), &repb.SpliceBlobRequest{BlobDigest: name(content), ChunkDigests: pieces})
	must(t, err)
	if !proto.Equal(spliced.BlobDigest, name(content)) {
		t.Fatalf("spliced %v", spliced.BlobDigest)
	}
	got, err := other.read(t, name(content), 0, 0)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("spliced blob: %d bytes, %v", len(got), err)
	}
	again, err := other.cas.SplitBlob(with(t.Context()), &repb.SplitBlobRequest{BlobDigest: name(content)})
	if err != nil || !proto.Equal(again, split) {
		t.Fatalf("two caches cut one blob differently: %v", err)
	}
	wrong, err := other.cas.RegisterChunkMapping(with(t.Context()))
	must(t, err)
	lie := proto.CloneOf(name(content))
	lie.Hash = strings.Repeat("0", 64)
	must(t, wrong.Send(&repb.RegisterChunkMappingRequest{BlobDigest: lie, ChunkDigests: pieces[:3]}))
	must(t, wrong.Send(&repb.RegisterChunkMappingRequest{ChunkDigests: pieces[3:]}))
	if _, err := wrong.CloseAndRecv(); status.Code(err) != codes.InvalidArgument {
		t.Fatalf("a splice that is not what it says: %v", err)
	}
	if n := other.missing(t, lie); n != 1 {
		t.Fatal("the lie is in the cache")
	}
}

func bytesIn(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 && yield(b[:min(n, len(b))]) {
			b = b[min(n, len(b)):]
		}
	}
}

func TestGetTree(t *testing.T) {
	b := newBed(t, Config{})
	marshal := func(d *repb.Directory) []byte {
		content, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
		must(t, err)
		return content
	}
	leaf := marshal(&repb.Directory{Files: []*repb.FileNode{{Name: "f", Digest: name([]byte("x"))}}})
	mid := marshal(&repb.Directory{Directories: []*repb.DirectoryNode{{Name: "leaf", Digest: name(leaf)}}})
	root := marshal(&repb.Directory{Directories: []*repb.DirectoryNode{{Name: "a", Digest: name(mid)}, {Name: "b", Digest: name(leaf)}, {Name: "gone", Digest: name([]byte("gone"))}}})
	b.batch(t, leaf, mid, root)
	for _, page := range []int32{0, 1} {
		s, err := b.cas.GetTree(with(t.Context()), &repb.GetTreeRequest{RootDigest: name(root), PageSize: page})
		must(t, err)
		dirs, messages := 0, 0
		for {
			m, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			dirs, messages = dirs+len(m.Directories), messages+1
		}
		if dirs != 3 || (page == 1) != (messages == 3) {
			t.Fatalf("%d directories in %d messages", dirs, messages)
		}
	}
	s, err := b.cas.GetTree(with(t.Context()), &repb.GetTreeRequest{RootDigest: name([]byte("gone"))})
	must(t, err)
	if _, err := s.Recv(); status.Code(err) != codes.NotFound {
		t.Fatalf("a root that is not there: %v", err)
	}
}

func TestCapabilities(t *testing.T) {
	b := newBed(t, Config{})
	c, err := b.caps.GetCapabilities(with(t.Context()), &repb.GetCapabilitiesRequest{})
	must(t, err)
	cc := c.CacheCapabilities
	if cc.MaxBatchTotalSizeBytes != maxBatch || !cc.SplitBlobSupport || !cc.SpliceBlobSupport || cc.FastCdc_2020Params.AvgChunkSizeBytes != 512<<10 || c.ExecutionCapabilities != nil {
		t.Fatalf("%v", c)
	}
}

// What workspaces and others have in the same store is not to be seen.
func TestOnlyTheCacheIsServed(t *testing.T) {
	b := newBed(t, Config{})
	private := []byte("a workspace's secret")
	_, err := b.store.PutBytes(t.Context(), private)
	must(t, err)
	if n := b.missing(t, name(private)); n != 1 {
		t.Fatal("content of others is found")
	}
	if _, err := b.read(t, name(private), 0, 0); status.Code(err) != codes.NotFound {
		t.Fatalf("content of others is read: %v", err)
	}
	_, err = b.cas.SpliceBlob(with(t.Context()), &repb.SpliceBlobRequest{BlobDigest: name(private), ChunkDigests: []*repb.Digest{name(private)}})
	if status.Code(err) != codes.NotFound {
		t.Fatalf("content of others is spliced: %v", err)
	}
	b.batch(t, private) // who has the bytes may put them
	if n := b.missing(t, name(private)); n != 0 {
		t.Fatal("what was put is missing")
	}
}

func TestTokenIsNeeded(t *testing.T) {
	b := newBed(t, Config{})
	for _, ctx := range []context.Context{t.Context(), metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret[1:]),
		metadata.AppendToOutgoingContext(t.Context(), "authorization", secret)} {
		_, err := b.cas.FindMissingBlobs(ctx, &repb.FindMissingBlobsRequest{})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("without the token: %v", err)
		}
		s, err := b.bytes.Read(ctx, &bspb.ReadRequest{ResourceName: "blobs/x/1"})
		must(t, err)
		if _, err := s.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a stream without the token: %v", err)
		}
	}
	loose, short := filepath.Join(b.dir, "loose"), filepath.Join(b.dir, "short")
	must(t, os.WriteFile(loose, []byte(secret), 0o644))
	must(t, os.WriteFile(short, []byte("short"), 0o600))
	for _, file := range []string{loose, short, filepath.Join(b.dir, "none")} {
		if _, err := ReadToken(file); err == nil {
			t.Errorf("%s is taken", file)
		}
	}
}

func TestBadCalls(t *testing.T) {
	b := newBed(t, Config{MaxBlobBytes: 1 << 20})
	content := []byte("content")
	good := name(content)
	other := name([]byte("other"))
	other.SizeBytes = good.SizeBytes
	upper := &repb.Digest{Hash: strings.ToUpper(good.Hash), SizeBytes: good.SizeBytes}
	code := func(_ any, err error) codes.Code { return status.Code(err) }
	update := func(d *repb.Digest, data []byte, c repb.Compressor_Value) codes.Code {
		res, err := b.cas.BatchUpdateBlobs(with(t.Context()), &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Digest: d, Data: data, Compressor: c}}})
		must(t, err)
		return codes.Code(res.Responses[0].Status.Code)
	}
	resource := func(name string) codes.Code {
		s, err := b.bytes.Read(with(t.Context()), &bspb.ReadRequest{ResourceName: name})
		must(t, err)
		_, err = s.Recv()
		return status.Code(err)
	}
	big := name(random(9, 1<<20+1))
	longer := &repb.Digest{Hash: good.Hash, SizeBytes: good.SizeBytes + 1}
	for what, got := range map[string][2]codes.Code{
		"wrong digest":        {update(other, content, 0), codes.InvalidArgument},
		"wrong size":          {update(longer, content, 0), codes.InvalidArgument},
		"upper case":          {update(upper, content, 0), codes.InvalidArgument},
		"negative size":       {update(&repb.Digest{Hash: good.Hash, SizeBytes: -1}, content, 0), codes.InvalidArgument},
		"compressed":          {update(good, content, repb.Compressor_ZSTD), codes.InvalidArgument},
		"too large":           {update(big, random(9, 1<<20+1), 0), codes.ResourceExhausted},
		"write: other":        {code(b.write(t, other, content, 3)), codes.InvalidArgument},
		"write: too much":     {code(b.write(t, good, append(content, '!'), 3)), codes.InvalidArgument},
		"write: too little":   {code(b.write(t, longer, content, 3)), codes.InvalidArgument},
		"instance":            {code(b.cas.FindMissingBlobs(with(t.Context()), &repb.FindMissingBlobsRequest{InstanceName: "x"})), codes.InvalidArgument},
		"function":            {code(b.cas.FindMissingBlobs(with(t.Context()), &repb.FindMissingBlobsRequest{DigestFunction: repb.DigestFunction_MD5})), codes.InvalidArgument},
		"hash with a path":    {resource("blobs/../../etc/passwd/1"), codes.InvalidArgument},
		"no hash":             {resource("blobs/xyz/1"), codes.InvalidArgument},
		"size with zeros":     {resource("blobs/" + good.Hash + "/007"), codes.InvalidArgument},
		"compressed resource": {resource("compressed-blobs/zstd/" + good.Hash + "/7"), codes.InvalidArgument},
		"absent":              {resource("blobs/" + good.Hash + "/7"), codes.NotFound},
		"batch read":          {code(b.cas.BatchReadBlobs(with(t.Context()), &repb.BatchReadBlobsRequest{Digests: []*repb.Digest{{Hash: good.Hash, SizeBytes: 1 << 60}}})), codes.InvalidArgument},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
	if n := b.missing(t, good); n != 1 {
		t.Fatal("a refused blob is in the cache")
	}
}

// What was flushed is there after a restart and after collections; what a crash
// came before is reported missing, never served half.
func TestRestartAndCollection(t *testing.T) {
	b := newBed(t, Config{})
	small, large := random(4, 1000), random(5, 5<<20)
	b.batch(t, small)
	if _, err := b.write(t, name(large), large, 1<<20); err != nil {
		t.Fatal(err)
	}
	for range 3 { // before any flush, sessions keep it
		_, err := b.store.GC(t.Context(), cas.GCOptions{NoGrace: true})
		must(t, err)
	}
	check := func(when string) {
		t.Helper()
		for _, content := range [][]byte{small, large} {
			got, err := b.read(t, name(content), 0, 0)
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%s: %d bytes, %v", when, len(got), err)
			}
		}
		rep, err := b.store.Verify(t.Context(), cas.VerifyOptions{})
		if err != nil || !rep.OK() {
			t.Fatalf("%s: verify %+v %v", when, rep, err)
		}
	}
	check("before a flush")
	must(t, b.svc.blobs.flush(t.Context()))
	for range 3 {
		_, err := b.store.GC(t.Context(), cas.GCOptions{NoGrace: true})
		must(t, err)
	}
	check("after a flush")
	b.stop()
	b.start(t, Config{})
	check("after a restart")
	if n := b.missing(t, name(small), name(large)); n != 0 {
		t.Fatalf("%d missing after a restart", n)
	}
}

func TestEviction(t *testing.T) {
	b := newBed(t, Config{MaxBytes: 1_000_000})
	now := time.Now()
	b.svc.blobs.now = func() time.Time { return now }
	for i := range 9 {
		now = now.Add(time.Hour)
		b.batch(t, random(byte(10+i), 100_000))
	}
	now = now.Add(time.Hour)
	if n := b.missing(t, name(random(10, 100_000))); n != 0 { // a use
		t.Fatal("missing too early")
	}
	now = now.Add(time.Hour)
	b.batch(t, random(50, 200_000))
	if n := b.missing(t, name(random(10, 100_000)), name(random(50, 200_000))); n != 0 {
		t.Fatal("what was used lately went")
	}
	if n := b.missing(t, name(random(11, 100_000)), name(random(12, 100_000))); n != 2 {
		t.Fatalf("%d of the oldest two went", n)
	}
	if b.svc.blobs.bytes > 900_000 {
		t.Fatalf("%d bytes are kept", b.svc.blobs.bytes)
	}
}

func TestAWriteThatStallsIsEnded(t *testing.T) {
	b := newBed(t, Config{WriteIdle: 50 * time.Millisecond})
	content := random(7, 1000)
	s, err := b.bytes.Write(with(t.Context()))
	must(t, err)
	resource := fmt.Sprintf("uploads/x/blobs/%s/%d", name(content).Hash, len(content))
	must(t, s.Send(&bspb.WriteRequest{ResourceName: resource, Data: content[:10]}))
	if err := s.RecvMsg(&bspb.WriteResponse{}); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("a write without a next message: %v", err)
	}
}
