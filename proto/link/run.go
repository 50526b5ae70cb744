package link

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// RunConfig is a runner's set of coordinators.
type RunConfig struct {
	// Endpoints are tried in turn, and those that a coordinator told of after them.
	Endpoints []string
	// Token gives the bearer token for each dial, so that a renewed one is used;
	// nil: the client certificate in TLS says who dials.
	Token func() (string, error)
	TLS   *tls.Config
	Name  string
	// Proxy as in DialConfig.
	Proxy func(*url.URL) (*url.URL, error)
	// OnLink, when set, is told of each link that opens and of its end. endpoint
	// is the coordinator that was dialled, which may relay to the one that leads.
	OnLink func(endpoint string, up bool)
	// OnDenied, when set, is told that a coordinator refused who dials.
	OnDenied func()
	// OnCoordinators, when set, is told the endpoints that a coordinator told of,
	// when they are others than before.
	OnCoordinators func([]string)
	// Learned, when set, gives endpoints that were learned otherwise; they are
	// dialled like those that coordinators told of.
	Learned func() []string
}

// steady is how long a link must last for the next dial to start afresh;
// a coordinator that accepts and drops is not hammered.
const steady = 10 * time.Second

// Run keeps one link open, dialling again with jittered back-off (0.1 s to
// 5 s), until ctx ends; it then returns nil. It fails at once only when cfg is
// unusable.
func Run(ctx context.Context, cfg RunConfig, handler http.Handler, logger *slog.Logger) error {
	if len(cfg.Endpoints) == 0 {
		return errors.New("no coordinator endpoint is configured")
	}
	for _, endpoint := range cfg.Endpoints {
		if _, err := parseEndpoint(endpoint); err != nil {
			return err
		}
	}
	r := &redialer{cfg: cfg, handler: handler, logger: logger, failed: map[string]int{}}
	for next := 0; ctx.Err() == nil; next++ {
		endpoint := pick(r.endpoints(), next, r.failed)
		lasted, err := r.once(ctx, endpoint)
		r.failed[endpoint]++
		if lasted > 0 {
			delete(r.failed, endpoint)
		}
		if ctx.Err() != nil {
			break
		}
		if lasted >= steady {
			r.failures = 0
		}
		pause := backoff(r.failures, rand.Float64)
		r.failures++
		r.report(endpoint, lasted, pause, err)
		sleep(ctx, pause)
	}
	return nil //nolint:nilerr // ctx ended, which is the order to stop
}

type redialer struct {
	cfg      RunConfig
	handler  http.Handler
	logger   *slog.Logger
	failures int
	// As the last coordinator told.
	learned []string
	// How often an endpoint was dialled in vain since it last gave a link.
	failed map[string]int
}

// pick takes turns among the endpoints that failed least, so that those of
// coordinators that are gone for good cost a dial once in a round of failures.
func pick(endpoints []string, turn int, failed map[string]int) string {
	best := endpoints[turn%len(endpoints)]
	for i := range endpoints {
		if e := endpoints[(turn+i)%len(endpoints)]; failed[e] < failed[best] {
			best = e
		}
	}
	return best
}

// endpoints are the configured ones and then those that were learned.
func (r *redialer) endpoints() []string {
	out := slices.Clone(r.cfg.Endpoints)
	more := r.learned
	if r.cfg.Learned != nil {
		more = append(slices.Clone(more), r.cfg.Learned()...)
	}
	for _, endpoint := range more {
		if !slices.Contains(out, endpoint) {
			out = append(out, endpoint)
		}
	}
	return out
}

// once dials and serves until the link ends; lasted is 0 when there was none.
func (r *redialer) once(ctx context.Context, endpoint string) (lasted time.Duration, err error) {
	cfg := DialConfig{Endpoint: endpoint, TLS: r.cfg.TLS, Name: r.cfg.Name, Proxy: r.cfg.Proxy}
	if r.cfg.Token != nil {
		if cfg.Token, err = r.cfg.Token(); err != nil {
			return 0, err
		}
	}
	conn, welcome, endpoint, err := dialLeader(ctx, cfg)
	if err != nil {
		return 0, err
	}
	r.learn(welcome)
	r.logger.InfoContext(ctx, "link open", "endpoint", endpoint)
	r.tell(endpoint, true)
	defer r.tell(endpoint, false)
	start := time.Now()
	err = serve(ctx, conn, r.handler, slog.NewLogLogger(r.logger.Handler(), slog.LevelWarn))
	return time.Since(start), err
}

// dialLeader opens a link with the coordinator that leads, and where that cannot
// be reached from here, one that cfg's endpoint relays to it.
func dialLeader(ctx context.Context, cfg DialConfig) (conn net.Conn, welcome Welcome, endpoint string, err error) {
	cfg.Direct = true
	conn, welcome, err = Dial(ctx, cfg)
	var refusal *StatusError
	if !errors.As(err, &refusal) || refusal.Leader == "" {
		return conn, welcome, cfg.Endpoint, err
	}
	leader := cfg
	leader.Endpoint = refusal.Leader
	if conn, welcome, err = dialWithin(ctx, leaderTimeout, leader); err == nil {
		return conn, welcome, leader.Endpoint, nil
	}
	cfg.Direct = false
	conn, welcome, err = Dial(ctx, cfg)
	return conn, welcome, cfg.Endpoint, err
}

// leaderTimeout is how long the leader may take to answer before a link is relayed.
const leaderTimeout = 2 * time.Second

func dialWithin(ctx context.Context, limit time.Duration, cfg DialConfig) (net.Conn, Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return Dial(ctx, cfg)
}

func (r *redialer) learn(welcome Welcome) {
	if len(welcome.Coordinators) == 0 || slices.Equal(welcome.Coordinators, r.learned) {
		return
	}
	r.learned = welcome.Coordinators
	if r.cfg.OnCoordinators != nil {
		r.cfg.OnCoordinators(slices.Clone(r.learned))
	}
}

func (r *redialer) tell(endpoint string, up bool) {
	if r.cfg.OnLink != nil {
		r.cfg.OnLink(endpoint, up)
	}
}

func (r *redialer) report(endpoint string, lasted, pause time.Duration, err error) {
	level := slog.LevelWarn
	if denied(err) {
		level = slog.LevelError
		if r.cfg.OnDenied != nil {
			r.cfg.OnDenied()
		}
	}
	r.logger.Log(context.Background(), level, "no link", "endpoint", endpoint,
		"lasted", lasted, "retry_in", pause, "error", err)
}
