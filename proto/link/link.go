// Package link is the reverse connection between a runner and its coordinator:
// the runner dials out, upgrades the HTTP/1.1 request to a raw connection and
// then serves HTTP/2 on it, while the coordinator, which accepted, is the
// HTTP/2 client. A host behind a firewall thus needs no inbound port.
package link

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Path is where a coordinator accepts links.
	Path = "/skerry/v1/link"
	// Protocol is the value of the Upgrade header; a new wire form gets a new number.
	Protocol = "skerry-link/1"
	// HeaderRunner carries the name of the runner that dials.
	HeaderRunner = "Skerry-Runner"
	// HeaderDirect asks a coordinator that does not lead for HeaderLeader instead
	// of a relayed link.
	HeaderDirect = "Skerry-Link-Direct"
	// HeaderLeader has, in the answer, the endpoint of the coordinator that leads.
	HeaderLeader = "Skerry-Leader"
	// HeaderCoordinators has, in the answer to an upgrade, the endpoints of all
	// coordinators, separated by commas.
	HeaderCoordinators = "Skerry-Coordinators"
)

// mostEndpoints that a runner takes from a coordinator.
const mostEndpoints = 16

const (
	handshakeTimeout = 10 * time.Second
	// A host that is gone answers nothing; one that is there does within this,
	// though a packet is lost on the way.
	connectTimeout = 3 * time.Second
	// Silence after which the peer is pinged, and the time that it has to answer.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
	// Time that running calls have to end when a served link is closed in order.
	closeGrace = 5 * time.Second
	// Calls at once on one link. Waiting calls hold a stream each.
	maxStreams = 8192
	// What a stream may have sent that its reader has not taken. As a forwarded
	// connection or a log may be left unread for long, the whole link's window is
	// so large that thousands of such streams leave room for all others.
	streamWindow = 512 << 10
	linkWindow   = 1 << 30
)

// h2c is HTTP/2 without TLS of its own: the connection below has it already.
func h2c() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReadFrameSize:              256 << 10,
		MaxReceiveBufferPerConnection: linkWindow,
		MaxReceiveBufferPerStream:     streamWindow,
		SendPingTimeout:               pingAfter,
		PingTimeout:                   pingTimeout,
		WriteByteTimeout:              2 * pingTimeout,
	}
}

// watchedConn tells when it was closed and when it last read anything. It also
// hides a *tls.Conn from net/http, which would negotiate a protocol by itself.
type watchedConn struct {
	net.Conn
	// read first, before Conn: what the handshake buffered.
	early    io.Reader
	closed   chan struct{}
	once     sync.Once
	lastRead atomic.Int64
}

func watch(conn net.Conn, early io.Reader) *watchedConn {
	w := &watchedConn{Conn: conn, early: early, closed: make(chan struct{})}
	w.lastRead.Store(time.Now().UnixNano())
	return w
}

// Read implements net.Conn.
func (w *watchedConn) Read(p []byte) (int, error) {
	if w.early != nil {
		n, err := w.early.Read(p)
		if err == nil && n > 0 {
			return n, nil
		}
		w.early = nil
	}
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.lastRead.Store(time.Now().UnixNano())
	}
	return n, err
}

// Close implements net.Conn.
func (w *watchedConn) Close() error {
	err := net.ErrClosed
	w.once.Do(func() {
		err = w.Conn.Close()
		close(w.closed)
	})
	return err
}

// asWatched avoids a second wrapper around what Dial and Accept return.
func asWatched(conn net.Conn) *watchedConn {
	if w, ok := conn.(*watchedConn); ok {
		return w
	}
	return watch(conn, nil)
}

// interrupt unblocks reads and writes of conn when ctx ends. The caller stops it.
func interrupt(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}
