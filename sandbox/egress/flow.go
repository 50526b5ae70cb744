package egress

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// flow is one client's connection together with the server's: either being
// active keeps both alive, and both end at the same time.
type flow struct {
	idle time.Duration
	end  time.Time
	from time.Time
	last atomic.Int64 // of the last byte, nanoseconds after from
	half atomic.Bool  // one side has ended
	over atomic.Bool
}

// halfIdle is the idle time of a flow that one side has ended: a client that is
// gone looks like one that only has nothing more to say.
const halfIdle = 30 * time.Second

func newFlow(p *Policy) *flow {
	now := time.Now()
	return &flow{idle: p.IdleTimeout, end: now.Add(p.MaxDuration), from: now}
}

// flowConn is one end of a flow.
type flowConn struct {
	net.Conn
	f *flow
	// count, if set, is told of the bytes that were read or written, and may
	// refuse more.
	read, wrote func(n int) error
}

// Read implements net.Conn. It goes on waiting as long as the flow is not idle.
func (c *flowConn) Read(b []byte) (int, error) {
	for {
		_ = c.SetReadDeadline(c.f.deadline())
		n, err := c.Conn.Read(b)
		if n > 0 {
			return n, errors.Join(c.f.moved(c.read, n), notTimeout(err))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !c.f.alive() {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *flowConn) Write(b []byte) (written int, err error) {
	for written < len(b) {
		_ = c.SetWriteDeadline(c.f.deadline())
		n, err := c.Conn.Write(b[written:])
		written += n
		if n > 0 {
			if over := c.f.moved(c.wrote, n); over != nil {
				return written, over
			}
		}
		if err != nil && (!errors.Is(err, os.ErrDeadlineExceeded) || !c.f.alive()) {
			return written, err
		}
	}
	return written, nil
}

func notTimeout(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// CloseWrite tells the other side that nothing follows.
func (c *flowConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

func (f *flow) moved(count func(int) error, n int) error {
	f.last.Store(int64(time.Since(f.from)))
	if count == nil {
		return nil
	}
	return count(n)
}

// stop makes the flow one that is over.
func (f *flow) stop() { f.over.Store(true) }

// deadline is when the flow ends if nothing moves until then.
func (f *flow) deadline() time.Time {
	if f.over.Load() {
		return f.from
	}
	idle := f.idle
	if f.half.Load() {
		idle = min(idle, halfIdle)
	}
	at := f.from.Add(time.Duration(f.last.Load()) + idle)
	if at.Before(f.end) {
		return at
	}
	return f.end
}

func (f *flow) alive() bool { return time.Now().Before(f.deadline()) }

// cappedReader fails when a peer says more than it may; -1 lifts the cap.
type cappedReader struct {
	r    io.Reader
	left int64
}

var errCapped = errors.New("the head of the answer is too large")

func (c *cappedReader) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, errCapped
	}
	if c.left > 0 && int64(len(b)) > c.left {
		b = b[:c.left]
	}
	n, err := c.r.Read(b)
	if c.left > 0 {
		c.left -= int64(n)
	}
	return n, err
}
