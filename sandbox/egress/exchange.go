package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// exchange is one request and what becomes of it.
type exchange struct {
	s     *session
	began time.Time

	method   string
	target   string // HOST:PORT
	address  string // that was connected to
	decision decision
	reason   string
	up, down atomic.Int64
}

// refuse answers with r and notes it.
func (x *exchange) refuse(client net.Conn, r *refusal) {
	x.decision, x.reason = r.decision, r.reason
	_ = client.SetWriteDeadline(time.Now().Add(answerTimeout))
	_, _ = client.Write([]byte(r.response(x.s.policy, x.s.g.cfg.Runner, x.target)))
}

// serve judges the request and, if it is allowed, serves it.
func (x *exchange) serve(client bufferedConn, q *request) {
	x.method, x.target = "http", q.target.String()
	if q.tunnel {
		x.method = "connect"
	}
	p := x.s.policy
	r := judge(p, q.target)
	if r == nil {
		r = x.s.overBytes()
	}
	if r != nil {
		x.refuse(client, r)
		return
	}
	server, err := x.reach(q)
	if err != nil {
		x.refuse(client, x.reachFailure(err))
		return
	}
	defer func() { _ = server.Close() }()
	defer context.AfterFunc(x.s.ctx, func() { _ = server.Close() })()
	x.decision, x.address = allowed, server.RemoteAddr().String()
	f := newFlow(p)
	to := &flowConn{Conn: server, f: f, read: x.countDown, wrote: x.countUp}
	from := &flowConn{Conn: client, f: f}
	if q.tunnel {
		x.tunnel(from, to, client, q)
	} else {
		x.forward(from, to, client, q)
	}
}

// reach connects to the target, by the operator's proxy if there is one.
func (x *exchange) reach(q *request) (net.Conn, error) {
	g := x.s.g
	switch {
	case !x.viaUpstream(q.target):
		return g.direct(x.s.ctx, x.s.policy, q.target)
	case q.tunnel:
		return g.cfg.Upstream.tunnel(x.s.ctx, g.cfg.dial, q.target)
	}
	return g.cfg.Upstream.dial(x.s.ctx, g.cfg.dial)
}

func (x *exchange) viaUpstream(t target) bool {
	u := x.s.g.cfg.Upstream
	return u != nil && !u.skips(t)
}

func (x *exchange) reachFailure(err error) *refusal {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	return fail(http.StatusBadGateway, reasonConnect, "the server can't be reached")
}

func (x *exchange) countUp(n int) error {
	x.up.Add(int64(n))
	x.s.up.Add(int64(n))
	x.s.g.metrics.bytes.WithLabelValues("up").Add(float64(n))
	return x.byteLimit()
}

func (x *exchange) countDown(n int) error {
	x.down.Add(int64(n))
	x.s.down.Add(int64(n))
	x.s.g.metrics.bytes.WithLabelValues("down").Add(float64(n))
	return x.byteLimit()
}

func (x *exchange) byteLimit() error {
	if r := x.s.overBytes(); r != nil {
		return r
	}
	return nil
}

// ended notes why an allowed exchange ended before its time.
func (x *exchange) ended(err error) {
	var r *refusal
	var timeout net.Error
	switch {
	case err == nil:
	case errors.As(err, &r):
		x.decision, x.reason = r.decision, r.reason
	case errors.As(err, &timeout) && timeout.Timeout():
		x.reason = reasonTimeout
	default:
		x.reason = reasonBroken
	}
}

// audit records the exchange once, at its end.
func (x *exchange) audit() {
	s := x.s
	s.g.metrics.ended(x)
	budget := s.audits[0]
	if x.decision != allowed {
		budget = s.audits[1]
	}
	if !budget.Allow() {
		s.suppressed.Add(1)
		s.g.metrics.suppressed.Inc()
		return
	}
	s.flushSuppressed()
	s.g.log.LogAttrs(s.ctx, slog.LevelInfo, "egress", slog.String("execution", s.execution), slog.String("policy", s.policy.Name),
		slog.String("method", x.method), slog.String("target", x.target), slog.String("address", x.address),
		slog.String("decision", string(x.decision)), slog.String("reason", x.reason),
		slog.Int64("bytes_up", x.up.Load()), slog.Int64("bytes_down", x.down.Load()), slog.Duration("duration", time.Since(x.began)))
}

// flushSuppressed tells how many records were left out since the last one.
func (s *session) flushSuppressed() {
	if n := s.suppressed.Swap(0); n > 0 {
		s.g.log.Warn("egress audit records left out: too many", "execution", s.execution, "policy", s.policy.Name, "count", n)
	}
}
