package rpc

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/execution"
	"skerry.internal/runnerd/workspace"
)

type executions struct{ *Services }

// RunShell implements ExecutionService.
func (s executions) RunShell(ctx context.Context, req *connect.Request[skerryv1.RunShellRequest]) (*connect.Response[skerryv1.RunShellResponse], error) {
	l, command, err := s.shellLaunch(req.Header(), req.Msg)
	if err != nil {
		return nil, err
	}
	e, err := s.submit(ctx, req, req.Msg.Options, command, l)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RunShellResponse{Execution: e}), nil
}

// RunCommand implements ExecutionService.
func (s executions) RunCommand(ctx context.Context, req *connect.Request[skerryv1.RunCommandRequest]) (*connect.Response[skerryv1.RunCommandResponse], error) {
	l, command, err := s.commandLaunch(req.Header(), req.Msg)
	if err != nil {
		return nil, err
	}
	e, err := s.submit(ctx, req, req.Msg.Options, command, l)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RunCommandResponse{Execution: e}), nil
}

func (s executions) submit(ctx context.Context, req connect.AnyRequest, o *skerryv1.RunOptions, command *skerryv1.Command, l execution.Launch) (*skerryv1.Execution, error) {
	d, err := wait("options.waitMs", waitField(o), defaultWait)
	if err != nil {
		return nil, err
	}
	if o.GetBackground() {
		d = 0
	}
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	record := &skerryv1.Execution{Agent: w.Agent, Runner: s.cfg.Name, Command: command, IdempotencyKey: o.GetIdempotencyKey(),
		Interactive: l.Input != nil, Terminal: l.Input != nil && l.Input.Terminal != nil}
	id, err := s.begin(ctx, req, w, record, l)
	if err != nil {
		return nil, err
	}
	return s.engine.Await(ctx, w.Agent, id, d)
}

// begin accepts an execution, or finds the one that used the key before; while
// the runner is drained it does no more than that.
func (s executions) begin(ctx context.Context, req connect.AnyRequest, w *workspace.Workspace, record *skerryv1.Execution, l execution.Launch) (string, error) {
	why := req.Header().Get(skerryv1.HeaderOnlyKnown)
	if why == "" {
		return s.engine.Submit(ctx, w, record, l, identity(req.Any()))
	}
	id, err := s.engine.Known(ctx, record, identity(req.Any()))
	if err == nil && id == "" {
		err = problem.Draining(s.cfg.Name, why)
	}
	return id, err
}

// identity is the request without what does not change what is run.
func identity(req any) proto.Message {
	m := proto.Clone(req.(proto.Message))
	var o *skerryv1.RunOptions
	switch r := m.(type) {
	case *skerryv1.RunShellRequest:
		o = r.Options
	case *skerryv1.RunCommandRequest:
		o = r.Options
	}
	if o != nil {
		o.WaitMs, o.Background, o.IdempotencyKey, o.Runner, o.RunnerSelector, o.FirstUse = nil, false, "", "", nil, false
	}
	return m
}

// GetExecution implements ExecutionService.
func (s executions) GetExecution(ctx context.Context, req *connect.Request[skerryv1.GetExecutionRequest]) (*connect.Response[skerryv1.GetExecutionResponse], error) {
	agent, err := agentOf(req.Header())
	if err != nil {
		return nil, err
	}
	d, err := wait("waitMs", req.Msg.WaitMs, 0)
	if err != nil {
		return nil, err
	}
	e, err := s.engine.Await(ctx, agent, req.Msg.ExecutionId, d)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.GetExecutionResponse{Execution: e}), nil
}

// ListExecutions implements ExecutionService.
func (s executions) ListExecutions(ctx context.Context, req *connect.Request[skerryv1.ListExecutionsRequest]) (*connect.Response[skerryv1.ListExecutionsResponse], error) {
	agent, err := agentOf(req.Header())
	if err != nil {
		return nil, err
	}
	limit, err := limited("limit", req.Msg.Limit, 50, 200)
	if err != nil {
		return nil, err
	}
	if err := checkState(req.Msg.State); err != nil {
		return nil, err
	}
	list, err := s.engine.List(ctx, agent, req.Msg.State, req.Msg.PageToken, limit+1)
	if err != nil {
		return nil, err
	}
	out := &skerryv1.ListExecutionsResponse{Executions: list}
	if len(list) > limit {
		out.Executions = list[:limit]
		out.NextPageToken = list[limit-1].Id
	}
	return connect.NewResponse(out), nil
}

func checkState(state string) error {
	switch state {
	case "", skerryv1.StateQueued, skerryv1.StateRunning, skerryv1.StateCompleted, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown:
		return nil
	}
	return problem.Invalid("state", "use queued, running, completed, failed, cancelled or unknown", "%.64q is no state", state)
}

// CancelExecution implements ExecutionService.
func (s executions) CancelExecution(ctx context.Context, req *connect.Request[skerryv1.CancelExecutionRequest]) (*connect.Response[skerryv1.CancelExecutionResponse], error) {
	agent, err := agentOf(req.Header())
	if err != nil {
		return nil, err
	}
	d, err := wait("waitMs", req.Msg.WaitMs, defaultWait)
	if err != nil {
		return nil, err
	}
	if len(req.Msg.Reason) > maxReason {
		return nil, problem.Limit("reason", "1000 bytes", "use a shorter reason")
	}
	if err := s.engine.Cancel(ctx, agent, req.Msg.ExecutionId, req.Msg.Reason); err != nil {
		return nil, err
	}
	e, err := s.engine.Await(ctx, agent, req.Msg.ExecutionId, d)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.CancelExecutionResponse{Execution: e}), nil
}

func waitField(o *skerryv1.RunOptions) *uint32 {
	if o == nil {
		return nil
	}
	return o.WaitMs
}
