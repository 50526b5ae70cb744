package e2e

import (
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// gRPC over HTTP/2 without TLS, as any gRPC client speaks it to a dev set-up:
// calls, streams both ways and errors.
func TestGRPCClient(t *testing.T) {
	d := newDev(t)
	_, secret := d.agent("grpc")
	var h2c http.Protocols
	h2c.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &h2c}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: asBearer{secret, transport}}
	ex := rpc.NewExecutionServiceClient(client, d.ready.Endpoint, connect.WithGRPC())
	files := rpc.NewFileServiceClient(client, d.ready.Endpoint, connect.WithGRPC())

	up := files.UploadFile(t.Context())
	for _, part := range []*skerryv1.UploadFileRequest{
		{Part: &skerryv1.UploadFileRequest_Header{Header: &skerryv1.UploadHeader{Path: "in"}}},
		{Part: &skerryv1.UploadFileRequest_Data{Data: []byte("hello\n")}}} {
		if err := up.Send(part); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := up.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	run, err := ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "cat in; echo bye >&2"}))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, run.Msg.Execution, skerryv1.StateCompleted, skerryv1.VerdictExited)
	follow, err := ex.FollowExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: run.Msg.Execution.Id}))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for follow.Receive() {
		for _, r := range follow.Msg().Records {
			got.Write(r.Data)
		}
	}
	if err := follow.Err(); err != nil || !strings.Contains(got.String(), "hello\n") || !strings.Contains(got.String(), "bye\n") {
		t.Fatalf("followed %q, %v", got.String(), err)
	}
	_, err = ex.GetExecution(t.Context(), connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: "ex_none"}))
	if p := problem.Of(err); connect.CodeOf(err) != connect.CodeNotFound || p.GetReason() != problem.NotFound {
		t.Fatalf("%v, problem %v", err, p)
	}
}

type asBearer struct {
	token string
	next  http.RoundTripper
}

func (b asBearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}
