package mcp

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func executionID(required bool, doc string) param {
	return param{name: "execution_id", kind: text, required: required, doc: doc}
}

func executionStatus(c Executions) tool {
	return tool{
		name: "execution_status", title: "Look at executions",
		description: "Show one execution: state (queued, running, completed, failed, cancelled, unknown), verdict, output, changed files and snapshot. " +
			"Without execution_id: list your newest executions, all or those in one state.",
		params: []param{
			executionID(false, "The execution; absent: list."),
			{name: "wait_ms", kind: number, most: maxWaitMS, doc: "With execution_id: wait this many milliseconds for its end; default 0."},
			{name: "state", kind: text, doc: "Without execution_id: only executions in this state.", enum: []string{
				skerryv1.StateQueued, skerryv1.StateRunning, skerryv1.StateCompleted, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown}},
		},
		hints: hints{readOnly: true, idempotent: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			id, state := get[string](a, "execution_id"), get[string](a, "state")
			switch {
			case id == "" && get[int64](a, "wait_ms") > 0:
				return nil, problem.Invalid("wait_ms", "give execution_id too, or leave wait_ms out", "a list does not wait")
			case id == "":
				return listExecutions(ctx, c, state)
			case state != "":
				return nil, problem.Invalid("state", "leave state out, or execution_id to list", "filters a list, but execution_id names one")
			}
			res, err := c.GetExecution(ctx, connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: id, WaitMs: a.wait()}))
			if err != nil {
				return nil, err
			}
			return executionResult(res.Msg.Execution)
		},
	}
}

func listExecutions(ctx context.Context, c Executions, state string) (*result, error) {
	res, err := c.ListExecutions(ctx, connect.NewRequest(&skerryv1.ListExecutionsRequest{State: state, Limit: listedExecutions}))
	if err != nil {
		return nil, err
	}
	return executionList(res.Msg, state)
}

func executionCancel(c Executions) tool {
	return tool{
		name: "execution_cancel", title: "End an execution",
		description: "End an execution with all its processes: TERM, then KILL. Answers when nothing of it is left and its files are committed, " +
			"or after ten seconds; then follow it with execution_status. Cancelling one that has ended changes nothing.",
		params: []param{executionID(true, "The execution to end.")},
		hints:  hints{destructive: true, idempotent: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			res, err := c.CancelExecution(ctx, connect.NewRequest(&skerryv1.CancelExecutionRequest{
				ExecutionId: get[string](a, "execution_id"), Reason: "cancelled by the agent"}))
			if err != nil {
				return nil, err
			}
			return executionResult(res.Msg.Execution)
		},
	}
}
