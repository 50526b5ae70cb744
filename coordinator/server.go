package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	"skerry.internal/proto/skerry/peer/v1/peerv1connect"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
	"skerry.internal/proto/wire"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxStreams        = 1000
	// Of calls that anybody may make; their bodies are small.
	openBodyTimeout = 10 * time.Second
	// What a caller's stream may have sent that is not taken yet, and all of its
	// connection: enough for as many stalled forwarded ports as there may be.
	streamWindow = 512 << 10
	callerWindow = 64 << 20
	// The largest frame: who passes a call on holds a buffer of that size for its
	// body, as long as it takes, and there may be thousands.
	maxFrame = 32 << 10
)

// clientStreams are the calls whose request body has no bound in all.
var clientStreams = map[string]bool{rpc.FileServiceUploadFileProcedure: true, rpc.ExecutionServicePortForwardProcedure: true,
	rpc.ClusterServiceRestoreSnapshotProcedure: true}

// routes builds the handler: health for everyone, all else behind a token.
func (c *Coordinator) routes() http.Handler {
	maxRequest := int(c.cfg.Limits.MaxRequest)
	opts := append([]connect.HandlerOption{
		connect.WithInterceptors(observer{c}),
		connect.WithRecover(c.recovered),
	}, wire.HandlerOptions(maxRequest)...)
	calls := http.NewServeMux()
	calls.Handle(rpc.NewExecutionServiceHandler(executionService{c}, opts...))
	calls.Handle(rpc.NewFileServiceHandler(fileService{c}, opts...))
	calls.Handle(rpc.NewWorkspaceServiceHandler(workspaceService{c}, opts...))
	calls.Handle(rpc.NewRunnerServiceHandler(runnerService{c}, opts...))
	calls.Handle(rpc.NewTokenServiceHandler(tokenService{c}, opts...))
	calls.Handle(rpc.NewAgentServiceHandler(agentService{c}, opts...))
	calls.Handle(rpc.NewTimerServiceHandler(timerService{c}, opts...))
	calls.Handle(rpc.NewInboxServiceHandler(inboxService{c}, opts...))
	calls.Handle(rpc.NewJoinServiceHandler(joinService{c}, opts...))
	calls.Handle(rpc.NewClusterServiceHandler(clusterService{c}, opts...))
	calls.Handle(rpc.NewMemberServiceHandler(memberService{c}, opts...))
	calls.Handle(rpc.NewTransferServiceHandler(transferService{c}, opts...))
	calls.Handle(peerv1connect.PeerServiceFetchProcedure, c.serveFetch())
	calls.Handle(link.Path, c.serveLink(c.refuser()))

	mux := http.NewServeMux()
	mux.Handle("/", withRequest(c.bound(c.leading(c.authorize(c.duplex(calls))), maxRequest)))
	mux.HandleFunc("/healthz", c.serveHealth)
	mux.HandleFunc("/readyz", c.serveReady)
	return mux
}

// bound limits the body of each unary call and the number of calls at once.
func (c *Coordinator) bound(next http.Handler, maxRequest int) http.Handler {
	most := int64(c.cfg.Limits.MaxInFlight)
	refuse := c.refuser()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == link.Path {
			next.ServeHTTP(w, r)
			return
		}
		defer c.inFlight.Add(-1)
		if c.inFlight.Add(1) > most {
			refuse(w, r, problem.Limit("", fmt.Sprintf("%d calls at once", most), "repeat the call a little later").Retry())
			return
		}
		if !clientStreams[r.URL.Path] {
			timeout := wire.BodyTimeout
			if rules[r.URL.Path].open {
				timeout = openBodyTimeout
			}
			defer wire.LimitUnary(w, r, maxRequest, timeout)()
		}
		next.ServeHTTP(w, r)
	})
}

// duplex refuses calls that need both ways at once where the connection has one.
// The leader sees the connection of the coordinator that passed the call on.
func (c *Coordinator) duplex(next http.Handler) http.Handler {
	refuse := c.refuser()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == rpc.ExecutionServicePortForwardProcedure && !bothWays(r) {
			refuse(w, r, needsBothWays())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// HealthHandler answers /healthz and /readyz for a port without tokens.
func (c *Coordinator) HealthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", c.serveHealth)
	mux.HandleFunc("/readyz", c.serveReady)
	return mux
}

// serveHealth says that the process answers.
func (c *Coordinator) serveHealth(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok\n")
}

// serveReady says whether calls would succeed.
func (c *Coordinator) serveReady(w http.ResponseWriter, _ *http.Request) {
	switch {
	case c.closing.Load():
		http.Error(w, "stopping", http.StatusServiceUnavailable)
	case !c.Ready():
		http.Error(w, "no coordinator leads", http.StatusServiceUnavailable)
	default:
		_, _ = io.WriteString(w, "ready\n")
	}
}

// Serve answers on ln, with TLS when configured, until ctx ends; then running
// calls get Limits.ShutdownGrace to end. It owns ln. It does not Close c.
func (c *Coordinator) Serve(ctx context.Context, ln net.Listener) error {
	server := newServer(c.handler, c.cfg.Limits, c.logger)
	secure, err := c.tlsConfig()
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	server.TLSConfig = secure
	ended := make(chan error, 1)
	go func() {
		if secure != nil {
			ended <- server.ServeTLS(ln, "", "")
			return
		}
		ended <- server.Serve(ln)
	}()
	var reason error
	select {
	case err := <-ended:
		return fmt.Errorf("serve API: %w", err)
	case <-c.removed:
		reason = ErrRemoved
	case <-ctx.Done():
		// While this one ends its calls, another takes new ones.
		c.handOver(context.WithoutCancel(ctx))
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Limits.ShutdownGrace.D())
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		// Only followers of logs and waiting calls are left; they see the end.
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve API: %w", err)
	}
	return reason
}

// newServer speaks HTTP/1.1 (which links upgrade) and HTTP/2, with and without TLS.
func newServer(handler http.Handler, limits Limits, logger *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame, MaxReceiveBufferPerConnection: callerWindow, MaxReceiveBufferPerStream: streamWindow},
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    int(limits.MaxHeader),
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
