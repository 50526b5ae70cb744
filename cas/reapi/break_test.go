package reapi

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skerry.internal/cas"
)

// A chunk of a large blob rots. Once a read has found that, the blob is missing
// and a client that puts it again makes it whole.
func TestDamagedChunkIsHealedByTheNextWrite(t *testing.T) {
	b := newBed(t, Config{})
	content := random(1, 8<<20)
	d := name(content)
	_, err := b.write(t, d, content, 1<<20)
	must(t, err)
	must(t, b.svc.blobs.flush(t.Context()))
	packs, err := filepath.Glob(filepath.Join(b.dir, "store/packs/*.pack"))
	must(t, err)
	f, err := os.OpenFile(packs[0], os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("damage"), 3<<20)
	must(t, err)
	must(t, f.Close())
	if _, err := b.read(t, d, 0, 0); status.Code(err) != codes.NotFound {
		t.Fatalf("read of a damaged blob: %v", err)
	}
	if b.missing(t, d) != 1 {
		t.Error("a blob that cannot be read is said to be there")
	}
	_, err = b.write(t, d, content, 1<<20)
	must(t, err)
	got, err := b.read(t, d, 0, 0)
	must(t, err)
	if !bytes.Equal(got, content) {
		t.Fatal("other content")
	}
}

// A blob larger than the cache must not push everything else out and then go.
func TestBlobLargerThanTheCacheIsRefused(t *testing.T) {
	b := newBed(t, Config{MaxBytes: 4 << 20})
	small := random(1, 1000)
	b.batch(t, small)
	large := random(2, 5<<20)
	if _, err := b.write(t, name(large), large, 1<<20); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("put: %v", err)
	}
	if b.missing(t, name(small)) != 0 {
		t.Error("the other blobs were evicted")
	}
}

// countdown ends after so many looks at it.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// What a flush that failed had stored may be collected before the next one.
func TestFlushGoesOnAfterAFailure(t *testing.T) {
	for left := 1; left < 6; left++ {
		b := newBed(t, Config{})
		now := time.Now()
		b.svc.blobs.now = func() time.Time { return now }
		blobs := [][]byte{random(1, 1000), random(2, 1000)}
		b.batch(t, blobs...)
		must(t, b.svc.blobs.flush(t.Context()))
		now = now.Add(2 * time.Hour)
		if n := b.missing(t, name(blobs[0]), name(blobs[1])); n != 0 { // a use, to be recorded
			t.Fatalf("%d missing", n)
		}
		failed := b.svc.blobs.flush(&countdown{t.Context(), left}) != nil
		for range 5 {
			_, err := b.store.GC(t.Context(), cas.GCOptions{})
			must(t, err)
		}
		if err := b.svc.blobs.flush(t.Context()); err != nil {
			t.Fatalf("after %d steps, failed %v: %v", left, failed, err)
		}
		b.stop()
		b.start(t, Config{})
		if n := b.missing(t, name(blobs[0]), name(blobs[1])); n != 0 {
			t.Fatalf("after %d steps, failed %v: %d blobs lost", left, failed, n)
		}
	}
}

// A rotten directory of the catalog loses what it named, and nothing else.
func TestDamagedCatalogIsACacheWithLess(t *testing.T) {
	b := newBed(t, Config{})
	blobs := [][]byte{random(1, 1000), random(2, 1000)}
	b.batch(t, blobs...)
	must(t, b.svc.blobs.flush(t.Context()))
	shard := b.svc.blobs.shard(cas.DigestOf(blobs[0])).dir
	b.stop()
	packs, err := filepath.Glob(filepath.Join(b.dir, "store/packs/*.pack"))
	must(t, err)
	for _, pack := range packs {
		content, err := os.ReadFile(pack)
		must(t, err)
		if at := bytes.Index(content, shard.Bytes()); at >= 0 {
			content[at+len(shard.Bytes())+40] ^= 1
			must(t, os.WriteFile(pack, content, 0o600))
		}
	}
	b.start(t, Config{})
	if n := b.missing(t, name(blobs[0])); n != 1 {
		t.Error("the blob is there though nothing names it")
	}
	if n := b.missing(t, name(blobs[1])); n != 0 {
		t.Error("the other blob is gone")
	}
	b.batch(t, blobs...)
	must(t, b.svc.blobs.flush(t.Context()))
}

// Without a token nothing of a message is taken in: one that is too large is
// not even noticed.
func TestTokenComesBeforeTheBody(t *testing.T) {
	b := newBed(t, Config{})
	req := &repb.BatchUpdateBlobsRequest{Requests: []*repb.BatchUpdateBlobsRequest_Request{{Data: make([]byte, maxMessage+1)}}}
	if _, err := b.cas.BatchUpdateBlobs(t.Context(), req); status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	if _, err := b.cas.BatchUpdateBlobs(with(t.Context()), req); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
}
