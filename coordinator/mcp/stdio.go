package mcp

import (
	"context"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxFrame bounds a request: the largest content, every byte escaped.
const maxFrame = 6*maxContent + 1<<20

// Stdio is the transport of a program that a client starts: a JSON message a
// line. When the input ends, calls that were read are still answered before the
// session ends; a client that only pipes its requests in gets all answers.
func Stdio(in io.ReadCloser, out io.WriteCloser) sdk.Transport {
	return stdio{&sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: maxFrame}}
}

type stdio struct{ lines *sdk.IOTransport }

// Connect implements sdk.Transport.
func (s stdio) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := s.lines.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &drained{Connection: c, open: map[jsonrpc.ID]struct{}{}, idle: make(chan struct{}), closed: make(chan struct{})}, nil
}

// drained holds back the end of the input until no call is open.
type drained struct {
	sdk.Connection
	closing sync.Once
	closed  chan struct{}

	mu    sync.Mutex
	open  map[jsonrpc.ID]struct{} // calls that were read and not yet answered
	ended bool                    // the input has
	idle  chan struct{}           // closed once ended and nothing is open
}

// Read implements sdk.Connection.
func (d *drained) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := d.Connection.Read(ctx)
	if err != nil {
		d.end()
		select {
		case <-d.idle:
		case <-d.closed:
		case <-ctx.Done():
		}
		return nil, err
	}
	if req, ok := m.(*jsonrpc.Request); ok && req.IsCall() {
		d.mu.Lock()
		d.open[req.ID] = struct{}{}
		d.mu.Unlock()
	}
	return m, nil
}

// Write implements sdk.Connection.
func (d *drained) Write(ctx context.Context, m jsonrpc.Message) error {
	err := d.Connection.Write(ctx, m)
	if res, ok := m.(*jsonrpc.Response); ok {
		d.mu.Lock()
		delete(d.open, res.ID)
		d.settle()
		d.mu.Unlock()
	}
	return err
}

// Close implements sdk.Connection.
func (d *drained) Close() error {
	d.closing.Do(func() { close(d.closed) })
	return d.Connection.Close()
}

func (d *drained) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.ended = true
		d.settle()
	}
}

// settle tells that all is answered. d.mu is held.
func (d *drained) settle() {
	if !d.ended || len(d.open) > 0 {
		return
	}
	select {
	case <-d.idle:
	default:
		close(d.idle)
	}
}
