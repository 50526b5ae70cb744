package peer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"skerry.internal/cas"
)

// Limits bound what receivers can make a server spend.
type Limits struct {
	Batch      int           // objects in one request; default and at most MaxBatch
	Streams    int           // answers at once; default 64
	PerGrant   int           // answers at once for one grant; default 16
	Objects    int           // in one tree; default 8 million (12 to 24 bytes of memory each)
	Roots      int           // trees at once; default 64
	AllObjects int           // in all trees whose reach is remembered; default 16 million
	Memory     int64         // bytes of records in memory for all answers together; default 512 MiB
	Idle       time.Duration // how long a tree is remembered, and kept, after it was last asked for; default 2 min
	Send       time.Duration // how long a receiver may take to accept one slice; default 1 min
}

func (l Limits) withDefaults() Limits {
	for _, x := range []struct {
		field *int
		value int
	}{{&l.Batch, MaxBatch}, {&l.Streams, 64}, {&l.PerGrant, 16}, {&l.Objects, 8_000_000}, {&l.Roots, 64}, {&l.AllObjects, 16_000_000}} {
		if *x.field <= 0 {
			*x.field = x.value
		}
	}
	l.Batch = min(l.Batch, MaxBatch)
	if l.Memory <= 0 {
		l.Memory = 512 << 20
	}
	if l.Idle <= 0 {
		l.Idle = 2 * time.Minute
	}
	if l.Send <= 0 {
		l.Send = time.Minute
	}
	return l
}

// ServerConfig is what a server has beside its store.
type ServerConfig struct {
	Verifier  Verifier
	Limits    Limits
	Bandwidth *Limiter // of all answers together
	Logger    *slog.Logger
}

// Server answers receivers from a store.
type Server struct {
	store   *cas.Store
	cfg     ServerConfig
	reaches *reaches
	memory  *semaphore.Weighted

	mu     sync.Mutex
	active int
	grants map[GrantID]*account
}

// account is what was done for one grant.
type account struct {
	active int
	sent   uint64
	until  time.Time
}

// NewServer makes a server; Close ends its hold on the store.
func NewServer(store *cas.Store, cfg ServerConfig) *Server {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{store: store, cfg: cfg, reaches: newReaches(store, cfg.Limits), grants: make(map[GrantID]*account),
		memory: semaphore.NewWeighted(cfg.Limits.Memory)}
}

// Limits returns those in force.
func (s *Server) Limits() Limits { return s.cfg.Limits }

// Close refuses further answers and lets go of trees that were kept for
// receivers. Those in progress end by their own contexts.
func (s *Server) Close() { s.reaches.close() }

// Fetch answers one batch by calling send, which blocks while the receiver
// does not read. receiver is the name that the transport authenticated, or "".
// Its errors are of type *Error, or of ctx or send.
func (s *Server) Fetch(ctx context.Context, receiver, token string, b Batch, send func(Slice) error) error {
	g, err := s.cfg.Verifier.Verify(token, receiver)
	if err != nil {
		return err
	}
	if err := s.checkBatch(&b); err != nil {
		return err
	}
	acc, leave, err := s.admit(&g)
	if err != nil {
		return err
	}
	defer leave()
	r, release, err := s.reaches.acquire(ctx, g.Root)
	if err != nil {
		return s.own(err)
	}
	defer release()
	wants, lacking, err := r.split(ctx, &b)
	if err != nil {
		return s.own(err)
	}
	a := &answer{ctx: ctx, server: s, reach: r, grant: &g, account: acc, send: send, lacking: lacking, kinds: make(map[cas.Digest]cas.Kind, len(wants))}
	return s.own(a.run(wants))
}

// own hides what is this side's affair.
func (s *Server) own(err error) error {
	if err == nil || ReasonOf(err) != "" || isContext(err) || isSend(err) {
		return err
	}
	s.cfg.Logger.Error("transfer failed", "err", err)
	e := failure(Internal, "the source's log has the cause", "the source failed")
	e.Cause = err
	return e
}

func (s *Server) checkBatch(b *Batch) error {
	if n := b.Len(); n == 0 {
		return failure(Invalid, "name at least one object", "the request names no object")
	} else if n > s.cfg.Limits.Batch {
		return over(fmt.Sprintf("%d objects a request", s.cfg.Limits.Batch), "ask in smaller batches", "the request names %d objects", n)
	}
	seen := make(map[cas.Digest]bool, b.Len())
	return b.each(func(w wanted) error {
		if seen[w.digest] || w.digest.IsZero() {
			return failure(Invalid, "name each object once", "the request names %s twice", w.digest)
		}
		seen[w.digest] = true
		return nil
	})
}

// admit counts an answer in.
func (s *Server) admit(g *Grant) (acc *account, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	acc = s.grants[g.ID]
	if acc == nil {
		s.dropExpired()
		acc = &account{until: g.NotAfter}
	}
	switch {
	case s.active >= s.cfg.Limits.Streams:
		return nil, nil, busy(s.cfg.Limits.Streams, "transfers")
	case acc.active >= s.cfg.Limits.PerGrant:
		return nil, nil, busy(s.cfg.Limits.PerGrant, "answers for one grant")
	}
	s.grants[g.ID] = acc
	s.active++
	acc.active++
	return acc, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active--
		acc.active--
	}, nil
}

func busy(n int, what string) error {
	e := failure(Busy, "try again when some have ended", "too many %s at once", what)
	e.Limit = fmt.Sprintf("%d %s", n, what)
	return e
}

// dropExpired forgets grants that can no longer be used. Only who signs
// grants can make there be many.
func (s *Server) dropExpired() {
	now := time.Now
	if s.cfg.Verifier.Now != nil {
		now = s.cfg.Verifier.Now
	}
	for id, acc := range s.grants {
		if acc.active == 0 && now().After(acc.until) {
			delete(s.grants, id)
		}
	}
}

// leastMemory is what one answer needs: a run of a pack, and a slice.
const leastMemory = 2 << 20

// reserve waits for room in memory for an answer whose largest record has
// size bytes.
func (s *Server) reserve(ctx context.Context, size int64) (release func(), err error) {
	n := min(max(size, leastMemory), s.cfg.Limits.Memory)
	waiting, cancel := context.WithTimeout(ctx, s.cfg.Limits.Send/2) // before the receiver gives up
	defer cancel()
	if err := s.memory.Acquire(waiting, n); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, failure(Busy, "try again when some transfers have ended", "too many large objects are being sent at once")
	}
	return func() { s.memory.Release(n) }, nil
}

// spend takes n bytes from what the grant allows.
func (s *Server) spend(g *Grant, acc *account, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.MaxBytes > 0 && acc.sent+uint64(n) > g.MaxBytes {
		e := failure(GrantSpent, "ask for a grant of more bytes", "the grant's bytes were sent")
		e.Limit = fmt.Sprintf("%d bytes", g.MaxBytes)
		return e
	}
	acc.sent += uint64(n)
	return nil
}
