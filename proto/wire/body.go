package wire

import (
	"io"
	"net/http"
	"time"

	"skerry.internal/proto/problem"
)

// BodyTimeout is how long a caller may take to send a unary request.
const BodyTimeout = time.Minute

// LimitUnary bounds the body of a unary call to maxBytes and its arrival to
// BodyTimeout. Connect's own limit answers unary callers without a Problem; a
// typed error from the body passes through it unchanged. Streams must not be
// wrapped: their bodies have no bound, only their messages.
func LimitUnary(w http.ResponseWriter, r *http.Request, maxBytes int) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	r.Body = &limitedBody{ReadCloser: r.Body, control: http.NewResponseController(w),
		left: int64(maxBytes), maxBytes: maxBytes}
}

type limitedBody struct {
	io.ReadCloser
	control  *http.ResponseController
	left     int64
	maxBytes int
	started  bool
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if !b.started {
		b.started = true
		_ = b.control.SetReadDeadline(time.Now().Add(BodyTimeout))
	}
	// One byte more than is allowed tells "full" from "too much".
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, problem.Connect(TooLarge(b.maxBytes))
	}
	if err != nil {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
