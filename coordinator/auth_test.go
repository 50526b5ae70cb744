package coordinator

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	"skerry.internal/proto/skerry/peer/v1/peerv1connect"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// internal are services that are no part of the API: runners serve them.
var internal = []protoreflect.FullName{"skerry.v1.RunnerControlService", "skerry.v1.TransferControlService"}

// procedures are all calls of the API's services, from the registry of protos.
func procedures() []string {
	var out []string
	protoregistry.GlobalFiles.RangeFilesByPackage("skerry.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			if slices.Contains(internal, service.FullName()) {
				continue
			}
			for j := range service.Methods().Len() {
				out = append(out, "/"+string(service.FullName())+"/"+string(service.Methods().Get(j).Name()))
			}
		}
		return true
	})
	slices.Sort(out)
	return out
}

func TestEveryCallHasARule(t *testing.T) {
	all := procedures()
	if len(all) < 20 {
		t.Fatalf("only %d calls found", len(all))
	}
	for _, procedure := range all {
		if len(rules[procedure].roles) == 0 && !rules[procedure].open {
			t.Errorf("%s has no rule in auth.go", procedure)
		}
	}
	for path := range rules {
		if path != link.Path && path != peerv1connect.PeerServiceFetchProcedure && !slices.Contains(all, path) {
			t.Errorf("rule for %s, which is no call", path)
		}
	}
}

// expiredToken makes a token and sets its expiry back.
func expiredToken(k *cluster) string {
	record, secret, err := newToken(&skerryv1.CreateTokenRequest{Role: "admin", Subject: "old", ExpiresS: 60}, time.Now())
	if err != nil {
		k.t.Fatal(err)
	}
	record.Expires = timestamppb.New(time.Now().Add(-time.Second))
	if _, err := k.storeToken(k.t.Context(), record); err != nil {
		k.t.Fatal(err)
	}
	return secret
}

func TestAuthMatrix(t *testing.T) {
	k := start(t)
	admin, agent, runner := k.token("admin", "root"), k.token("agent", "ann"), k.token("runner", "r1")
	revoked := k.token("admin", "gone")
	id := "tk_" + strings.Split(revoked, "_")[1]
	must[skerryv1.RevokeTokenResponse](t)(k.as(admin).tokens.RevokeToken(t.Context(),
		connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: id})))
	other := k.token("admin", "other")
	mixed := strings.Join([]string{"sk", strings.Split(admin, "_")[1], strings.Split(other, "_")[2]}, "_")

	tokens := []struct{ name, secret, reason string }{
		{"none", "", problem.Unauthenticated},
		{"nonsense", "hello", problem.Unauthenticated},
		{"secret of another token", mixed, problem.Unauthenticated},
		{"cut short", admin[:len(admin)-1], problem.Unauthenticated},
		{"longer", admin + "0", problem.Unauthenticated},
		{"upper case", strings.ToUpper(admin), problem.Unauthenticated},
		{"revoked", revoked, problem.Unauthenticated},
		{"expired", expiredToken(k), problem.Unauthenticated},
		{"runner", runner, problem.PermissionDenied},
		{"agent", agent, ""},
		{"admin", admin, ""},
	}
	for _, procedure := range procedures() {
		if rules[procedure].open {
			continue
		}
		allows := func(role string) bool { return slices.Contains(rules[procedure].roles, role) }
		for _, tt := range tokens {
			want := tt.reason
			if tt.name == "runner" && allows(tt.name) { // a grant says the rest
				continue
			}
			if (tt.name == "agent" || tt.name == "admin") && !allows(tt.name) {
				want = problem.PermissionDenied
			}
			// A malformed body shows that the token is checked first.
			status, body := k.post(procedure, tt.secret, `{"malformed`)
			checkRefusal(t, procedure+" with token "+tt.name, status, body, want)
		}
	}
}

func checkRefusal(t *testing.T, what string, status int, body, want string) {
	t.Helper()
	wantStatus := map[string]int{problem.Unauthenticated: 401, problem.PermissionDenied: 403}[want]
	if want == "" {
		// Past the door: malformed, or a stream asked for as a unary call.
		if status == 401 || status == 403 {
			t.Errorf("%s: refused with %d %s", what, status, body)
		}
		return
	}
	var e struct {
		Message string
		Details []struct {
			Debug struct{ Reason, Remedy string }
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Details) != 1 {
		t.Errorf("%s: %d %s", what, status, body)
		return
	}
	if d := e.Details[0].Debug; status != wantStatus || d.Reason != want || d.Remedy == "" {
		t.Errorf("%s: status %d reason %s remedy %q, want %d %s", what, status, d.Reason, d.Remedy, wantStatus, want)
	}
}

// The refusal comes in the caller's protocol, streams included.
func TestRefusalsInEveryProtocol(t *testing.T) {
	k := start(t)
	for name, opts := range map[string][]connect.ClientOption{
		"connect": nil, "json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := k.as("wrong", opts...).executions.GetExecution(t.Context(), get("x"))
			if p := problem.Of(err); connect.CodeOf(err) != connect.CodeUnauthenticated || p.GetReason() != problem.Unauthenticated {
				t.Errorf("unary: %v, %v", err, p)
			}
			stream, err := k.as("wrong", opts...).executions.FollowExecutionLogs(t.Context(),
				connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{}))
			if err == nil {
				if stream.Receive() {
					t.Error("a message without a token")
				}
				err = stream.Err()
				_ = stream.Close()
			}
			if p := problem.Of(err); p.GetReason() != problem.Unauthenticated {
				t.Errorf("stream: %v, %v", err, p)
			}
		})
	}
	res, err := k.http1.Post(k.url+procedures()[0], "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.Header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("headers %v", res.Header)
	}
}

func TestUnknownPathsAreRefused(t *testing.T) {
	k := start(t)
	agent := k.token("agent", "ann")
	for _, path := range []string{"/skerry.v1.RunnerControlService/Attach", "/skerry.v1.ExecutionService/Nope", "/", "/metrics",
		"//skerry.v1.TokenService/CreateToken", "/skerry.v1.TokenService/CreateToken/"} {
		if status, _ := k.post(path, "", "{}"); status != http.StatusUnauthorized {
			t.Errorf("%s without token: %d", path, status)
		}
		if status, body := k.post(path, agent, "{}"); status < 400 || status == 401 {
			t.Errorf("%s with token: %d %s", path, status, body)
		}
	}
}

func TestHealthNeedsNoToken(t *testing.T) {
	k := start(t)
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n"} {
		if status, body := k.post(path, "", ""); status != 200 || body != want {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	if !k.Ready() {
		t.Error("not ready")
	}
}

func FuzzParseSecret(f *testing.F) {
	f.Add("sk_0_" + strings.Repeat("a", 64))
	f.Add("sk__")
	f.Fuzz(func(t *testing.T, text string) {
		id, hash, ok := parseSecret(text)
		if !ok && (id != "" || hash != [32]byte{}) {
			t.Errorf("a refused secret gave %q", id)
		}
		if ok && !strings.HasPrefix(id, "tk_") {
			t.Errorf("id %q", id)
		}
	})
}
