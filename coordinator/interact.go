package coordinator

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// WriteInput implements ExecutionServiceHandler.
func (s executionService) WriteInput(ctx context.Context, req *connect.Request[skerryv1.WriteInputRequest]) (*connect.Response[skerryv1.WriteInputResponse], error) {
	to, err := s.c.routeOwnExecution(ctx, req.Msg.GetExecutionId())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.executions.WriteInput, sameOffset)
}

// ResizeTerminal implements ExecutionServiceHandler.
func (s executionService) ResizeTerminal(ctx context.Context, req *connect.Request[skerryv1.ResizeTerminalRequest]) (*connect.Response[skerryv1.ResizeTerminalResponse], error) {
	to, err := s.c.routeOwnExecution(ctx, req.Msg.GetExecutionId())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.executions.ResizeTerminal, repeatable)
}

type forwardStream = connect.BidiStream[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]

// PortForward implements ExecutionServiceHandler.
func (s executionService) PortForward(ctx context.Context, stream *forwardStream) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) {
		return problem.Invalid("executionId", "name the execution and its port in the first message", "the stream is empty")
	}
	if err != nil {
		return err
	}
	to, err := s.c.routeOwnExecution(ctx, first.GetExecutionId())
	if err != nil {
		return err
	}
	ctx, reset := context.WithCancel(ctx)
	out := to.link.executions.PortForward(ctx)
	defer func() {
		reset() // first: closing reads the runner's stream to its end
		_ = out.CloseRequest()
		_ = out.CloseResponse()
	}()
	to.address(ctx, out.RequestHeader())
	// It may outlive this call by a moment: it ends when the caller's stream does.
	go passOn(stream, out, first, reset)
	return passBack(ctx, to, stream, out)
}

type runnerStream = connect.BidiStreamForClient[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]

// passOn copies to the runner what the caller sends. The end of the caller's
// stream, in order or not, is that of the runner's.
func passOn(in *forwardStream, out *runnerStream, msg *skerryv1.PortForwardRequest, reset func()) {
	// Without this the transport, which waits for more to send, would not notice
	// that the context has ended.
	defer func() { _ = out.CloseRequest() }()
	for {
		if out.Send(msg) != nil {
			return // the call has ended, or the runner has answered: Receive says why
		}
		var err error
		msg, err = in.Receive()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			reset()
			return
		}
	}
}

func passBack(ctx context.Context, to target, in *forwardStream, out *runnerStream) error {
	for {
		msg, err := out.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return to.failure(ctx, err, reads)
		}
		if err := in.Send(msg); err != nil {
			return err
		}
	}
}

// bothWays says whether the protocol of a call can carry a stream each way.
func bothWays(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	return r.ProtoMajor >= 2 && (strings.HasPrefix(kind, "application/connect+") || strings.HasPrefix(kind, "application/grpc"))
}

func needsBothWays() *problem.Error {
	return problem.New(connect.CodeUnimplemented, problem.Unsupported, "use skerry port-forward, or a Connect or gRPC client over HTTP/2",
		"this call streams both ways, which plain JSON and HTTP/1.1 cannot")
}
