package rpc

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/execution"
)

const maxForwardData = 64 << 10

type forwardStream = connect.BidiStream[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]

// PortForward implements ExecutionService.
func (s executions) PortForward(ctx context.Context, stream *forwardStream) error {
	agent, err := agentOf(stream.RequestHeader())
	if err != nil {
		return err
	}
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) {
		return problem.Invalid("executionId", "name the execution and its port in the first message", "the stream is empty")
	}
	if err != nil {
		return err
	}
	if first.Port < 1 || first.Port > 65535 {
		return problem.Invalid("port", "use 1..65535", "%d is no port", first.Port)
	}
	conn, err := s.engine.Connect(ctx, agent, first.ExecutionId, uint16(first.Port))
	if err != nil {
		return err
	}
	f := &forwarding{stream: stream, conn: conn, patience: s.cfg.ForwardIdle, gone: make(chan struct{})}
	return f.run(ctx, first)
}

// forwarding moves the bytes of one connection.
type forwarding struct {
	stream *forwardStream
	conn   *execution.Forward
	// idle cuts a connection that carried nothing for patience.
	idle     *time.Timer
	patience time.Duration
	// gone is closed, with why, when the connection was cut from outside.
	gone chan struct{}
	why  atomic.Pointer[problem.Error]
}

func (f *forwarding) run(ctx context.Context, first *skerryv1.PortForwardRequest) error {
	defer func() { _ = f.conn.Close() }()
	f.idle = time.AfterFunc(f.patience, func() {
		f.cut(problem.Limit("", f.patience.String()+" without any byte", "connect again"))
	})
	defer f.idle.Stop()
	finished := make(chan struct{})
	defer close(finished)
	go f.watch(ctx, finished)
	if err := f.stream.Send(&skerryv1.PortForwardResponse{}); err != nil {
		return err
	}
	// It may outlive this call by a moment: it ends when its stream does.
	sent := make(chan bool, 1)
	go func() { sent <- f.toServer(first) }()
	if err := f.toClient(); err != nil {
		return err
	}
	select { // the server says no more, but may still listen
	case whole := <-sent:
		if whole {
			_ = f.conn.Finish()
		}
		return nil
	case <-f.gone:
		return f.cause(nil)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch cuts the connection when the execution ends or the call does.
func (f *forwarding) watch(ctx context.Context, finished <-chan struct{}) {
	select {
	case <-finished:
	case <-ctx.Done():
		_ = f.conn.Close()
	case <-f.conn.Ended:
		f.cut(problem.New(connect.CodeFailedPrecondition, problem.NotRunning, "look at its record with GetExecution", "the execution has ended"))
	case <-f.conn.Closing:
		f.cut(problem.New(connect.CodeUnavailable, problem.ShuttingDown, "connect again", "the runner is shutting down").Retry())
	}
}

func (f *forwarding) cut(why *problem.Error) {
	if f.why.CompareAndSwap(nil, why) {
		close(f.gone)
		_ = f.conn.Close()
	}
}

// cause is why the connection was cut, if it was, or else err.
func (f *forwarding) cause(err error) error {
	if p := f.why.Load(); p != nil {
		return p
	}
	return err
}

// toServer passes on what the client sends, and tells whether that was up to its
// end.
func (f *forwarding) toServer(msg *skerryv1.PortForwardRequest) (whole bool) {
	for {
		if len(msg.Data) > maxForwardData {
			f.cut(problem.Limit("data", "65536 bytes a message", "send smaller ones"))
			return false
		}
		f.idle.Reset(f.patience)
		if _, err := f.conn.Write(msg.Data); err != nil {
			return false // the other direction sees it too
		}
		if msg.End {
			return f.conn.CloseWrite() == nil
		}
		var err error
		if msg, err = f.stream.Receive(); err != nil {
			_ = f.conn.Close() // the client broke off
			return false
		}
	}
}

func (f *forwarding) toClient() error {
	buf := make([]byte, maxForwardData)
	for {
		n, err := f.conn.Read(buf)
		if n > 0 {
			f.idle.Reset(f.patience)
			if err := f.stream.Send(&skerryv1.PortForwardResponse{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return f.stream.Send(&skerryv1.PortForwardResponse{End: true})
		}
		if err != nil {
			return f.cause(problem.New(connect.CodeUnavailable, problem.PortClosed, "connect again", "the server in the sandbox broke the connection").Because(err))
		}
	}
}
