package coordinator

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

// effect says what a caller can do when a link breaks during a call.
type effect struct {
	// changes: the call may have taken effect.
	changes bool
	// safe: repeating it does not do the work twice.
	safe   bool
	remedy string
}

var (
	reads      = effect{}
	repeatable = effect{changes: true, safe: true, remedy: "repeat the call"}
	sameOffset = effect{changes: true, safe: true, remedy: "repeat the call with the same offset"}
	keyed      = effect{changes: true, safe: true, remedy: "repeat the call with the same idempotencyKey"}
	unkeyed    = effect{changes: true, remedy: "look at the executions before you repeat the call; with an idempotencyKey repeating is safe"}
	appending  = effect{changes: true, remedy: "look at the file before you repeat the call"}
)

// byKey is the effect of a call that starts an execution.
func byKey(idempotencyKey string) effect {
	if idempotencyKey != "" {
		return keyed
	}
	return unkeyed
}

type unary[Req, Res any] func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// forward makes the same call to the runner of to and gives its answer.
func forward[Req, Res any](ctx context.Context, to target, msg *Req, call unary[Req, Res], e effect) (*connect.Response[Res], error) {
	req := connect.NewRequest(msg)
	to.address(ctx, req.Header())
	res, err := call(ctx, req)
	if err != nil {
		return nil, to.failure(ctx, err, e)
	}
	return connect.NewResponse(res.Msg), nil
}

// relay passes a stream from the runner on to the caller, a message at a time:
// the next is taken only when the caller's connection took the last. Each of
// passed is told of every message that it took.
func relay[Req, Res any](ctx context.Context, to target, msg *Req, out *connect.ServerStream[Res],
	call func(context.Context, *connect.Request[Req]) (*connect.ServerStreamForClient[Res], error), passed ...func(*Res)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := connect.NewRequest(msg)
	to.address(ctx, req.Header())
	in, err := call(ctx, req)
	if err != nil {
		return to.failure(ctx, err, reads)
	}
	defer func() { _ = in.Close() }()
	for in.Receive() {
		if err := out.Send(in.Msg()); err != nil {
			return err
		}
		for _, note := range passed {
			note(in.Msg())
		}
	}
	if err := in.Err(); err != nil {
		return to.failure(ctx, err, reads)
	}
	return nil
}

// failure passes an error that the runner answered on as it is, and words one
// of the link itself by what the call may have done.
func (t target) failure(ctx context.Context, err error, e effect) error {
	if connect.IsWireError(err) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// As text: a *connect.Error in the chain would be taken for the answer.
	err = errors.New(err.Error())
	if !e.changes {
		return unreachable(t.workspace.GetRunner()).Because(err)
	}
	out := outcomeUnknown("the link to runner %q broke during the call", t.workspace.GetRunner()).Because(err)
	out.Remedy, out.Retryable = e.remedy, e.safe
	return out
}

// runnerGone reports whether err says that a runner cannot be asked.
func runnerGone(err error) bool {
	var e *problem.Error
	return errors.As(err, &e) && e.Reason == problem.RunnerUnreachable
}
