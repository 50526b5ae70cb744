package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

// observer is the outermost interceptor: it gives errors their wire form,
// counts and times calls, and logs what callers are not told.
type observer struct{ c *Coordinator }

// WrapUnary implements connect.Interceptor.
func (o observer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		res, err := next(ctx, req)
		return res, o.end(ctx, req.Spec(), start, err)
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (o observer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		start := time.Now()
		return o.end(ctx, conn.Spec(), start, next(ctx, conn))
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (o observer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (o observer) end(ctx context.Context, spec connect.Spec, start time.Time, err error) error {
	code := "ok"
	err = worded(ctx, spec.Procedure, withCause(ctx, err))
	wire := problem.Connect(err)
	if err != nil {
		code = connect.CodeOf(wire).String()
		o.log(ctx, spec.Procedure, code, err)
	}
	o.c.metrics.observe(methodLabel(spec.Procedure), code, start)
	return wire
}

// log tells the cause, which problem.Connect keeps from the caller.
func (o observer) log(ctx context.Context, procedure, code string, err error) {
	log := o.c.logger.DebugContext
	if code == connect.CodeInternal.String() {
		log = o.c.logger.ErrorContext
	}
	id := caller(ctx)
	args := []any{"call", procedure, "code", code, "subject", id.subject, "error", err}
	if e := (*problem.Error)(nil); errors.As(err, &e) && e.Cause != nil {
		args = append(args, "cause", e.Cause)
	}
	log(ctx, "call failed", args...)
}

// methodLabel is "ExecutionService/RunShell".
func methodLabel(procedure string) string {
	return strings.TrimPrefix(procedure, "/skerry.v1.")
}

// recovered answers a call whose handler panicked; the daemon goes on.
func (c *Coordinator) recovered(ctx context.Context, spec connect.Spec, _ http.Header, value any) error {
	c.metrics.panics.Inc()
	c.logger.ErrorContext(ctx, "handler panicked", "call", spec.Procedure, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return problem.New(connect.CodeInternal, problem.Internal, "the daemon's log has the cause", "internal error")
}
