package execution

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/supervisor"
)

const (
	// startPatience is how long a call waits for a command that has not started.
	startPatience = 10 * time.Second
	// inputPatience bounds a call that writes to a command that reads slowly.
	inputPatience = 20 * time.Second
	// MaxForwards bounds the connections to one execution.
	MaxForwards = 64
)

// owned finds an execution of the agent without reading its output: live is
// nil when it has ended.
func (e *Engine) owned(ctx context.Context, agent, id string) (*live, *skerryv1.Execution, error) {
	x := e.find(id)
	if x == nil {
		r, err := e.Get(ctx, agent, id)
		return nil, r, err
	}
	r := x.snapshot()
	if r.Agent != agent {
		return nil, nil, missing(id)
	}
	return x, r, nil
}

// WriteInput writes to an interactive execution, whose data may be larger than
// one chunk of the supervisor. It answers early with what was taken when the
// command does not read; a chunk may be repeated, see supervisor.InputChunk.
func (e *Engine) WriteInput(ctx context.Context, agent, id string, c supervisor.InputChunk) (supervisor.InputState, error) {
	x, r, err := e.owned(ctx, agent, id)
	switch {
	case err != nil:
		return supervisor.InputState{}, err
	case !r.Interactive:
		return supervisor.InputState{}, inputProblem(supervisor.ErrNotInteractive)
	case x == nil:
		return supervisor.InputState{Accepted: r.InputAccepted, Closed: true}, nil
	}
	ctx, done := e.whileOpen(ctx)
	defer done()
	h, err := e.started(ctx, x)
	if err != nil {
		return supervisor.InputState{}, err
	}
	s, err := writeAll(ctx, h, c)
	if err != nil && context.Cause(ctx) != nil {
		return s, context.Cause(ctx)
	}
	return s, inputProblem(err)
}

// writeAll hands over c in pieces.
func writeAll(ctx context.Context, h *supervisor.Handle, c supervisor.InputChunk) (supervisor.InputState, error) {
	limited, cancel := context.WithTimeout(ctx, inputPatience)
	defer cancel()
	var sum supervisor.InputState
	for known := false; ; known = true {
		part := c
		part.Offset += uint64(sum.Written)
		part.Data = c.Data[sum.Written:min(sum.Written+supervisor.MaxInputChunk, len(c.Data))]
		part.Close = c.Close && sum.Written+len(part.Data) == len(c.Data)
		s, err := h.WriteInput(limited, part)
		var conflict *supervisor.InputOffsetError
		switch {
		case err == nil:
			s.Written += sum.Written
		case sum.Written > 0 && errors.As(err, &conflict):
			return supervisor.InputState{Accepted: conflict.Accepted, Written: sum.Written}, nil
		case known && limited.Err() != nil && ctx.Err() == nil:
			return sum, nil
		default:
			return s, err
		}
		if s.Closed || s.Written == len(c.Data) {
			return s, nil
		}
		if s.Written == sum.Written && !waited(limited) {
			return s, nil
		}
		sum = s
	}
}

// waited pauses before the next try with a command that took nothing.
func waited(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

// ResizeTerminal sets the size of an execution's terminal.
func (e *Engine) ResizeTerminal(ctx context.Context, agent, id string, w supervisor.WindowSize) error {
	x, r, err := e.owned(ctx, agent, id)
	switch {
	case err != nil:
		return err
	case !r.Terminal:
		return inputProblem(supervisor.ErrNoTerminal)
	case x == nil:
		return inputProblem(supervisor.ErrNotRunning)
	}
	ctx, done := e.whileOpen(ctx)
	defer done()
	limited, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	h, err := e.started(limited, x)
	if err != nil {
		return err
	}
	err = h.Resize(limited, w)
	if err != nil && context.Cause(ctx) != nil {
		return context.Cause(ctx)
	}
	return inputProblem(err)
}

// whileOpen ends a call's context when the engine closes, with the reason.
func (e *Engine) whileOpen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { cancel(shuttingDown()) })
	return ctx, func() { stop(); cancel(nil) }
}

// started waits a moment for the supervisor of an execution that is queued.
func (e *Engine) started(ctx context.Context, x *live) (*supervisor.Handle, error) {
	timer := time.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case <-x.launched:
		return x.supervisor(), nil
	case <-x.done:
		return nil, inputProblem(supervisor.ErrNotRunning)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
		return nil, problem.New(connect.CodeFailedPrecondition, problem.NotRunning, "repeat the call when the execution runs", "the execution is still queued").Retry()
	}
}

// inputProblem words what a supervisor says for those who called.
func inputProblem(err error) error {
	var offset *supervisor.InputOffsetError
	switch {
	case errors.As(err, &offset):
		return offsetProblem(offset)
	case errors.Is(err, supervisor.ErrNotInteractive):
		p := problem.New(connect.CodeFailedPrecondition, problem.NotInteractive, "start it with options.interactive", "the execution takes no input")
		p.Field = "executionId"
		return p
	case errors.Is(err, supervisor.ErrNoTerminal):
		p := problem.New(connect.CodeFailedPrecondition, problem.NotInteractive, "start it with options.interactive.terminal", "the execution has no terminal")
		p.Field = "executionId"
		return p
	case errors.Is(err, supervisor.ErrNotRunning):
		return notRunning()
	case errors.Is(err, context.DeadlineExceeded):
		return problem.New(connect.CodeUnavailable, problem.OutcomeUnknown, "repeat the call, with the same offset if it wrote input", "the execution's supervisor did not answer in time").Retry().Because(err)
	}
	return err
}

func notRunning() error {
	p := problem.New(connect.CodeFailedPrecondition, problem.NotRunning, "look at its record with GetExecution", "the execution does not run any more, or not yet")
	p.Field = "executionId"
	return p
}

func offsetProblem(e *supervisor.InputOffsetError) error {
	at := strconv.FormatUint(e.Accepted, 10)
	p := problem.Invalid("offset", "go on at offset "+at, "input before this offset is missing")
	if !e.Gap {
		p = problem.New(connect.CodeAborted, problem.InputConflict, "go on at offset "+at, "another writer was first")
		p.Field = "offset"
	}
	p.Expected = at
	return p
}

// Forward is a connection to a port of an execution's sandbox. What is at its
// other end may say and do anything.
type Forward struct {
	*net.TCPConn
	// Ended is closed when the execution has ended.
	Ended <-chan struct{}
	// Closing is closed when the runner shuts down.
	Closing <-chan struct{}
	release func()
}

// Close breaks the connection off, whatever is on its way, so that its server
// does not take a part for the whole; so does the end of this process. It may be
// called again.
func (f *Forward) Close() error {
	f.release()
	return f.TCPConn.Close()
}

// Finish closes a connection of which both directions have ended in order.
func (f *Forward) Finish() error {
	_ = f.SetLinger(-1) // fails when it was closed before
	return f.Close()
}

// Connect connects to a port of the loopback in an execution's sandbox.
func (e *Engine) Connect(ctx context.Context, agent, id string, port uint16) (*Forward, error) {
	x, _, err := e.owned(ctx, agent, id)
	if err != nil {
		return nil, err
	}
	if x == nil {
		return nil, notRunning()
	}
	if x.forwards.Add(1) > MaxForwards {
		x.forwards.Add(-1)
		return nil, tooManyForwards()
	}
	release := sync.OnceFunc(func() { x.forwards.Add(-1) })
	conn, err := e.connect(ctx, x, port)
	if err != nil {
		release()
		return nil, err
	}
	return &Forward{TCPConn: conn, Ended: x.done, Closing: e.ctx.Done(), release: release}, nil
}

func tooManyForwards() error {
	return problem.Limit("executionId", strconv.Itoa(MaxForwards)+" connections to one execution", "close some of them first").Retry()
}

func (e *Engine) connect(ctx context.Context, x *live, port uint16) (*net.TCPConn, error) {
	ctx, done := e.whileOpen(ctx)
	defer done()
	h, err := e.started(ctx, x)
	if err != nil {
		return nil, err
	}
	f, err := h.Connect(ctx, port)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, connectProblem(err, port)
	}
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("the sandbox's connection is not TCP")
	}
	if err := tcp.SetLinger(0); err != nil { // see Forward.Close
		_ = tcp.Close()
		return nil, err
	}
	return tcp, nil
}

func connectProblem(err error, port uint16) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, supervisor.ErrBusy):
		return tooManyForwards()
	case errors.Is(err, supervisor.ErrNotRunning):
		return notRunning()
	case errors.Is(err, supervisor.ErrGatewayPort):
		return problem.Invalid("port", "forward a port on which the command listens", "%d is the sandbox's proxy, which serves its command alone", port)
	case errors.As(err, &errno):
		text := "nothing listens on port %d of the sandbox"
		if errno == syscall.ETIMEDOUT {
			text = "what listens on port %d of the sandbox does not accept connections"
		}
		p := problem.New(connect.CodeUnavailable, problem.PortClosed, "let the command listen on 127.0.0.1 at this port, then try again", text, port).Because(err)
		p.Field = "port"
		return p.Retry()
	}
	return err
}
