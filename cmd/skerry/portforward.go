package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
)

func (a *app) portForwardCommand() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use: "port-forward EXECUTION [LOCAL:]PORT", Short: "Reach a server inside an execution's sandbox from here",
		Long: "Listen on a local port and join each connection to PORT of the sandbox's loopback, which has no other way in. It works for sandboxes without a network.\n" +
			"LOCAL is PORT unless given; 0 takes a free one. It ends with the execution or when interrupted.",
		Example: "  skerry port-forward ex_01... 8888\n  skerry port-forward ex_01... 6007:6006",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			local, remote, err := parsePorts(args[1])
			if err != nil {
				return err
			}
			return a.portForward(cmd.Context(), args[0], net.JoinHostPort(address, strconv.Itoa(int(local))), remote)
		},
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1", "local address to listen on; whoever reaches it reaches the server")
	return c
}

func parsePorts(text string) (local, remote uint32, err error) {
	before, after, pair := strings.Cut(text, ":")
	if !pair {
		after = before
	}
	r, err := strconv.ParseUint(after, 10, 16)
	if err != nil || r == 0 {
		return 0, 0, fmt.Errorf("port: %q is not in 1..65535", after)
	}
	l, err := strconv.ParseUint(before, 10, 16)
	if err != nil {
		return 0, 0, fmt.Errorf("port: %q is not in 0..65535", before)
	}
	return uint32(l), uint32(r), nil
}

// forwarder listens for connections to one port of an execution.
type forwarder struct {
	app    *app
	client skerryv1connect.ExecutionServiceClient
	id     string
	port   uint32
	// leave ends it all.
	leave context.CancelCauseFunc
	open  sync.WaitGroup
}

var errEnded = errors.New("the execution has ended")

func (a *app) portForward(ctx context.Context, id, address string, port uint32) error {
	c, err := a.clients()
	if err != nil {
		return err
	}
	streams, err := a.streamClient()
	if err != nil {
		return err
	}
	e, err := c.executions.GetExecution(ctx, connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: id}))
	if err != nil {
		return err
	}
	if skerryv1.Terminal(e.Msg.Execution.State) {
		return fmt.Errorf("execution %s has ended", id)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w; choose another local port, as in 0:%d", err, port)
	}
	defer func() { _ = listener.Close() }()
	_, _ = fmt.Fprintf(a.stderr, "skerry: forwarding %s to port %d of %s\n", listener.Addr(), port, id)
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	f := &forwarder{app: a, client: streams, id: id, port: port, leave: leave}
	go f.watch(ctx, c)
	f.accept(ctx, listener)
	if errors.Is(context.Cause(ctx), errEnded) {
		_, _ = fmt.Fprintf(a.stderr, "skerry: execution %s has ended\n", id)
	}
	return nil
}

// streamClient calls over HTTP/2, which streams both ways need.
func (a *app) streamClient() (skerryv1connect.ExecutionServiceClient, error) {
	c, err := a.resolve()
	if err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	client, err := a.httpClient(c, &protocols)
	if err != nil {
		return nil, err
	}
	return skerryv1connect.NewExecutionServiceClient(client, c.base()), nil
}

// watch ends the forwarding with the execution. Daemons that are away for a
// while do not.
func (f *forwarder) watch(ctx context.Context, c *clients) {
	for {
		var wait uint32 = maxWaitMS
		res, err := c.executions.GetExecution(ctx, connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: f.id, WaitMs: &wait}))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && skerryv1.Terminal(res.Msg.Execution.State):
			f.leave(errEnded)
			return
		case err != nil && rest(ctx, resumePause) != nil:
			return
		}
	}
}

// accept serves until ctx ends, and returns when all connections are closed.
func (f *forwarder) accept(ctx context.Context, listener net.Listener) {
	defer f.open.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		f.open.Go(func() {
			if err := f.serve(ctx, conn.(*net.TCPConn)); err != nil && ctx.Err() == nil {
				_, _ = fmt.Fprintf(f.app.stderr, "skerry: port %d: %s\n", f.port, oneLine(message(err)))
			}
		})
	}
}

// serve joins one local connection to the sandbox. One that fails is reset, so
// that its client does not take a part for the whole.
func (f *forwarder) serve(ctx context.Context, conn *net.TCPConn) (err error) {
	// Until both directions have ended, any end of this connection, also that of
	// this program, is a break.
	if err := conn.SetLinger(0); err != nil {
		return err
	}
	outer := ctx
	ctx, cancel := context.WithCancel(outer)
	stop := context.AfterFunc(outer, func() { _ = conn.Close() })
	defer stop()
	stream := f.client.PortForward(ctx)
	defer func() {
		if err == nil {
			_ = conn.SetLinger(-1)
		}
		_ = conn.Close()
		cancel() // first: closing reads the stream to its end
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}()
	if err := stream.Send(&skerryv1.PortForwardRequest{ExecutionId: f.id, Port: f.port}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := stream.Receive(); err != nil {
		return err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendAll(stream, conn, func() { cancel(); _ = stream.CloseRequest() })
	}()
	err = receiveAll(stream, conn)
	_ = conn.CloseRead()
	cancel()
	_ = stream.CloseRequest()
	<-sent
	return err
}

type forwardStream = connect.BidiStreamForClient[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]

// sendAll passes on what the local client sends, and its end.
func sendAll(stream *forwardStream, conn *net.TCPConn, broken func()) {
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 && stream.Send(&skerryv1.PortForwardRequest{Data: buf[:n]}) != nil {
			_ = stream.CloseRequest() // else Receive might wait for ever
			return                    // it has the reason
		}
		if errors.Is(err, io.EOF) {
			_ = stream.Send(&skerryv1.PortForwardRequest{End: true})
			return
		}
		if err != nil {
			broken()
			return
		}
	}
}

// receiveAll passes on what the server says up to its end; only that is no error.
func receiveAll(stream *forwardStream, conn *net.TCPConn) error {
	for ended := false; ; {
		msg, err := stream.Receive()
		if errors.Is(err, io.EOF) && ended {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := conn.Write(msg.Data); err != nil {
			return nil //nolint:nilerr // the local client went away
		}
		if msg.End {
			ended = true
			_ = conn.CloseWrite()
		}
	}
}
