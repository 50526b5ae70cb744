// Package rpc serves a runner's calls: it checks what came, finds the agent's
// workspace or execution and shapes the answer.
package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
	"skerry.internal/proto/wire"
	"skerry.internal/runnerd/execution"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/transfer"
	"skerry.internal/runnerd/workspace"
)

// Config of the services.
type Config struct {
	Name    string
	Version string
	Labels  map[string]string
	Slots   int
	Tier    string
	// TierAtLeast says whether the runner's tier is at least the named one.
	TierAtLeast func(string) bool
	Networks    Networks
	// DefaultTimeout and MaxTimeout bound an execution's wall-clock time.
	DefaultTimeout, MaxTimeout time.Duration
	// ForwardIdle is how long a forwarded connection may carry nothing.
	ForwardIdle time.Duration
	// MaxRequestBytes bounds one message.
	MaxRequestBytes int
	// Transfers does what TransferControlService is asked.
	Transfers *transfer.Manager
	// Attached is called when a coordinator has told the runner its number.
	Attached func(ctx context.Context, cluster string, number uint32) error
	// Watched is called when a coordinator begins to watch the runner: from now
	// on it routes calls here.
	Watched func()
	// Refresh asks for the runner's next certificate; it does not block.
	Refresh func()
	// Coordinators is told the endpoints of all coordinators when they change.
	Coordinators func([]string)
}

// Services implements the runner's side of the API.
type Services struct {
	cfg        Config
	engine     *execution.Engine
	workspaces *workspace.Manager
	store      *cas.Store
	log        *slog.Logger
}

// New makes the services.
func New(cfg Config, engine *execution.Engine, workspaces *workspace.Manager, store *cas.Store, log *slog.Logger) *Services {
	return &Services{cfg: cfg, engine: engine, workspaces: workspaces, store: store, log: log}
}

// Handler serves all services. It trusts the Skerry headers, so that it must be
// reachable by the coordinator alone: over the connection that the runner dialled.
func (s *Services) Handler() http.Handler {
	mux := http.NewServeMux()
	options := append([]connect.HandlerOption{
		connect.WithInterceptors(errorMapper{s.log}),
		connect.WithRecover(s.recovered),
	}, wire.HandlerOptions(s.cfg.MaxRequestBytes)...)
	mux.Handle(skerryv1connect.NewExecutionServiceHandler(executions{s}, options...))
	mux.Handle(skerryv1connect.NewFileServiceHandler(files{s}, options...))
	mux.Handle(skerryv1connect.NewWorkspaceServiceHandler(workspaces{Services: s}, options...))
	mux.Handle(skerryv1connect.NewRunnerControlServiceHandler(control{s}, options...))
	mux.Handle(skerryv1connect.NewTransferControlServiceHandler(transfers{s}, options...))
	mux.Handle(s.cfg.Transfers.PeerHandler(func(r *http.Request) string { return r.Header.Get(skerryv1.HeaderReceiver) }))
	return mux
}

func (s *Services) recovered(_ context.Context, spec connect.Spec, _ http.Header, cause any) error {
	s.log.Error("handler panicked", "procedure", spec.Procedure, "panic", cause)
	return problem.Connect(problem.New(connect.CodeInternal, problem.Internal, "see the runner's log", "internal error"))
}

// agentOf reads who calls; the coordinator has authenticated it.
func agentOf(h http.Header) (string, error) {
	agent := h.Get(skerryv1.HeaderAgent)
	if agent == "" {
		return "", problem.New(connect.CodeUnauthenticated, problem.Unauthenticated, "call through a coordinator", "no agent in the call")
	}
	return agent, nil
}

// workspaceOf opens the workspace that the coordinator routed the call to.
func (s *Services) workspaceOf(ctx context.Context, h http.Header) (*workspace.Workspace, error) {
	agent, err := agentOf(h)
	if err != nil {
		return nil, err
	}
	epoch, err := strconv.ParseUint(h.Get(skerryv1.HeaderEpoch), 10, 64)
	if err != nil || epoch == 0 {
		return nil, problem.New(connect.CodeInvalidArgument, problem.InvalidArgument, "call through a coordinator", "no epoch in the call")
	}
	return s.workspaces.Get(ctx, h.Get(skerryv1.HeaderWorkspace), agent, epoch)
}

// errorMapper turns domain errors into wire errors, and logs those that are
// nobody's mistake.
type errorMapper struct{ log *slog.Logger }

func (m errorMapper) mapped(err error, procedure string) error {
	if err == nil {
		return nil
	}
	out := problem.Connect(damaged(noRoom(err)))
	if code := connect.CodeOf(out); code == connect.CodeInternal || code == connect.CodeUnknown || code == connect.CodeDataLoss {
		m.log.Error("call failed", "procedure", procedure, "err", err)
	}
	return out
}

// damaged types the error of an object that is not what it was: nobody but the
// operator, or the files that it was made of, can mend that.
func damaged(err error) error {
	var typed *problem.Error
	if !errors.Is(err, cas.ErrCorrupt) || errors.As(err, &typed) {
		return err
	}
	return problem.New(connect.CodeDataLoss, problem.StoreFailed, "if the file still lies in the workspace, any command there stores it anew; else ask the runner's operator (its log names the object)",
		"the runner's store has a damaged object").Because(err)
}

// noRoom types the error of a full disk, which any call that changes something
// can meet (I10).
func noRoom(err error) error {
	var typed *problem.Error
	full := errors.Is(err, journal.ErrFull) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if !full || errors.As(err, &typed) {
		return err
	}
	e := problem.Limit("", "disk space of the runner", "free space on the runner, then try again").Retry().Because(err)
	e.Message = "the runner's disk is full"
	return e
}

// WrapUnary implements connect.Interceptor.
func (m errorMapper) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		return res, m.mapped(err, req.Spec().Procedure)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (m errorMapper) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (m errorMapper) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return m.mapped(next(ctx, conn), conn.Spec().Procedure)
	}
}
