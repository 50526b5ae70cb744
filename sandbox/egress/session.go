package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// headTimeout bounds the time for a request's head, and for the first bytes
	// in a tunnel.
	headTimeout = 15 * time.Second
	// answerTimeout bounds the time for writing a refusal.
	answerTimeout = 5 * time.Second
	// acceptRate and acceptBurst hold a flood of connections back.
	acceptRate  = 200
	acceptBurst = 400
	// auditRate and auditBurst bound the audit records of one execution, those of
	// allowed requests and the others each by themselves; what is left out is counted.
	auditRate  = 20
	auditBurst = 400
)

// session is one execution's side of the gateway.
type session struct {
	g         *Gateway
	execution string
	policy    *Policy
	dir       string
	listener  *net.UnixListener
	ctx       context.Context //nolint:containedctx // the execution's lifetime
	cancel    context.CancelFunc

	conns      atomic.Int64
	up, down   atomic.Int64
	audits     [2]*rate.Limiter // of what was allowed, of all else: neither can hide the other
	suppressed atomic.Int64
	handlers   sync.WaitGroup
}

func newSession(g *Gateway, execution string, p *Policy, dir string, l *net.UnixListener) *session {
	s := &session{g: g, execution: execution, policy: p, dir: dir, listener: l}
	for i := range s.audits {
		s.audits[i] = rate.NewLimiter(auditRate, auditBurst)
	}
	s.ctx, s.cancel = context.WithCancel(g.ctx)
	return s
}

func (s *session) close() {
	s.cancel()
	_ = s.listener.Close()
}

// serve accepts until the session is closed.
func (s *session) serve() {
	pace := rate.NewLimiter(acceptRate, acceptBurst)
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) || s.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // accepted while the end came
			}
			s.handlers.Wait() // the last of them may have no room for its record
			s.flushSuppressed()
			return
		}
		if err != nil { // out of descriptors: later there may be some
			s.g.log.Warn("egress accept", "execution", s.execution, "err", err)
			_ = pace.WaitN(s.ctx, acceptRate/10)
			continue
		}
		if r := s.admit(); r != nil {
			s.turnAway(conn, r)
		} else {
			s.handlers.Go(func() { s.handle(conn) })
		}
		_ = pace.Wait(s.ctx) // its error is the end, seen above
	}
}

// admit counts a connection in, unless there are too many.
func (s *session) admit() *refusal {
	if n := s.g.conns.Add(1); n > int64(s.g.cfg.MaxConnections) {
		s.g.conns.Add(-1)
		return &refusal{http.StatusServiceUnavailable, limited, reasonGateway, "the runner's gateway has as many connections as it may have (network.max_connections)"}
	}
	if n := s.conns.Add(1); n > int64(s.policy.MaxConnections) {
		s.leave()
		return &refusal{http.StatusTooManyRequests, limited, reasonConns, "this execution has as many connections as the policy allows at once (max_connections)"}
	}
	return nil
}

func (s *session) leave() {
	s.conns.Add(-1)
	s.g.conns.Add(-1)
}

// turnAway answers without having read anything.
func (s *session) turnAway(conn net.Conn, r *refusal) {
	defer func() { _ = conn.Close() }()
	x := &exchange{s: s, began: time.Now()}
	x.refuse(conn, r)
	x.audit()
}

// handle serves one connection to its end.
func (s *session) handle(conn net.Conn) {
	defer s.leave()
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
	x := &exchange{s: s, began: time.Now()}
	defer func() {
		if p := recover(); p != nil { // one client must not end the daemon
			s.g.log.Error("egress handler panicked", "execution", s.execution, "panic", p)
		}
	}()
	r := bufio.NewReaderSize(conn, 4096)
	_ = conn.SetReadDeadline(x.began.Add(headTimeout))
	q, err := readRequest(r)
	if errors.Is(err, io.EOF) || gone(err) || s.ctx.Err() != nil {
		return // it never asked for anything, or is there no longer
	}
	_ = conn.SetReadDeadline(time.Time{})
	defer x.audit()
	if err != nil {
		x.refuse(conn, refusalOf(err))
		return
	}
	x.serve(bufferedConn{conn, r}, q)
}

// gone says that the connection itself failed.
func gone(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

// overBytes is a refusal once a byte limit is passed.
func (s *session) overBytes() *refusal {
	p := s.policy
	switch {
	case p.MaxBytesDown > 0 && s.down.Load() > p.MaxBytesDown:
		return &refusal{http.StatusTooManyRequests, limited, reasonBytes, "this execution has received as much as the policy allows (max_bytes_down)"}
	case p.MaxBytesUp > 0 && s.up.Load() > p.MaxBytesUp:
		return &refusal{http.StatusTooManyRequests, limited, reasonBytes, "this execution has sent as much as the policy allows (max_bytes_up)"}
	}
	return nil
}
