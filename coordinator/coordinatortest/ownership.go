package coordinatortest

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// refuse an execution that is known and another agent's, as a real runner does.
func (e executions) refuse(h http.Header, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ex := e.executions[id]; ex != nil && ex.GetAgent() != h.Get(skerryv1.HeaderAgent) {
		return problem.Connect(problem.Missing("executionId", "no such execution"))
	}
	return nil
}

// CancelExecution implements ExecutionServiceHandler.
func (e executions) CancelExecution(_ context.Context, req *connect.Request[skerryv1.CancelExecutionRequest]) (*connect.Response[skerryv1.CancelExecutionResponse], error) {
	if err := e.refuse(req.Header(), req.Msg.GetExecutionId()); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return connect.NewResponse(&skerryv1.CancelExecutionResponse{Execution: e.executions[req.Msg.GetExecutionId()]}), nil
}

// ReadExecutionLogs implements ExecutionServiceHandler.
func (e executions) ReadExecutionLogs(_ context.Context, req *connect.Request[skerryv1.ReadExecutionLogsRequest]) (*connect.Response[skerryv1.ReadExecutionLogsResponse], error) {
	return connect.NewResponse(&skerryv1.ReadExecutionLogsResponse{End: true}), e.refuse(req.Header(), req.Msg.GetExecutionId())
}

// WriteInput implements ExecutionServiceHandler.
func (e executions) WriteInput(_ context.Context, req *connect.Request[skerryv1.WriteInputRequest]) (*connect.Response[skerryv1.WriteInputResponse], error) {
	return connect.NewResponse(&skerryv1.WriteInputResponse{}), e.refuse(req.Header(), req.Msg.GetExecutionId())
}

// ResizeTerminal implements ExecutionServiceHandler.
func (e executions) ResizeTerminal(_ context.Context, req *connect.Request[skerryv1.ResizeTerminalRequest]) (*connect.Response[skerryv1.ResizeTerminalResponse], error) {
	return connect.NewResponse(&skerryv1.ResizeTerminalResponse{}), e.refuse(req.Header(), req.Msg.GetExecutionId())
}
