// Package coordinatortest has a runner that runs nothing: it keeps executions
// and files in memory and serves the runner's real services over a real link.
// Only tests import it.
package coordinatortest

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// Runner is a fake runner. Its fields are set before Start.
type Runner struct {
	// Info is what Attach answers.
	Info *skerryv1.Runner
	// OnShell, when set, replaces the answer of RunShell.
	OnShell func(context.Context, *skerryv1.RunShellRequest) (*skerryv1.Execution, error)
	// OnFollow, when set, replaces FollowExecutionLogs.
	OnFollow func(context.Context, *skerryv1.FollowExecutionLogsRequest, *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error

	mu         sync.Mutex
	number     uint32
	attached   int
	executions map[string]*skerryv1.Execution
	files      map[string][]byte
	broken     []error
	started    int
	headers    []http.Header
	watchers   map[chan *skerryv1.WatchWorkspacesResponse]bool
	ends       []*skerryv1.ExecutionEnd
	endLog     string
	moreEnds   chan struct{} // closed and renewed by each new end
	live       uint32
	cancelled  []string
	last       *skerryv1.WatchWorkspacesResponse
	// As told while a link lasts.
	coordinators []string
}

// NewRunner makes a runner of the given name.
func NewRunner(name string) *Runner {
	return &Runner{
		Info:       &skerryv1.Runner{Name: name, Version: "test", Tier: "none", Slots: 2},
		executions: make(map[string]*skerryv1.Execution),
		files:      make(map[string][]byte),
		watchers:   make(map[chan *skerryv1.WatchWorkspacesResponse]bool),
		endLog:     "log-" + name,
		moreEnds:   make(chan struct{}),
	}
}

// Run dials endpoint and serves until ctx ends.
func (r *Runner) Run(ctx context.Context, endpoint, token string) error {
	return link.Run(ctx, link.RunConfig{
		Endpoints: []string{endpoint},
		Token:     func() (string, error) { return token, nil },
		Name:      r.Info.GetName(),
	}, r.Handler(ctx), slog.New(slog.DiscardHandler))
}

// Handler serves the runner's services; ctx ends its watch streams.
func (r *Runner) Handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(rpc.NewRunnerControlServiceHandler(control{r, ctx.Done()}))
	mux.Handle(rpc.NewExecutionServiceHandler(executions{Runner: r}))
	mux.Handle(rpc.NewFileServiceHandler(files{Runner: r}))
	mux.Handle(rpc.NewWorkspaceServiceHandler(workspaces{Runner: r}))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.headers = append(r.headers, req.Header.Clone())
		r.mu.Unlock()
		mux.ServeHTTP(w, req)
	})
}

// Report tells the coordinator of workspaces and load, now and on each new watch.
func (r *Runner) Report(msg *skerryv1.WatchWorkspacesResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = msg
	for ch := range r.watchers {
		ch <- msg
	}
}

// Coordinators are the endpoints that it was told of while a link lasted.
func (r *Runner) Coordinators() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.coordinators
}

// Attached counts Attach calls.
func (r *Runner) Attached() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attached
}

// Headers of every call so far.
func (r *Runner) Headers() []http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]http.Header(nil), r.headers...)
}

// File is what UploadFile or WriteFile committed; nil: nothing.
func (r *Runner) File(path string) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.files[path]
}

// StartedUploads counts uploads whose header arrived.
func (r *Runner) StartedUploads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started
}

// BrokenUploads are the errors of uploads that did not end in order.
func (r *Runner) BrokenUploads() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.broken...)
}

// AddExecution stores an execution of agent and gives its id.
func (r *Runner) AddExecution(agent string, at time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := ids.New(ids.Execution, r.number, at).String()
	r.executions[id] = &skerryv1.Execution{Id: id, Agent: agent, Runner: r.Info.GetName(), State: skerryv1.StateCompleted}
	return id
}

type control struct {
	*Runner
	stop <-chan struct{}
}

// Attach implements RunnerControlServiceHandler.
func (c control) Attach(_ context.Context, req *connect.Request[skerryv1.AttachRequest]) (*connect.Response[skerryv1.AttachResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number = req.Msg.GetRunnerNumber()
	c.attached++
	return connect.NewResponse(&skerryv1.AttachResponse{Runner: c.Info}), nil
}

// WatchWorkspaces implements RunnerControlServiceHandler.
func (c control) WatchWorkspaces(ctx context.Context, _ *connect.Request[skerryv1.WatchWorkspacesRequest], out *connect.ServerStream[skerryv1.WatchWorkspacesResponse]) error {
	ch := make(chan *skerryv1.WatchWorkspacesResponse, 64)
	c.mu.Lock()
	c.watchers[ch] = true
	if c.last != nil {
		ch <- c.last
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.watchers, ch)
		c.mu.Unlock()
	}()
	for {
		select {
		case msg := <-ch:
			if err := out.Send(msg); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-c.stop:
			return nil
		}
	}
}

// TellCoordinators implements RunnerControlServiceHandler.
func (c control) TellCoordinators(_ context.Context, req *connect.Request[skerryv1.TellCoordinatorsRequest]) (*connect.Response[skerryv1.TellCoordinatorsResponse], error) {
	c.mu.Lock()
	c.coordinators = req.Msg.GetEndpoints()
	c.mu.Unlock()
	return connect.NewResponse(&skerryv1.TellCoordinatorsResponse{}), nil
}

// RefreshCertificate implements RunnerControlServiceHandler; a fake has none.
func (control) RefreshCertificate(context.Context, *connect.Request[skerryv1.RefreshCertificateRequest]) (*connect.Response[skerryv1.RefreshCertificateResponse], error) {
	return connect.NewResponse(&skerryv1.RefreshCertificateResponse{}), nil
}
