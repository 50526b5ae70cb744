package wire

import (
	"compress/gzip"
	"io"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

// boundedGzip is gzip for handlers that stops inflating at the limit of a
// message. Connect's own goes on to the end to tell the size, which lets a small
// request keep a processor busy for long.
func boundedGzip(maxBytes int) connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return &inflater{maxBytes: maxBytes} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) })
}

// inflater is one message's decompressor; Reset begins the next message.
type inflater struct {
	gzip.Reader
	maxBytes int
	left     int
}

// Read implements io.Reader.
func (r *inflater) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), r.left+1)])
	if r.left -= n; r.left < 0 {
		return 0, problem.Connect(TooLarge(r.maxBytes))
	}
	return n, err
}

// Reset implements connect.Decompressor.
func (r *inflater) Reset(from io.Reader) error {
	r.left = r.maxBytes
	return r.Reader.Reset(from)
}
