package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestRunnersErrorsPassUnchanged(t *testing.T) {
	k := start(t)
	k.runner("r1")
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}} {
		ann := k.as(k.token("agent", "ann"), opts...)
		_, err := ann.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: ".ssh/id"}))
		p := problem.Of(err)
		want := &skerryv1.Problem{Reason: problem.PathSensitive, Field: "path", Limit: "limit", Remedy: "remedy", Retryable: true}
		if connect.CodeOf(err) != connect.CodeFailedPrecondition || sprint(p) != sprint(want) {
			t.Errorf("%s: %v, %v", name, err, p)
		}
		stream, err := ann.files.DownloadFile(t.Context(), connect.NewRequest(&skerryv1.DownloadFileRequest{Path: "none"}))
		if err == nil {
			for stream.Receive() {
			}
			err = stream.Err()
			_ = stream.Close()
		}
		if problem.Of(err).GetReason() != problem.NotFound || connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%s stream: %v", name, err)
		}
	}
}

// F09, I3: what a broken link leaves open is never called done or undone.
func TestI3BrokenLinkIsOutcomeUnknown(t *testing.T) {
	k := start(t)
	r := newNamed("r1")
	reached := make(chan struct{}, 8)
	r.OnShell = func(ctx context.Context, _ *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		reached <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r.OnFollow = func(ctx context.Context, _ *skerryv1.FollowExecutionLogsRequest, _ *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error {
		reached <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	k.run(r)
	ann := k.as(k.token("agent", "ann"))
	id := r.AddExecution("ann", time.Now())
	if _, err := ann.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{})); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name      string
		call      func() error
		reason    string
		retryable bool
	}{
		{"with key", func() error { _, err := ann.executions.RunShell(t.Context(), shellOn("", "k")); return err }, problem.OutcomeUnknown, true},
		{"without key", func() error { _, err := ann.executions.RunShell(t.Context(), shellOn("", "")); return err }, problem.OutcomeUnknown, false},
		{"read", func() error {
			stream, err := ann.executions.FollowExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: id}))
			if err != nil {
				return err
			}
			defer func() { _ = stream.Close() }()
			for stream.Receive() {
			}
			return stream.Err()
		}, problem.RunnerUnreachable, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k.until("link up", func() bool { l := k.links.get("r1"); return l != nil && !l.ended() })
			failed := make(chan error, 1)
			go func() { failed <- tt.call() }()
			<-reached
			_ = k.links.get("r1").conn.Close()
			err := <-failed
			if p := problem.Of(err); p.GetReason() != tt.reason || p.GetRetryable() != tt.retryable || p.GetRemedy() == "" {
				t.Errorf("%v, %v", err, p)
			}
		})
	}
}

func TestFollowIsForwardedInOrder(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	id := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true"))).GetExecution().GetId()
	stream, err := ann.executions.FollowExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: id}))
	if err != nil {
		t.Fatal(err)
	}
	var text string
	var end bool
	for stream.Receive() {
		for _, rec := range stream.Msg().GetRecords() {
			text += string(rec.GetData())
		}
		end = stream.Msg().GetEnd()
	}
	if stream.Err() != nil || text != "abc" || !end {
		t.Errorf("%q end=%v, %v", text, end, stream.Err())
	}
	_ = stream.Close()
	_ = r
}

// A caller that goes away ends the runner's side; one that does not read slows it.
func TestFollowCancelAndBackpressure(t *testing.T) {
	k := start(t)
	r := newNamed("r1")
	piece := bytes.Repeat([]byte("x"), 64<<10)
	sent := make(chan int, 1)
	r.OnFollow = func(ctx context.Context, _ *skerryv1.FollowExecutionLogsRequest, out *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error {
		n := 0
		defer func() { sent <- n }()
		for ; n < 1<<14; n++ { // 1 GiB when nobody stops it
			if err := out.Send(&skerryv1.FollowExecutionLogsResponse{Records: []*skerryv1.LogRecord{{Data: piece}}}); err != nil {
				return err
			}
		}
		return nil
	}
	k.run(r)
	ann := k.as(k.token("agent", "ann"))
	if _, err := ann.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := ann.executions.FollowExecutionLogs(ctx, connect.NewRequest(
		&skerryv1.FollowExecutionLogsRequest{ExecutionId: r.AddExecution("ann", time.Now())}))
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	cancel()
	n := <-sent
	// Windows of a few MiB on each of the two connections may fill.
	if n*len(piece) > 64<<20 {
		t.Errorf("the runner sent %d MiB to a caller that read one message", n*len(piece)>>20)
	}
	_ = stream.Close()
}

func upstream(path string) *skerryv1.UploadFileRequest {
	return &skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Header{Header: &skerryv1.UploadHeader{Path: path, IfExists: "overwrite"}}}
}

func piece(data []byte) *skerryv1.UploadFileRequest {
	return &skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Data{Data: data}}
}

func TestUploadAndDownload(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	up := ann.files.UploadFile(t.Context())
	if err := up.Send(upstream("big")); err != nil {
		t.Fatal(err)
	}
	for rest := want; len(rest) > 0; rest = rest[256<<10:] {
		if err := up.Send(piece(rest[:256<<10])); err != nil {
			t.Fatal(err)
		}
	}
	res, err := up.CloseAndReceive()
	if err != nil || res.Msg.GetBytesWritten() != uint64(len(want)) || !bytes.Equal(r.File("big"), want) {
		t.Fatalf("upload: %v, %v", res, err)
	}
	down, err := ann.files.DownloadFile(t.Context(), connect.NewRequest(&skerryv1.DownloadFileRequest{Path: "big"}))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for down.Receive() {
		got = append(got, down.Msg().GetData()...)
	}
	if down.Err() != nil || !bytes.Equal(got, want) {
		t.Errorf("download of %d bytes gave %d, %v", len(want), len(got), down.Err())
	}
	_ = down.Close()
}

func TestUploadRefusals(t *testing.T) {
	k := start(t)
	k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	send := func(msgs ...*skerryv1.UploadFileRequest) error {
		up := ann.files.UploadFile(t.Context())
		for _, m := range msgs {
			if err := up.Send(m); err != nil {
				break
			}
		}
		_, err := up.CloseAndReceive()
		return err
	}
	if err := send(); problem.Of(err).GetField() != "header" {
		t.Errorf("nothing sent: %v", err)
	}
	if err := send(piece([]byte("x"))); problem.Of(err).GetField() != "header" {
		t.Errorf("data first: %v", err)
	}
	// The runner's early refusal must come through while data is still flowing.
	msgs := []*skerryv1.UploadFileRequest{upstream("refused")}
	for range 64 {
		msgs = append(msgs, piece(make([]byte, 1<<20)))
	}
	if err := send(msgs...); problem.Of(err).GetField() != "path" {
		t.Errorf("refused by the runner: %v", err)
	}
	unknown := upstream("x")
	unknown.GetHeader().Workspace = &skerryv1.WorkspaceSelector{Id: "ws_x"}
	if err := send(unknown); problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("unknown workspace: %v", err)
	}
}

// I4: an upload whose caller went away must not be committed cut short.
func TestI4BrokenUploadIsNotCommitted(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	for i := range 10 {
		path := fmt.Sprintf("f%d", i)
		ctx, cancel := context.WithCancel(t.Context())
		up := ann.files.UploadFile(ctx)
		if err := errors.Join(up.Send(upstream(path)), up.Send(piece([]byte("half of it")))); err != nil {
			t.Fatal(err)
		}
		k.until("upload at runner", func() bool { return r.StartedUploads() > i })
		cancel()
		k.until("broken upload noticed", func() bool { return len(r.BrokenUploads()) > i })
		if r.File(path) != nil {
			t.Fatalf("%s was committed", path)
		}
	}
}

func TestCallerCancelReachesRunner(t *testing.T) {
	k := start(t)
	r := newNamed("r1")
	reached, gone := make(chan struct{}), make(chan error, 1)
	r.OnShell = func(ctx context.Context, _ *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		close(reached)
		<-ctx.Done()
		gone <- ctx.Err()
		return nil, ctx.Err()
	}
	k.run(r)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	_, err := k.as(k.token("agent", "ann")).executions.RunShell(ctx, shell("true"))
	if connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("caller: %v", err)
	}
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("runner: %v", err)
	}
}

func TestRequestBounds(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Limits.MaxRequest = 64 << 10
	cfg.Limits.MaxInFlight = 4
	k := startWith(t, cfg)
	r := newNamed("r1")
	release := make(chan struct{})
	waiting := make(chan struct{}, 8)
	r.OnShell = func(context.Context, *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		waiting <- struct{}{}
		<-release
		return &skerryv1.Execution{}, nil
	}
	k.run(r)
	ann := k.token("agent", "ann")
	status, body := k.post("/skerry.v1.ExecutionService/RunShell", ann, fmt.Sprintf(`{"command":%q}`, strings.Repeat("x", 64<<10)))
	if status != 429 || !strings.Contains(body, "request: 65536 bytes") || !strings.Contains(body, problem.LimitExceeded) {
		t.Errorf("oversize: %d %s", status, body)
	}
	for body, want := range map[string]int{`{"command":`: 400, `{"comand":"x"}`: 400, ``: 400, `[]`: 400} {
		if status, text := k.post("/skerry.v1.ExecutionService/RunShell", ann, body); status != want || !strings.Contains(text, problem.InvalidArgument) {
			t.Errorf("%q: %d %s", body, status, text)
		}
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if status, text := k.post("/skerry.v1.ExecutionService/RunShell", ann, `{"command":"x"}`); status != 200 {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	for range 4 {
		<-waiting
	}
	if status, text := k.post("/skerry.v1.RunnerService/ListRunners", ann, `{}`); status != 429 || !strings.Contains(text, "4 calls at once") {
		t.Errorf("one call too many: %d %s", status, text)
	}
	close(release)
	all.Wait()
	if status, text := k.post("/skerry.v1.RunnerService/ListRunners", ann, `{}`); status != 200 || !strings.Contains(text, `"queued":0`) {
		t.Errorf("afterwards: %d %s", status, text)
	}
}

func TestPanicIsAnsweredAndCounted(t *testing.T) {
	k := start(t)
	k.runner("r1")
	ann := k.token("agent", "ann")
	// A link that has no clients makes the handler panic.
	live := k.links.get("r1")
	broken := &runnerLink{name: "r1", number: live.number, conn: live.conn}
	k.links.mu.Lock()
	k.links.byName["r1"] = broken
	k.links.mu.Unlock()
	defer func() {
		k.links.mu.Lock()
		k.links.byName["r1"] = live
		k.links.mu.Unlock()
	}()
	status, body := k.post("/skerry.v1.ExecutionService/RunShell", ann, `{"command":"true"}`)
	if status != 500 || !strings.Contains(body, problem.Internal) || strings.Contains(body, "nil pointer") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := k.post("/healthz", "", ""); status != 200 {
		t.Error("the daemon stopped")
	}
}
