package link

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"
)

// RunConfig is a runner's set of coordinators.
type RunConfig struct {
	// Endpoints are tried in turn.
	Endpoints []string
	// Token gives the bearer token for each dial, so that a renewed one is used.
	Token func() (string, error)
	TLS   *tls.Config
	Name  string
	// OnLink, when set, is told of each link that opens and of its end.
	OnLink func(endpoint string, up bool)
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
	r := &redialer{cfg: cfg, handler: handler, logger: logger}
	for next := 0; ctx.Err() == nil; next++ {
		endpoint := cfg.Endpoints[next%len(cfg.Endpoints)]
		lasted, err := r.once(ctx, endpoint)
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
}

// once dials and serves until the link ends; lasted is 0 when there was none.
func (r *redialer) once(ctx context.Context, endpoint string) (lasted time.Duration, err error) {
	token, err := r.cfg.Token()
	if err != nil {
		return 0, err
	}
	conn, err := Dial(ctx, DialConfig{Endpoint: endpoint, Token: token, TLS: r.cfg.TLS, Name: r.cfg.Name})
	if err != nil {
		return 0, err
	}
	r.logger.InfoContext(ctx, "link open", "endpoint", endpoint)
	r.tell(endpoint, true)
	defer r.tell(endpoint, false)
	start := time.Now()
	err = serve(ctx, conn, r.handler, slog.NewLogLogger(r.logger.Handler(), slog.LevelWarn))
	return time.Since(start), err
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
	}
	r.logger.Log(context.Background(), level, "no link", "endpoint", endpoint,
		"lasted", lasted, "retry_in", pause, "error", err)
}
