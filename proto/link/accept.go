package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// ErrNoUpgrade is a request to Path that does not ask for this protocol.
var ErrNoUpgrade = errors.New("want an HTTP/1.1 upgrade to " + Protocol)

// CheckUpgrade reports whether r asks for a link; the error wraps ErrNoUpgrade.
func CheckUpgrade(r *http.Request) error {
	switch {
	case r.ProtoMajor != 1:
		return fmt.Errorf("%w, not %s", ErrNoUpgrade, r.Proto)
	case !strings.EqualFold(r.Header.Get("Upgrade"), Protocol):
		return fmt.Errorf("%w, not to %q", ErrNoUpgrade, r.Header.Get("Upgrade"))
	}
	return nil
}

// Accept turns a request that CheckUpgrade passed into a link. After an error
// nothing more can be written to w. The caller has checked who is calling.
func Accept(w http.ResponseWriter, r *http.Request, welcome Welcome) (net.Conn, error) {
	if err := CheckUpgrade(r); err != nil {
		return nil, err
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over connection: %w", err)
	}
	// The server had set deadlines for reading the header.
	err = conn.SetDeadline(time.Time{})
	if err == nil {
		_, err = io.WriteString(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+"\r\n"+
			HeaderCoordinators+": "+strings.Join(welcome.Coordinators, ",")+"\r\n\r\n")
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("answer upgrade: %w", err)
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		return watch(conn, io.LimitReader(buffered.Reader, int64(n))), nil
	}
	return watch(conn, nil), nil
}

// ClientConn calls the runner at the other end of one link. It is an
// http.RoundTripper and a Connect HTTPClient; the host of a URL is not used.
type ClientConn struct {
	conn *watchedConn
	h2   *http.ClientConn
}

// BaseURL is what generated clients get as the address of a runner.
const BaseURL = "http://runner.link"

// NewClientConn starts HTTP/2 on an accepted link, as its client. It owns conn,
// also when it fails. A peer that falls silent is noticed within 10 s.
func NewClientConn(ctx context.Context, conn net.Conn) (*ClientConn, error) {
	watched := asWatched(conn)
	transport := &http.Transport{
		Protocols:          h2c(),
		HTTP2:              http2Config(),
		DisableCompression: true,
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return watched, nil },
	}
	h2, err := transport.NewClientConn(ctx, "http", "runner.link:80")
	if err != nil {
		_ = watched.Close()
		return nil, fmt.Errorf("start HTTP/2 on link: %w", err)
	}
	return &ClientConn{conn: watched, h2: h2}, nil
}

// RoundTrip implements http.RoundTripper.
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) { return c.h2.RoundTrip(req) }

// Do implements connect.HTTPClient; it follows no redirect.
func (c *ClientConn) Do(req *http.Request) (*http.Response, error) { return c.h2.RoundTrip(req) }

// Done is closed when the link has ended.
func (c *ClientConn) Done() <-chan struct{} { return c.conn.closed }

// LastSeen is when the runner last sent anything, an answer to a ping included.
func (c *ClientConn) LastSeen() time.Time { return time.Unix(0, c.conn.lastRead.Load()) }

// InFlight is the number of calls that have not ended.
func (c *ClientConn) InFlight() int { return c.h2.InFlight() }

// Drain waits until the link has no calls any more, has ended, or ctx ends.
func (c *ClientConn) Drain(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for c.InFlight() > 0 {
		select {
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close ends the link and fails the calls on it.
func (c *ClientConn) Close() error {
	err := c.h2.Close()
	_ = c.conn.Close()
	return err
}
