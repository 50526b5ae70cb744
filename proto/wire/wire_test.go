package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
)

const maxBytes = 4096

type files struct {
	skerryv1connect.UnimplementedFileServiceHandler
	reached int
}

func (f *files) ListFiles(_ context.Context, req *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error) {
	f.reached++
	return connect.NewResponse(&skerryv1.ListFilesResponse{Snapshot: req.Msg.GetPath()}), nil
}

func (f *files) UploadFile(_ context.Context, stream *connect.ClientStream[skerryv1.UploadFileRequest]) (*connect.Response[skerryv1.UploadFileResponse], error) {
	var n int
	for stream.Receive() {
		n += len(stream.Msg().GetData())
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.UploadFileResponse{BytesWritten: uint64(n)}), nil
}

func (f *files) DownloadFile(_ context.Context, _ *connect.Request[skerryv1.DownloadFileRequest], stream *connect.ServerStream[skerryv1.DownloadFileResponse]) error {
	f.reached++
	return stream.Send(&skerryv1.DownloadFileResponse{})
}

func start(t *testing.T) (*files, *httptest.Server) {
	t.Helper()
	f := &files{}
	_, handler := skerryv1connect.NewFileServiceHandler(f, HandlerOptions(maxBytes)...)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/UploadFile") {
			defer LimitUnary(w, r, maxBytes, BodyTimeout)()
		}
		handler.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return f, server
}

type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string         `json:"type"`
		Debug map[string]any `json:"debug"`
	} `json:"details"`
}

func post(t *testing.T, server *httptest.Server, method, contentType string, body io.Reader) (int, wireError, string) {
	t.Helper()
	res, err := server.Client().Post(server.URL+"/skerry.v1.FileService/"+method, contentType, body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var e wireError
	if res.StatusCode != 200 {
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
	}
	return res.StatusCode, e, string(data)
}

func TestUnaryRefusalsCarryProblem(t *testing.T) {
	long := fmt.Sprintf(`{"path":%q}`, strings.Repeat("a", maxBytes))
	tests := []struct {
		name, contentType, body string
		status                  int
		reason, field, limit    string
	}{
		{"malformed", "application/json", `{"path":`, 400, problem.InvalidArgument, "", ""},
		{"no object", "application/json", `7`, 400, problem.InvalidArgument, "", ""},
		{"empty", "application/json", ``, 400, problem.InvalidArgument, "", ""},
		{"unknown field", "application/json", `{"pth":"x"}`, 400, problem.InvalidArgument, "pth", ""},
		{"nested unknown", "application/json", `{"workspace":{"x":1}}`, 400, problem.InvalidArgument, "x", ""},
		{"wrong type", "application/json", `{"limit":"many"}`, 400, problem.InvalidArgument, "", ""},
		{"charset", "application/json; charset=UTF-8", `{"pth":"x"}`, 400, problem.InvalidArgument, "pth", ""},
		{"binary", "application/proto", "\x0a\xff", 400, problem.InvalidArgument, "", ""},
		{"oversize", "application/json", long, 429, problem.LimitExceeded, "", "request: 4096 bytes"},
		{"deep", "application/json", strings.Repeat(`{"workspace":`, 300), 400, problem.InvalidArgument, "workspace", ""},
		{"control bytes", "application/json", "{\"\x00\":1}", 400, problem.InvalidArgument, "", ""},
	}
	f, server := start(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, e, raw := post(t, server, "ListFiles", tt.contentType, strings.NewReader(tt.body))
			if status != tt.status || len(e.Details) != 1 {
				t.Fatalf("status %d, body %s", status, raw)
			}
			got := e.Details[0]
			if got.Type != "skerry.v1.Problem" || got.Debug["reason"] != tt.reason {
				t.Errorf("detail %+v", got)
			}
			if field, _ := got.Debug["field"].(string); field != tt.field {
				t.Errorf("field %q, want %q", field, tt.field)
			}
			if limit, _ := got.Debug["limit"].(string); limit != tt.limit {
				t.Errorf("limit %q, want %q", limit, tt.limit)
			}
			if remedy, _ := got.Debug["remedy"].(string); remedy == "" {
				t.Error("no remedy")
			}
		})
	}
	if f.reached != 0 {
		t.Errorf("%d refused requests reached the handler", f.reached)
	}
	// Exactly the limit passes, and so does a body of unknown length.
	fits := fmt.Sprintf(`{"path":%q}`, strings.Repeat("a", maxBytes-len(`{"path":""}`)))
	if status, _, raw := post(t, server, "ListFiles", "application/json", io.MultiReader(strings.NewReader(fits))); status != 200 {
		t.Errorf("body of the limit: %d %s", status, raw)
	}
}

func TestAnswersHaveDefaultValues(t *testing.T) {
	_, server := start(t)
	_, _, raw := post(t, server, "ListFiles", "application/json", strings.NewReader(`{}`))
	var got map[string]any
	if err := json.Unmarshal([]byte(raw), &got); err != nil {
		t.Fatal(err)
	}
	if _, ok := got["nextPageToken"]; !ok {
		t.Errorf("answer %s lacks nextPageToken", raw)
	}
	if list, ok := got["files"].([]any); !ok || len(list) != 0 {
		t.Errorf("answer %s: files is no empty list", raw)
	}
}

func TestStreamsAndGRPCCarryProblem(t *testing.T) {
	_, server := start(t)
	for _, opts := range [][]connect.ClientOption{nil, {connect.WithGRPC()}, {connect.WithProtoJSON()}} {
		client := skerryv1connect.NewFileServiceClient(server.Client(), server.URL, opts...)
		upload := client.UploadFile(t.Context())
		data := bytes.Repeat([]byte{1}, maxBytes)
		_ = upload.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Data{Data: data}})
		_, err := upload.CloseAndReceive()
		if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || p.GetLimit() == "" {
			t.Errorf("upload of an over-long message: %v, %v", err, p)
		}
		upload = client.UploadFile(t.Context())
		for range 3 {
			if err := upload.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Data{Data: data[:maxBytes/2]}}); err != nil {
				t.Error(err)
			}
		}
		res, err := upload.CloseAndReceive()
		if err != nil || res.Msg.GetBytesWritten() != 3*maxBytes/2 {
			t.Errorf("stream over the limit in all, not in one message: %v", err)
		}
	}
	// A malformed message in gRPC, which only a hand-made body can be.
	client := skerryv1connect.NewFileServiceClient(server.Client(), server.URL, connect.WithGRPC())
	bad := &skerryv1.ListFilesRequest{}
	bad.ProtoReflect().SetUnknown([]byte{0x0a, 0x01, 0xff}) // field 1 as a message that is cut short
	_, err := client.ListFiles(t.Context(), connect.NewRequest(bad))
	if p := problem.Of(err); connect.CodeOf(err) != connect.CodeInvalidArgument || p.GetReason() != problem.InvalidArgument {
		t.Errorf("gRPC: %v, %v", err, p)
	}
	down, err := client.DownloadFile(t.Context(), connect.NewRequest(&skerryv1.DownloadFileRequest{}))
	if err != nil || !down.Receive() {
		t.Errorf("download: %v", err)
	}
	_ = down.Close()
}

// A caller may send the marker field itself: it is refused, nothing else.
func TestMarkerFromCaller(t *testing.T) {
	m := &skerryv1.ListFilesRequest{}
	raw := protowire.AppendTag(nil, failureField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(raw, "forged"))
	f, server := start(t)
	client := skerryv1connect.NewFileServiceClient(server.Client(), server.URL)
	if _, err := client.ListFiles(t.Context(), connect.NewRequest(m)); connect.CodeOf(err) != connect.CodeInvalidArgument || f.reached != 0 {
		t.Errorf("forged marker: %v", err)
	}
}

func TestMarshalJSONIsStable(t *testing.T) {
	got, err := MarshalJSON(&skerryv1.UploadFileResponse{BytesWritten: 3})
	if err != nil || string(got) != `{"bytesWritten":"3"}` {
		t.Errorf("%s, %v", got, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"path":"x"}`), true)
	f.Add([]byte("\x0a\xff"), false)
	f.Fuzz(func(t *testing.T, data []byte, text bool) {
		var c codec = protoCodec{}
		if text {
			c = jsonCodec{name: "json", strict: true}
		}
		m, plain := &skerryv1.ListFilesRequest{}, &skerryv1.ListFilesRequest{}
		if err := (markingCodec{c}).Unmarshal(data, m); err != nil {
			t.Fatal(err)
		}
		err := c.Unmarshal(data, plain)
		if msg, failed := failureOf(m); err != nil != failed && !strings.Contains(string(data), msg) {
			t.Fatalf("decoding gave %v, mark %q", err, msg)
		}
		if msg, failed := failureOf(m); failed && decodeProblem(msg).Code != connect.CodeInvalidArgument {
			t.Fatal("wrong code")
		}
	})
}
