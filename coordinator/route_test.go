package coordinator

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestCallsReachTheAgentsWorkspace(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	req := shell("echo hi")
	// Headers that only a coordinator may set must not get through.
	req.Header().Set(skerryv1.HeaderAgent, "root")
	req.Header().Set(skerryv1.HeaderWorkspace, "ws_forged")
	req.Header().Set(skerryv1.HeaderEpoch, "99")
	ex := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), req)).GetExecution()
	ws := k.state.Read().WorkspaceOf("ann", "r1")
	if ex.GetAgent() != "ann" || ex.GetWorkspace() != ws.GetId() || ws.GetEpoch() != 1 || ex.GetCommand().GetShell() != "echo hi" {
		t.Errorf("execution %v, workspace %v", ex, ws)
	}
	headers := r.Headers()[len(r.Headers())-1]
	for name, want := range map[string]string{skerryv1.HeaderAgent: "ann", skerryv1.HeaderWorkspace: ws.GetId(), skerryv1.HeaderEpoch: "1"} {
		if got := headers.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if headers.Get("Authorization") != "" {
		t.Error("the agent's token reached the runner")
	}
	applied := k.node.raft.LastIndex()
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true")))
	must[skerryv1.GetExecutionResponse](t)(ann.executions.GetExecution(t.Context(), get(ex.GetId())))
	if got := k.node.raft.LastIndex(); got != applied {
		t.Errorf("%d log entries for calls to an assigned workspace", got-applied)
	}
}

// Another agent's execution, an unknown, a malformed one: all are 404 alike.
func TestExecutionsDoNotLeak(t *testing.T) {
	k := start(t)
	k.runner("r1")
	ann, bob, eve := k.token("agent", "ann"), k.token("agent", "bob"), k.token("agent", "eve")
	ex := must[skerryv1.RunShellResponse](t)(k.as(ann).executions.RunShell(t.Context(), shell("true"))).GetExecution()
	must[skerryv1.RunShellResponse](t)(k.as(bob).executions.RunShell(t.Context(), shell("true")))
	parsed, err := ids.Parse(ids.Execution, ex.GetId())
	if err != nil {
		t.Fatal(err)
	}
	unknown := []string{ex.GetId(), ids.New(ids.Execution, parsed.Runner(), time.Now()).String(),
		ids.New(ids.Execution, 77, time.Now()).String(), ids.New(ids.Execution, 0, time.Now()).String(), "", "ex_", "../../x", strings.Repeat("x", 5000)}
	var first string
	for _, id := range unknown {
		for _, secret := range []string{bob, eve} { // eve has no workspace at all
			status, body := k.post("/skerry.v1.ExecutionService/GetExecution", secret, fmt.Sprintf(`{"executionId":%q}`, id))
			if first == "" {
				first = body
			}
			if status != 404 || body != first {
				t.Errorf("%.40q: %d %s", id, status, body)
			}
		}
	}
	if status, body := k.post("/skerry.v1.ExecutionService/GetExecution", ann, fmt.Sprintf(`{"executionId":%q}`, ex.GetId())); status != 200 {
		t.Errorf("own execution: %d %s", status, body)
	}
}

func TestSelectors(t *testing.T) {
	k := start(t)
	k.runner("r1")
	ann, bob := k.as(k.token("agent", "ann")), k.as(k.token("agent", "bob"))
	list := func(a api, id, runner string) (string, error) {
		res, err := a.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{
			Workspace: &skerryv1.WorkspaceSelector{Id: id, Runner: runner}}))
		if err != nil {
			return "", err
		}
		return res.Msg.GetSnapshot(), nil
	}
	mine, err := list(ann, "", "")
	if err != nil {
		t.Fatal(err)
	}
	stopSecond := k.run(newNamed("r2"))
	second, err := list(ann, "", "r2")
	if err != nil || second == mine {
		t.Fatalf("workspace %s on r2, %v", second, err)
	}
	tests := []struct {
		name, id, runner, want string
		who                    api
		reason                 string
	}{
		{"default", "", "", mine, ann, ""},
		{"by id", second, "", second, ann, ""},
		{"both agree", second, "r2", second, ann, ""},
		{"both differ", second, "r1", "", ann, problem.InvalidArgument},
		{"another's", mine, "", "", bob, problem.NotFound},
		{"unknown id", "ws_x", "", "", ann, problem.NotFound},
		{"unknown runner", "", "r9", "", ann, problem.NoRunner},
	}
	for _, tt := range tests {
		got, err := list(tt.who, tt.id, tt.runner)
		if got != tt.want || problem.Of(err).GetReason() != tt.reason {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	_, err = list(ann, "", "r9")
	if p := problem.Of(err); !strings.Contains(p.GetRemedy(), "r1, r2") || p.GetField() != "workspace.runner" {
		t.Errorf("unknown runner: %v", p)
	}
	stopSecond()
	k.until("r2 gone", func() bool { return k.links.get("r2") == nil })
	_, err = list(ann, "", "r2")
	if p := problem.Of(err); p.GetReason() != problem.RunnerUnreachable || !p.GetRetryable() {
		t.Errorf("runner down: %v", err)
	}
	if _, err := list(bob, "", "r2"); problem.Of(err).GetReason() != problem.RunnerUnreachable {
		t.Errorf("no workspace may be made on a runner that is down: %v", err)
	}
}

func TestNoRunner(t *testing.T) {
	k := start(t)
	_, err := k.as(k.token("agent", "ann")).executions.RunShell(t.Context(), shell("true"))
	if p := problem.Of(err); p.GetReason() != problem.NoRunner || !p.GetRetryable() || connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%v, %v", err, p)
	}
}

// Many first calls of one agent at once end in one workspace on one runner.
func TestFirstCallsAtOnceShareOneWorkspace(t *testing.T) {
	k := start(t)
	k.runner("r1")
	k.runner("r2")
	ann := k.as(k.token("agent", "ann"))
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := ann.executions.RunShell(t.Context(), shell("true")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := k.state.Read().WorkspacesOfAgent("ann"); len(got) != 1 {
		t.Errorf("%d workspaces", len(got))
	}
	if len(k.assigns.held) != 0 {
		t.Errorf("%d locks left", len(k.assigns.held))
	}
}

func TestListExecutionsMergesRunners(t *testing.T) {
	k := start(t)
	r1, r2 := k.runner("r1"), newNamed("r2")
	stop := k.run(r2)
	ann := k.as(k.token("agent", "ann"))
	list := func(req *skerryv1.ListExecutionsRequest) (*skerryv1.ListExecutionsResponse, error) {
		res, err := ann.executions.ListExecutions(t.Context(), connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	if got, err := list(&skerryv1.ListExecutionsRequest{}); err != nil || len(got.GetExecutions()) != 0 {
		t.Fatalf("no workspace yet: %v, %v", got, err)
	}
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("r1", "")))
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("r2", "")))
	want := map[string]bool{}
	base := time.Now().Add(-time.Hour)
	for i := range 12 {
		r := r1
		if i%3 == 0 {
			r = r2
		}
		want[r.AddExecution("ann", base.Add(time.Duration(i)*time.Second))] = true
		r.AddExecution("bob", base.Add(time.Duration(i)*time.Second))
	}
	for _, limit := range []uint32{1, 3, 5, 14, 200} {
		got, last, token := map[string]bool{}, "", ""
		for {
			page, err := list(&skerryv1.ListExecutionsRequest{Limit: limit, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, ex := range page.GetExecutions() {
				if ex.GetAgent() != "ann" || last != "" && ex.GetId() >= last {
					t.Fatalf("limit %d: %s of %s after %s", limit, ex.GetId(), ex.GetAgent(), last)
				}
				last = ex.GetId()
				got[last] = true
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if len(got) != 14 {
			t.Errorf("limit %d: %d executions, want 14", limit, len(got))
		}
	}
	if got, err := list(&skerryv1.ListExecutionsRequest{Runner: "r2"}); err != nil || len(got.GetExecutions()) != 5 {
		t.Errorf("one runner: %d, %v", len(got.GetExecutions()), err)
	}
	for _, bad := range []*skerryv1.ListExecutionsRequest{{Limit: 201}, {PageToken: "x"}, {State: "odd"}, {Runner: "r9"}} {
		if _, err := list(bad); problem.Of(err).GetField() == "" {
			t.Errorf("%v: %v", bad, err)
		}
	}
	stop()
	k.until("r2 gone", func() bool { return k.links.get("r2") == nil })
	if _, err := list(&skerryv1.ListExecutionsRequest{}); problem.Of(err).GetReason() != problem.RunnerUnreachable {
		t.Errorf("a runner's executions were left out silently: %v", err)
	}
	if got, err := list(&skerryv1.ListExecutionsRequest{Runner: "r1"}); err != nil || len(got.GetExecutions()) != 9 {
		t.Errorf("the other runner: %v", err)
	}
}

// The runner is told which network policies the caller's token may name; what
// the caller says itself does not count.
func TestCallsTellTheNetworkPolicies(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	admin := k.as(k.token("admin", "root"))
	made := must[skerryv1.CreateTokenResponse](t)(admin.tokens.CreateToken(t.Context(),
		connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "ann", NetworkPolicies: []string{"pypi", "conda"}})))
	if got := strings.Join(made.GetToken().GetNetworkPolicies(), " "); got != "pypi conda" {
		t.Errorf("the token names %s", got)
	}
	for _, c := range []struct {
		client api
		want   string
	}{{k.as(made.GetSecret()), "pypi,conda"}, {k.as(k.token("agent", "ben")), ""}, {admin, "*"}} {
		req := shell("true")
		req.Header().Set(skerryv1.HeaderNetworks, "*")
		must[skerryv1.RunShellResponse](t)(c.client.executions.RunShell(t.Context(), req))
		headers := r.Headers()[len(r.Headers())-1]
		if got := headers.Values(skerryv1.HeaderNetworks); len(got) != 1 || got[0] != c.want {
			t.Errorf("told %q, want %q", got, c.want)
		}
	}
}
