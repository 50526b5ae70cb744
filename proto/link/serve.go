package link

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Serve answers HTTP/2 calls on a dialled link with handler until the
// connection or ctx ends, and owns conn from then on. When ctx ends, running
// calls get a few seconds to finish; their contexts are not cancelled before.
// It returns nil after ctx ended, else why the link ended.
func Serve(ctx context.Context, conn net.Conn, handler http.Handler) error {
	return serve(ctx, conn, handler, nil)
}

func serve(ctx context.Context, conn net.Conn, handler http.Handler, errorLog *log.Logger) error {
	watched := asWatched(conn)
	server := &http.Server{
		Handler:     handler,
		Protocols:   h2c(),
		HTTP2:       http2Config(),
		ErrorLog:    errorLog,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		// The preface comes at once from a coordinator that is alive.
		ReadHeaderTimeout: handshakeTimeout,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(&oneConn{conn: watched, closed: make(chan struct{})}) }()

	var result error
	select {
	case <-ctx.Done():
		closeInOrder(ctx, server)
	case <-watched.closed:
		result = errors.New("link closed by the coordinator or the network")
	}
	_ = server.Close()
	_ = watched.Close()
	if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, errServed) {
		return fmt.Errorf("serve link: %w", err)
	}
	return result
}

func closeInOrder(ctx context.Context, server *http.Server) {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	_ = server.Shutdown(grace)
}

var errServed = errors.New("the one connection has ended")

// oneConn is a listener that gives one connection and then waits for its end.
type oneConn struct {
	conn   *watchedConn
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	given  bool
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	first := !l.given
	l.given = true
	l.mu.Unlock()
	if first {
		return l.conn, nil
	}
	select {
	case <-l.conn.closed:
	case <-l.closed:
	}
	return nil, errServed
}

// Close implements net.Listener; the connection has its own end. It unblocks
// Accept, for which http.Server.Shutdown waits before anything else.
func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// sleep waits d or until ctx ends, which it reports as false.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
