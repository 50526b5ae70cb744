package coordinator

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// maxReplay is how much of a call's body is kept, so that the call can be sent
// once more.
const maxReplay = 64 << 10

var errReplaced = errors.New("the body is being read by another attempt")

// replay is the body of a call that may have to be sent more than once. Attempts
// come one after the other; what an old one still reads is an error.
type replay struct {
	mu   sync.Mutex
	in   io.Reader
	kept bytes.Buffer
	// lost: more was read than is kept.
	lost    bool
	reading bool
	current *attempt
}

func newReplay(in io.Reader) *replay { return &replay{in: in} }

// next is the body from its start, as far as it is kept.
func (b *replay) next() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current = &attempt{body: b, again: bytes.NewReader(bytes.Clone(b.kept.Bytes()))}
	return b.current
}

// rewind reports whether the body can be sent from its start again; not when
// more of it is being waited for.
func (b *replay) rewind() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost || b.reading {
		return false
	}
	b.current = nil
	return true
}

type attempt struct {
	body  *replay
	again *bytes.Reader
}

// Read implements io.Reader.
func (a *attempt) Read(p []byte) (int, error) {
	if a.again.Len() > 0 {
		return a.again.Read(p)
	}
	b := a.body
	if !b.begin(a) {
		return 0, errReplaced
	}
	n, err := b.in.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.lost = b.lost || b.kept.Len()+n > maxReplay
	if !b.lost {
		b.kept.Write(p[:n])
	}
	return n, err
}

// begin takes the right to read; false: another attempt has replaced a.
func (b *replay) begin(a *attempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != a || b.reading {
		return false
	}
	b.reading = true
	return true
}

// Close implements io.Closer; the caller's server closes the body itself.
func (a *attempt) Close() error { return nil }
