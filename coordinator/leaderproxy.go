package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/problem"
)

const (
	proxyDial = 2 * time.Second
	// Silence of the leader after which a connection is given up.
	proxyPing = 2 * time.Second
	// How long a deposed leader has to end calls in its own words.
	deposedGrace = time.Second
)

// errLeaderChanged ends calls that were passed on to a coordinator which does
// not lead any more.
var errLeaderChanged = errors.New("another coordinator leads now")

// dialError is a connection that was not made: nothing was sent.
type dialError struct{ err error }

// Error implements error.
func (e *dialError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *dialError) Unwrap() error { return e.err }

// peerTransport speaks to other coordinators as this one, by HTTP/2, or for an
// upgrade by HTTP/1.1.
func (c *Coordinator) peerTransport(h2 bool) *http.Transport {
	conf := c.identity.ClientTLS(pki.RoleCoordinator)
	conf.NextProtos = []string{"http/1.1"}
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	if h2 {
		conf.NextProtos = []string{"h2"}
	}
	return &http.Transport{
		Protocols:          &protocols,
		DisableCompression: true,
		IdleConnTimeout:    idleTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: proxyPing, PingTimeout: proxyPing, StrictMaxConcurrentRequests: false,
			MaxReceiveBufferPerConnection: callerWindow, MaxReceiveBufferPerStream: streamWindow},
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, proxyDial)
			defer cancel()
			raw, err := c.hooks.dialer()(ctx, network, address)
			if err != nil {
				return nil, &dialError{err}
			}
			conn := tls.Client(raw, conf)
			if err := conn.HandshakeContext(ctx); err != nil {
				_ = raw.Close()
				return nil, &dialError{err}
			}
			return conn, nil
		},
	}
}

// leaderTransport sends calls to whoever leads.
type leaderTransport struct {
	c         *Coordinator
	h2, http1 http.RoundTripper
}

// RoundTrip implements http.RoundTripper. What certainly reached no leader is
// sent again, for as long as a call waits for one.
func (t *leaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	waiting, cancel := context.WithTimeoutCause(r.Context(), t.c.hooks.leaderWait(), notLeader("no coordinator leads"))
	defer cancel()
	body := newReplay(r.Body)
	for {
		endpoint, err := t.c.awaitLeader(waiting)
		if err != nil {
			return nil, err
		}
		res, err := t.send(r, endpoint, body)
		if !again(res, err) || !body.rewind() {
			return res, err
		}
		if res != nil {
			_ = res.Body.Close()
		}
		pause(waiting, 2*leaderPoll)
		if waiting.Err() != nil {
			return nil, context.Cause(waiting)
		}
	}
}

// again reports whether a call had no effect and may have one elsewhere.
func again(res *http.Response, err error) bool {
	var dial *dialError
	if err != nil {
		return errors.As(err, &dial)
	}
	return res.Header.Get(headerNotLeader) != ""
}

func (t *leaderTransport) send(r *http.Request, endpoint string, body *replay) (*http.Response, error) {
	to, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("leader's endpoint: %w", err)
	}
	ctx, cancel := t.c.whileLeading(r.Context(), endpoint)
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host = to.Scheme, to.Host, to.Host
	if r.Body != nil && r.Body != http.NoBody {
		out.Body = body.next()
	}
	transport := t.h2
	if r.Header.Get("Upgrade") != "" {
		transport = t.http1
	}
	res, err := transport.RoundTrip(out)
	if err != nil {
		cancel()
		if cause := context.Cause(ctx); errors.Is(cause, errLeaderChanged) && r.Context().Err() == nil {
			err = cause
		}
		return nil, err
	}
	// Once upgraded the connection does not end with the context by itself.
	raw := res.Body
	closing := context.AfterFunc(ctx, func() { _ = raw.Close() })
	res.Body = withEnd(raw, func() { closing(); cancel() })
	return res, nil
}

// whileLeading gives a context that ends soon after another coordinator leads.
func (c *Coordinator) whileLeading(ctx context.Context, endpoint string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := c.relayed.add(endpoint, func() { cancel(errLeaderChanged) })
	return ctx, func() { forget(); cancel(nil) }
}

// newLeaderProxy passes calls on: streams both ways, trailers, upgrades.
func (c *Coordinator) newLeaderProxy(refuse func(http.ResponseWriter, *http.Request, *problem.Error)) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "https", pki.ServerName
			vouch(p.Out.Header, p.In)
		},
		Transport:     &leaderTransport{c: c, h2: c.peers, http1: c.peersHTTP1},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			refuse(w, r, relayProblem(r, err))
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if c.logger != nil {
		proxy.ErrorLog = slog.NewLogLogger(c.logger.Handler(), slog.LevelDebug)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		// A hijacked connection outlives the server's own stop.
		stop := context.AfterFunc(c.background, func() { cancel(shuttingDown()) })
		defer stop()
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})
}

// relayProblem words the failure of a call that was passed on.
func relayProblem(r *http.Request, err error) *problem.Error {
	var known *problem.Error
	var dial *dialError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &dial):
		return notLeader("the leader cannot be reached").Because(err)
	}
	e := ended(r.URL.Path, err)
	if !errors.Is(err, errLeaderChanged) {
		e.Message = strings.Replace(e.Message, "leadership changed", "the connection to the leader broke", 1)
	}
	return e
}
