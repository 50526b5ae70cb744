package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
)

// A small request that inflates to a huge one costs no more than the limit, and
// is refused like any other that is too large (I10).
func TestI10GzipBombIsCutOff(t *testing.T) {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	if _, err := io.Copy(w, io.LimitReader(zeros{}, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := &inflater{maxBytes: maxBytes}
	if err := r.Reset(&bomb); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, r)
	if p := problem.Of(err); n > maxBytes || p == nil || p.Reason != problem.LimitExceeded {
		t.Fatalf("inflated %d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Every protocol takes compressed requests up to the limit and refuses larger
// ones with a Problem.
func TestCompressedRequests(t *testing.T) {
	for name, option := range map[string]connect.ClientOption{"connect": connect.WithProtoJSON(), "grpc": connect.WithGRPC(), "grpc-web": connect.WithGRPCWeb()} {
		_, server := start(t)
		c := skerryv1connect.NewFileServiceClient(server.Client(), server.URL, option, connect.WithSendGzip())
		for range 2 { // decompressors are used again
			res, err := c.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Path: strings.Repeat("x", maxBytes/2)}))
			if err != nil || len(res.Msg.Snapshot) != maxBytes/2 {
				t.Fatalf("%s: %v", name, err)
			}
			_, err = c.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Path: strings.Repeat("x", 100*maxBytes)}))
			p := problem.Of(err)
			if connect.CodeOf(err) != connect.CodeResourceExhausted || p == nil || p.Reason != problem.LimitExceeded {
				t.Errorf("%s: %v, problem %v", name, err, p)
			}
			var wireError *connect.Error
			if !errors.As(err, &wireError) {
				t.Errorf("%s: %T", name, err)
			}
		}
	}
}
