package e2e

import (
	"os"
	"path/filepath"
	"testing"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

func TestRemoteCacheOfARunner(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	const secret = "a token of more than 32 characters, as is asked"
	if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDev(t, "SKERRY_RUNNERD_REAPI_LISTEN=127.0.0.1:0", "SKERRY_RUNNERD_REAPI_TOKEN_FILE="+token)
	m := d.said(`remote cache served" address=(\S+)`)
	conn, err := grpc.NewClient(m[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret)
	caps, err := repb.NewCapabilitiesClient(conn).GetCapabilities(ctx, &repb.GetCapabilitiesRequest{})
	if err != nil || caps.CacheCapabilities.MaxBatchTotalSizeBytes == 0 {
		t.Fatalf("capabilities: %v %v", caps, err)
	}
	// sha256 of "hello": a command of the sandbox must not make it visible.
	hello := &repb.Digest{Hash: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", SizeBytes: 5}
	d.admin().sh(t, "printf hello > hello")
	cache := repb.NewContentAddressableStorageClient(conn)
	missing := func() int {
		res, err := cache.FindMissingBlobs(ctx, &repb.FindMissingBlobsRequest{BlobDigests: []*repb.Digest{hello}})
		if err != nil {
			t.Fatal(err)
		}
		return len(res.MissingBlobDigests)
	}
	if missing() != 1 {
		t.Fatal("the cache shows what a workspace has")
	}
	put, err := cache.BatchUpdateBlobs(ctx, &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Digest: hello, Data: []byte("hello")}}})
	if err != nil || put.Responses[0].Status.Code != 0 || missing() != 0 {
		t.Fatalf("put: %v %v", put, err)
	}
}
