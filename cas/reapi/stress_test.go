package reapi

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skerry.internal/cas"
)

// Writers of the same blobs, readers, evictions, flushes and collections at
// once: what is read is whole and right, or missing.
func TestEverythingAtOnce(t *testing.T) {
	b := newBed(t, Config{MaxBytes: 6 << 20})
	var blobs [][]byte
	for i := range 5 {
		blobs = append(blobs, random(byte(i), 1000), random(byte(100+i), 2<<20+i*100_000))
	}
	var writers, others errgroup.Group
	for w := range 4 {
		writers.Go(func() error {
			for i := range 2 * len(blobs) {
				content := blobs[(i+w/2)%len(blobs)]
				if _, err := b.write(t, name(content), content, 1<<20); err != nil {
					return err
				}
				got, err := b.read(t, name(content), 0, 0)
				if status.Code(err) == codes.NotFound { // evicted
					continue
				}
				if err != nil {
					return err
				}
				if !bytes.Equal(got, content) {
					t.Error("other content")
				}
			}
			return nil
		})
	}
	done := make(chan struct{})
	others.Go(func() error {
		for {
			select {
			case <-done:
				return nil
			default:
			}
			if _, err := b.store.GC(t.Context(), cas.GCOptions{}); err != nil {
				return err
			}
			if err := b.svc.blobs.flush(t.Context()); err != nil {
				return err
			}
		}
	})
	must(t, writers.Wait())
	close(done)
	must(t, others.Wait())
	must(t, b.svc.blobs.flush(t.Context()))
	// A crash now loses nothing that is said to be there.
	image := filepath.Join(t.TempDir(), "crash")
	must(t, os.CopyFS(image, os.DirFS(b.dir)))
	must(t, os.Remove(filepath.Join(image, "token"))) // made anew
	var before []int
	for _, c := range blobs {
		before = append(before, b.missing(t, name(c)))
	}
	after := &bed{dir: image}
	after.start(t, Config{})
	defer after.stop()
	for i, c := range blobs {
		if after.missing(t, name(c)) != before[i] {
			t.Errorf("blob %d is missing after the crash", i)
			continue
		}
		got, err := after.read(t, name(c), 0, 0)
		if before[i] == 0 && (err != nil || !bytes.Equal(got, c)) {
			t.Errorf("blob %d: %v", i, err)
		}
	}
}
