package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"connectrpc.com/connect"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers each call with its function; a call without one fails the test.
type fake struct {
	t           testing.TB
	runShell    func(context.Context, *skerryv1.RunShellRequest) (*skerryv1.Execution, error)
	runCommand  func(*skerryv1.RunCommandRequest) (*skerryv1.Execution, error)
	get         func(*skerryv1.GetExecutionRequest) (*skerryv1.Execution, error)
	list        func(*skerryv1.ListExecutionsRequest) (*skerryv1.ListExecutionsResponse, error)
	logs        func(*skerryv1.ReadExecutionLogsRequest) (*skerryv1.ReadExecutionLogsResponse, error)
	cancel      func(*skerryv1.CancelExecutionRequest) (*skerryv1.Execution, error)
	ls          func(*skerryv1.ListFilesRequest) (*skerryv1.ListFilesResponse, error)
	read        func(*skerryv1.ReadFileRequest) (*skerryv1.ReadFileResponse, error)
	createTimer func(*skerryv1.CreateTimerRequest) (*skerryv1.Timer, error)
	listTimers  func(*skerryv1.ListTimersRequest) (*skerryv1.ListTimersResponse, error)
	cancelTimer func(*skerryv1.CancelTimerRequest) (*skerryv1.Timer, error)
	write       func(*skerryv1.WriteFileRequest) (*skerryv1.WriteFileResponse, error)
	transfers   Transfers
}

// answer sends errors the way the API does.
func answer[T any](m *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, problem.Connect(err)
	}
	return connect.NewResponse(m), nil
}

func (f *fake) RunShell(ctx context.Context, r *connect.Request[skerryv1.RunShellRequest]) (*connect.Response[skerryv1.RunShellResponse], error) {
	e, err := f.runShell(ctx, r.Msg)
	return answer(&skerryv1.RunShellResponse{Execution: e}, err)
}

func (f *fake) RunCommand(_ context.Context, r *connect.Request[skerryv1.RunCommandRequest]) (*connect.Response[skerryv1.RunCommandResponse], error) {
	e, err := f.runCommand(r.Msg)
	return answer(&skerryv1.RunCommandResponse{Execution: e}, err)
}

func (f *fake) GetExecution(_ context.Context, r *connect.Request[skerryv1.GetExecutionRequest]) (*connect.Response[skerryv1.GetExecutionResponse], error) {
	e, err := f.get(r.Msg)
	return answer(&skerryv1.GetExecutionResponse{Execution: e}, err)
}

func (f *fake) ListExecutions(_ context.Context, r *connect.Request[skerryv1.ListExecutionsRequest]) (*connect.Response[skerryv1.ListExecutionsResponse], error) {
	return answer(f.list(r.Msg))
}

func (f *fake) ReadExecutionLogs(_ context.Context, r *connect.Request[skerryv1.ReadExecutionLogsRequest]) (*connect.Response[skerryv1.ReadExecutionLogsResponse], error) {
	return answer(f.logs(r.Msg))
}

func (f *fake) CancelExecution(_ context.Context, r *connect.Request[skerryv1.CancelExecutionRequest]) (*connect.Response[skerryv1.CancelExecutionResponse], error) {
	e, err := f.cancel(r.Msg)
	return answer(&skerryv1.CancelExecutionResponse{Execution: e}, err)
}

func (f *fake) ListFiles(_ context.Context, r *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error) {
	return answer(f.ls(r.Msg))
}

func (f *fake) ReadFile(_ context.Context, r *connect.Request[skerryv1.ReadFileRequest]) (*connect.Response[skerryv1.ReadFileResponse], error) {
	return answer(f.read(r.Msg))
}

func (f *fake) WriteFile(_ context.Context, r *connect.Request[skerryv1.WriteFileRequest]) (*connect.Response[skerryv1.WriteFileResponse], error) {
	return answer(f.write(r.Msg))
}

func (f *fake) CreateTimer(_ context.Context, r *connect.Request[skerryv1.CreateTimerRequest]) (*connect.Response[skerryv1.CreateTimerResponse], error) {
	timer, err := f.createTimer(r.Msg)
	return answer(&skerryv1.CreateTimerResponse{Timer: timer}, err)
}

func (f *fake) ListTimers(_ context.Context, r *connect.Request[skerryv1.ListTimersRequest]) (*connect.Response[skerryv1.ListTimersResponse], error) {
	return answer(f.listTimers(r.Msg))
}

func (f *fake) CancelTimer(_ context.Context, r *connect.Request[skerryv1.CancelTimerRequest]) (*connect.Response[skerryv1.CancelTimerResponse], error) {
	timer, err := f.cancelTimer(r.Msg)
	return answer(&skerryv1.CancelTimerResponse{Timer: timer}, err)
}

const secret = "skt_thesecret"

// session is a client of a server that calls f.
type session struct {
	t testing.TB
	*sdk.ClientSession
}

func newSession(t testing.TB, f *fake) session {
	t.Helper()
	server := NewServer(Clients{Starter: f, Executions: f, Files: f, Timers: f, Transfers: f.transfers}, Config{Version: "test", Secrets: []string{"", secret}})
	near, far := sdk.NewInMemoryTransports()
	served, err := server.Connect(context.Background(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = served.Wait()
	})
	return session{t, c}
}

// answered is a tool's answer.
type answered struct {
	isError bool
	text    []string
	json    map[string]any
	size    int // of the structured form
}

// call calls a tool with arguments as JSON; a protocol error fails the test.
func (s session) call(tool, args string) answered {
	s.t.Helper()
	res, err := s.CallTool(s.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		s.t.Fatalf("%s %s: %v", tool, args, err)
	}
	out := answered{isError: res.IsError}
	for _, c := range res.Content {
		out.text = append(out.text, c.(*sdk.TextContent).Text)
	}
	b, err := json.Marshal(res.StructuredContent)
	if err != nil {
		s.t.Fatal(err)
	}
	// Escapes of HTML are of this encoder, not of what was sent.
	var sent bytes.Buffer
	enc := json.NewEncoder(&sent)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(res.StructuredContent); err != nil {
		s.t.Fatal(err)
	}
	out.size = sent.Len()
	if err := json.Unmarshal(b, &out.json); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// good calls a tool that must not fail.
func (s session) good(tool, args string) answered {
	s.t.Helper()
	a := s.call(tool, args)
	if a.isError {
		s.t.Fatalf("%s %.300s: %v", tool, args, a.text)
	}
	return a
}

// problem gives the structured error of an answer that is one.
func (a answered) problem(t testing.TB) failed {
	t.Helper()
	var out struct {
		Error failed `json:"error"`
	}
	b, err := json.Marshal(a.json)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil || !a.isError || len(a.text) != 1 {
		t.Fatalf("not an error: %+v %v", a, err)
	}
	return out.Error
}
