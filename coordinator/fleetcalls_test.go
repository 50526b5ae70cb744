package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/coordinatortest"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// runner starts a fake runner that dials endpoints, the first of them first, and
// waits until the leader has it.
func (f *fleet) runner(name string, endpoints ...string) *coordinatortest.Runner {
	f.t.Helper()
	r := coordinatortest.NewRunner(name)
	f.attach(r, endpoints...)
	return r
}

func (f *fleet) awaitRunner(name string) {
	f.t.Helper()
	f.until("runner "+name+" up", func() bool {
		leader := f.leader()
		return leader.links.get(name) != nil && leader.state.Read().Runner(name).GetState() == skerryv1.RunnerUp
	})
}

// Every kind of call works through every coordinator, with the runner's link
// relayed by a follower.
func TestFollowersPassCallsOn(t *testing.T) {
	f := startFleet(t, 3)
	followers := f.followers()
	r := f.runner("r1", followers[0].cfg.Advertise)
	secret := f.mustToken("agent", "ann")
	for _, n := range []*node{f.leader(), followers[0], followers[1]} {
		t.Run(n.name, func(t *testing.T) {
			ann := n.at(secret)
			ex := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("r1", ""))).GetExecution()
			if got := must[skerryv1.GetExecutionResponse](t)(ann.executions.GetExecution(t.Context(), get(ex.GetId()))); got.GetExecution().GetId() != ex.GetId() {
				t.Errorf("execution %v", got)
			}
			checkFollow(t, ann, ex.GetId())
			checkUpload(t, ann, r, "file-"+n.name)
			checkForward(t, ann, ex.GetId())
			_, err := ann.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Path: "x", Workspace: &skerryv1.WorkspaceSelector{Runner: "r1"}}))
			if p := problem.Of(err); p.GetReason() != problem.PathSensitive || p.GetField() != "path" {
				t.Errorf("error of the runner: %v", err)
			}
			checkHTTP1(t, n, secret)
		})
	}
}

func checkFollow(t *testing.T, ann api, id string) {
	t.Helper()
	stream, err := ann.executions.FollowExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: id}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var text string
	for stream.Receive() {
		for _, r := range stream.Msg().GetRecords() {
			text += string(r.GetData())
		}
	}
	if stream.Err() != nil || text != "abc" {
		t.Errorf("log %q, %v", text, stream.Err())
	}
}

func checkUpload(t *testing.T, ann api, r *coordinatortest.Runner, path string) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	up := ann.files.UploadFile(t.Context())
	header := &skerryv1.UploadHeader{Path: path, Workspace: &skerryv1.WorkspaceSelector{Runner: "r1"}}
	if err := up.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Header{Header: header}}); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(data); i += 64 << 10 {
		if err := up.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Data{Data: data[i : i+64<<10]}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := up.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.File(path), data) {
		t.Errorf("%d bytes arrived", len(r.File(path)))
	}
}

// checkForward takes turns, so that it ends only where both ways flow at once.
func checkForward(t *testing.T, ann api, id string) {
	t.Helper()
	stream := ann.executions.PortForward(t.Context())
	for i := range 3 {
		want := fmt.Sprintf("turn %d", i)
		if err := stream.Send(&skerryv1.PortForwardRequest{ExecutionId: id, Data: []byte(want)}); err != nil {
			t.Fatal(err)
		}
		got, err := stream.Receive()
		if err != nil || string(got.GetData()) != want {
			t.Fatalf("%q, %v", got.GetData(), err)
		}
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("end: %v", err)
	}
	_ = stream.CloseResponse()
}

func checkHTTP1(t *testing.T, n *node, secret string) {
	t.Helper()
	post := func(procedure string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.cfg.Advertise+procedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := bearer{n.client(false), secret}.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := post(rpc.WorkspaceServiceListWorkspacesProcedure); status != 200 || !strings.Contains(body, `"ann"`) {
		t.Errorf("by HTTP/1.1: %d %s", status, body)
	}
	if status, body := post(rpc.ExecutionServicePortForwardProcedure); status != 501 || !strings.Contains(body, problem.Unsupported) {
		t.Errorf("both ways by HTTP/1.1: %d %s", status, body)
	}
}

// Nobody becomes a coordinator, or a runner, by claiming so to a follower.
func TestFollowersVouchForNobodyWithoutCertificate(t *testing.T) {
	f := startFleet(t, 2)
	for _, n := range f.running() {
		for _, headers := range []map[string]string{
			{},
			{headerPeerRole: pki.RoleCoordinator, headerPeerName: "c1", headerPeerSerial: "1", headerPeerExpires: "99999999999"},
			{headerPeerRole: ""},
		} {
			client := rpc.NewClusterServiceClient(n.client(true), n.cfg.Advertise)
			req := connect.NewRequest(&skerryv1.AnnounceMemberRequest{Name: "c1", Address: "h:1", Endpoint: "https://h:1", Incarnation: "x", CommandVersion: 9})
			for name, value := range headers {
				req.Header().Set(name, value)
			}
			_, err := client.AnnounceMember(t.Context(), req)
			if p := problem.Of(err); p.GetReason() != problem.Unauthenticated {
				t.Errorf("%s, headers %v: %v", n.name, headers, err)
			}
		}
	}
}

// Calls that a leader was answering end with a word on what they may have done.
func TestCallsEndTypedWhenLeadershipIsLost(t *testing.T) {
	f := startFleet(t, 3)
	leader, follower := f.leader(), f.followers()[0]
	r := coordinatortest.NewRunner("r1")
	arrived := make(chan bool, 8)
	r.OnShell = func(ctx context.Context, _ *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		arrived <- true
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.attach(r, f.endpoints()...)
	secret := f.mustToken("agent", "ann")
	type result struct {
		what string
		err  error
	}
	ends := make(chan result, 4)
	for _, n := range []*node{leader, follower} {
		for _, key := range []string{"", "key-" + n.name} {
			ann := n.at(secret)
			go func() {
				_, err := ann.executions.RunShell(t.Context(), shellOn("r1", key))
				ends <- result{n.name + " " + key, err}
			}()
		}
	}
	for range 4 {
		<-arrived
	}
	f.isolate(leader.name)
	for range 4 {
		select {
		case end := <-ends:
			p := problem.Of(end.err)
			if p.GetReason() != problem.OutcomeUnknown {
				t.Errorf("%s: %v", end.what, end.err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a call hangs")
		}
	}
}

// attach is runner for one that exists.
func (f *fleet) attach(r *coordinatortest.Runner, endpoints ...string) {
	f.t.Helper()
	name := r.Info.GetName()
	token := f.mustToken(skerryv1.RoleRunner, name)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	trust := (&cluster{Coordinator: f.leader().Coordinator, t: f.t}).trust()
	go func() {
		done <- link.Run(ctx, link.RunConfig{Endpoints: endpoints, Token: func() (string, error) { return token, nil }, TLS: trust, Name: name},
			r.Handler(ctx), slog.New(slog.DiscardHandler))
	}()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("runner %s: %v", name, err)
		}
	})
	f.awaitRunner(name)
}
