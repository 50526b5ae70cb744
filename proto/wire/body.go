package wire

import (
	"io"
	"net/http"
	"sync"
	"time"

	"skerry.internal/proto/problem"
)

// BodyTimeout is how long a caller may take to send a unary request.
const BodyTimeout = time.Minute

// LimitUnary bounds the body of a unary call to maxBytes and its arrival to
// timeout. Connect's own limit answers unary callers without a Problem; a
// typed error from the body passes through it unchanged. Streams must not be
// wrapped: their bodies have no bound, only their messages. The caller runs
// release when its handler returns: a proxy may still read the body then, while
// w is void, and to touch that would end the process.
func LimitUnary(w http.ResponseWriter, r *http.Request, maxBytes int, timeout time.Duration) (release func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	b := &limitedBody{ReadCloser: r.Body, control: http.NewResponseController(w),
		left: int64(maxBytes), maxBytes: maxBytes, timeout: timeout}
	r.Body = b
	return b.release
}

type limitedBody struct {
	io.ReadCloser
	left     int64
	maxBytes int
	timeout  time.Duration
	started  bool

	mu sync.Mutex
	// control is nil once the handler has returned.
	control *http.ResponseController
}

func (b *limitedBody) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.control = nil
}

// deadline sets that of reads, as long as there is a call.
func (b *limitedBody) deadline(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.control != nil {
		_ = b.control.SetReadDeadline(at)
	}
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if !b.started {
		b.started = true
		b.deadline(time.Now().Add(b.timeout))
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
		b.deadline(time.Time{})
	}
	return n, err
}
