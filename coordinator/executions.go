package coordinator

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"connectrpc.com/connect"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	defaultExecutions = 50
	maxExecutions     = 200
)

// executionService is ExecutionService: it routes, the runners do the work.
type executionService struct{ c *Coordinator }

// RunShell implements ExecutionServiceHandler.
func (s executionService) RunShell(ctx context.Context, req *connect.Request[skerryv1.RunShellRequest]) (*connect.Response[skerryv1.RunShellResponse], error) {
	to, end, err := s.start(ctx, req.Msg.GetOptions())
	if err != nil {
		return nil, err
	}
	defer end()
	ask := func(at target) (*connect.Response[skerryv1.RunShellResponse], error) {
		return forward(ctx, at, req.Msg, at.link.executions.RunShell, byKey(req.Msg.GetOptions().GetIdempotencyKey()))
	}
	res, err := repeated(ctx, s.c, to, req.Msg.GetOptions(), ask)
	if res == nil && err == nil {
		res, err = ask(to)
	}
	if err == nil {
		s.c.saw(ctx, res.Msg.GetExecution())
	}
	return res, err
}

// RunCommand implements ExecutionServiceHandler.
func (s executionService) RunCommand(ctx context.Context, req *connect.Request[skerryv1.RunCommandRequest]) (*connect.Response[skerryv1.RunCommandResponse], error) {
	to, end, err := s.start(ctx, req.Msg.GetOptions())
	if err != nil {
		return nil, err
	}
	defer end()
	ask := func(at target) (*connect.Response[skerryv1.RunCommandResponse], error) {
		return forward(ctx, at, req.Msg, at.link.executions.RunCommand, byKey(req.Msg.GetOptions().GetIdempotencyKey()))
	}
	res, err := repeated(ctx, s.c, to, req.Msg.GetOptions(), ask)
	if res == nil && err == nil {
		res, err = ask(to)
	}
	if err == nil {
		s.c.saw(ctx, res.Msg.GetExecution())
	}
	return res, err
}

// start routes a call that starts an execution.
func (s executionService) start(ctx context.Context, opts *skerryv1.RunOptions) (to target, end func(), err error) {
	w := wish{runner: opts.GetRunner(), field: "options.runner"}
	if w.selector, err = conditions(opts.GetRunnerSelector(), "options.runnerSelector"); err != nil {
		return target{}, nil, err
	}
	if to, err = s.c.routeRunner(ctx, w); err != nil {
		return target{}, nil, err
	}
	end, err = s.c.beginStart(&to, opts.GetIdempotencyKey() != "")
	return to, end, err
}

// GetExecution implements ExecutionServiceHandler.
func (s executionService) GetExecution(ctx context.Context, req *connect.Request[skerryv1.GetExecutionRequest]) (*connect.Response[skerryv1.GetExecutionResponse], error) {
	to, err := s.c.routeExecution(ctx, req.Msg.GetExecutionId())
	if err != nil {
		return nil, err
	}
	res, err := forward(ctx, to, req.Msg, to.link.executions.GetExecution, reads)
	if err == nil {
		s.c.saw(ctx, res.Msg.GetExecution())
	}
	return res, err
}

// ReadExecutionLogs implements ExecutionServiceHandler.
func (s executionService) ReadExecutionLogs(ctx context.Context, req *connect.Request[skerryv1.ReadExecutionLogsRequest]) (*connect.Response[skerryv1.ReadExecutionLogsResponse], error) {
	to, err := s.c.routeExecution(ctx, req.Msg.GetExecutionId())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.executions.ReadExecutionLogs, reads)
}

// FollowExecutionLogs implements ExecutionServiceHandler.
func (s executionService) FollowExecutionLogs(ctx context.Context, req *connect.Request[skerryv1.FollowExecutionLogsRequest], out *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error {
	to, err := s.c.routeExecution(ctx, req.Msg.GetExecutionId())
	if err != nil {
		return err
	}
	return relay(ctx, to, req.Msg, out, to.link.executions.FollowExecutionLogs, func(msg *skerryv1.FollowExecutionLogsResponse) {
		s.c.saw(ctx, msg.GetExecution())
	})
}

// CancelExecution implements ExecutionServiceHandler.
func (s executionService) CancelExecution(ctx context.Context, req *connect.Request[skerryv1.CancelExecutionRequest]) (*connect.Response[skerryv1.CancelExecutionResponse], error) {
	to, err := s.c.routeExecution(ctx, req.Msg.GetExecutionId())
	if err != nil {
		return nil, err
	}
	res, err := forward(ctx, to, req.Msg, to.link.executions.CancelExecution, repeatable)
	if err == nil {
		s.c.saw(ctx, res.Msg.GetExecution())
	}
	return res, err
}

// ListExecutions implements ExecutionServiceHandler. It merges the answers of
// the agent's runners: ids sort by time, and the page token is the last id
// given, whichever runner it came from. A runner that cannot be asked fails the
// call, since leaving its executions out would look like their not existing.
func (s executionService) ListExecutions(ctx context.Context, req *connect.Request[skerryv1.ListExecutionsRequest]) (*connect.Response[skerryv1.ListExecutionsResponse], error) {
	ask, err := pageRequest(req.Msg)
	if err != nil {
		return nil, err
	}
	asked, err := s.c.runnersToAsk(ctx, ask.GetRunner())
	if err != nil {
		return nil, err
	}
	pages, err := s.askAll(ctx, asked, ask)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(mergePages(pages, int(ask.GetLimit()))), nil
}

// pageRequest checks req and fills in the limit.
func pageRequest(req *skerryv1.ListExecutionsRequest) (*skerryv1.ListExecutionsRequest, error) {
	out := &skerryv1.ListExecutionsRequest{State: req.GetState(), Runner: req.GetRunner(), Limit: req.GetLimit(), PageToken: req.GetPageToken()}
	if out.GetLimit() == 0 {
		out.Limit = defaultExecutions
	}
	if out.GetLimit() > maxExecutions {
		return nil, problem.Limit("limit", "200 executions", "ask for less and use nextPageToken")
	}
	if out.GetPageToken() != "" {
		if _, err := ids.Parse(ids.Execution, out.GetPageToken()); err != nil {
			return nil, problem.Invalid("pageToken", "use nextPageToken of the previous page, or nothing", "is none of this call's")
		}
	}
	switch out.GetState() {
	case "", skerryv1.StateQueued, skerryv1.StateRunning, skerryv1.StateCompleted, skerryv1.StateFailed,
		skerryv1.StateCancelled, skerryv1.StateUnknown:
		return out, nil
	}
	return nil, problem.Invalid("state", "use queued, running, completed, failed, cancelled or unknown", "unknown state")
}

// runnersToAsk gives the agent's workspaces, or the one on the named runner.
// Runners that the token is not for, or that were removed, are not asked.
func (c *Coordinator) runnersToAsk(ctx context.Context, runner string) ([]*raftlogv1.Workspace, error) {
	view, id := c.state.Read(), caller(ctx)
	if runner == "" {
		all := append(view.WorkspacesOfAgent(id.subject), c.formerWorkspaces(view, id.subject)...)
		return slices.DeleteFunc(all, func(ws *raftlogv1.Workspace) bool {
			return ws.GetLost() || ws.GetRestore() != nil || !id.allows(ws.GetRunner())
		}), nil
	}
	if !id.allows(runner) {
		return nil, id.outOfScope(runner, "runner")
	}
	if view.Runner(runner) == nil {
		return nil, unknownRunner(view, id, runner, "runner")
	}
	if ws := workspaceAt(view, id.subject, runner); ws != nil && !ws.GetLost() && ws.GetRestore() == nil {
		return []*raftlogv1.Workspace{ws}, nil
	}
	return nil, nil
}

func (s executionService) askAll(ctx context.Context, asked []*raftlogv1.Workspace, ask *skerryv1.ListExecutionsRequest) ([]*skerryv1.ListExecutionsResponse, error) {
	pages := make([]*skerryv1.ListExecutionsResponse, len(asked))
	errs := make([]error, len(asked))
	var all sync.WaitGroup
	for i, ws := range asked {
		all.Go(func() { pages[i], errs[i] = s.ask(ctx, ws, ask) })
	}
	all.Wait()
	for _, err := range errs {
		if runnerGone(err) {
			e := asProblem(err)
			e.Remedy = "repeat the call when it is up again, or list one runner's executions with runner"
			return nil, e
		}
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

func (s executionService) ask(ctx context.Context, ws *raftlogv1.Workspace, ask *skerryv1.ListExecutionsRequest) (*skerryv1.ListExecutionsResponse, error) {
	to, err := s.c.reach(ws)
	if err != nil {
		return nil, err
	}
	res, err := forward(ctx, to, ask, to.link.executions.ListExecutions, reads)
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// mergePages gives the newest limit executions of pages that are each newest first.
func mergePages(pages []*skerryv1.ListExecutionsResponse, limit int) *skerryv1.ListExecutionsResponse {
	out, more := &skerryv1.ListExecutionsResponse{}, false
	for _, page := range pages {
		out.Executions = append(out.Executions, page.GetExecutions()...)
		more = more || page.GetNextPageToken() != ""
	}
	slices.SortFunc(out.Executions, func(a, b *skerryv1.Execution) int { return cmp.Compare(b.GetId(), a.GetId()) })
	if len(out.GetExecutions()) > limit {
		out.Executions, more = out.Executions[:limit], true
	}
	if n := len(out.GetExecutions()); more && n > 0 {
		out.NextPageToken = out.GetExecutions()[n-1].GetId()
	}
	return out
}
