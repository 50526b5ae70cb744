package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// A client that pipes its requests in and closes gets every answer, also of
// calls that still wait when the input ends.
func TestStdioAnswersBeforeItEnds(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	f := &fake{t: t, runShell: func(ctx context.Context, _ *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		close(called)
		select {
		case <-release:
			return ended(0), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	in, out := strings.Join([]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_shell","arguments":{"command":"x"}}}`}, "\n")+"\n", newPipe()
	read := make(chan struct{})
	server := NewServer(Clients{Starter: f, Executions: f, Files: f}, Config{})
	done := make(chan error, 1)
	go func() {
		done <- server.Run(t.Context(), Stdio(&ending{Reader: strings.NewReader(in), ended: read}, out))
	}()
	go func() {
		<-called
		<-read // the input has ended before the answer is there
		close(release)
	}()
	answers := map[float64]bool{}
	for lines := bufio.NewScanner(out.r); lines.Scan(); {
		var m map[string]any
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		answers[m["id"].(float64)] = m["result"] != nil
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !answers[1] || !answers[2] {
		t.Errorf("answers %v", answers)
	}
}

// ending tells when its end was read.
type ending struct {
	io.Reader
	ended chan struct{}
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err == io.EOF {
		select {
		case <-e.ended:
		default:
			close(e.ended)
		}
	}
	return n, err
}

func (e *ending) Close() error { return nil }

type pipe struct {
	*io.PipeWriter
	r *io.PipeReader
}

func newPipe() pipe {
	r, w := io.Pipe()
	return pipe{w, r}
}
