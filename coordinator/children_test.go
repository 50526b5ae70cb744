package coordinator

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func createToken(req *skerryv1.CreateTokenRequest) *connect.Request[skerryv1.CreateTokenRequest] {
	return connect.NewRequest(req)
}

// A parent makes a child, lists its workspaces, reads its files, looks at and
// cancels its executions; the child gets at nothing of the parent's.
func TestParentsReachTheirChildren(t *testing.T) {
	k := start(t)
	k.runner("r1")
	parent := k.as(k.token("agent", "ann"))
	made := must[skerryv1.CreateTokenResponse](t)(parent.tokens.CreateToken(t.Context(), createToken(&skerryv1.CreateTokenRequest{Subject: "kid", Permissions: []string{"shell"}})))
	kid := k.as(made.GetSecret())
	grandMade := must[skerryv1.CreateTokenResponse](t)(kid.tokens.CreateToken(t.Context(), createToken(&skerryv1.CreateTokenRequest{Subject: "grandkid"})))
	grand := k.as(grandMade.GetSecret())
	own := must[skerryv1.RunShellResponse](t)(parent.executions.RunShell(t.Context(), shell("true"))).GetExecution()
	must[skerryv1.RunShellResponse](t)(kid.executions.RunShell(t.Context(), shell("true")))
	ex := must[skerryv1.RunShellResponse](t)(grand.executions.RunShell(t.Context(), shell("true"))).GetExecution()

	list := must[skerryv1.ListWorkspacesResponse](t)(parent.workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{Descendants: true})))
	if len(list.GetWorkspaces()) != 3 {
		t.Errorf("workspaces %v", list)
	}
	if alone := must[skerryv1.ListWorkspacesResponse](t)(parent.workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))); len(alone.GetWorkspaces()) != 1 {
		t.Errorf("own workspaces %v", alone)
	}
	got := must[skerryv1.GetExecutionResponse](t)(parent.executions.GetExecution(t.Context(), get(ex.GetId()))).GetExecution()
	if got.GetAgent() != "grandkid" || got.GetId() != ex.GetId() {
		t.Errorf("the grandchild's execution: %v", got)
	}
	must[skerryv1.CancelExecutionResponse](t)(parent.executions.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: ex.GetId()})))
	if got := must[skerryv1.GetExecutionResponse](t)(parent.executions.GetExecution(t.Context(), get(own.GetId()))).GetExecution(); got.GetAgent() != "ann" {
		t.Errorf("its own: %v", got)
	}
	files := must[skerryv1.ListFilesResponse](t)(parent.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Workspace: &skerryv1.WorkspaceSelector{Id: ex.GetWorkspace()}})))
	if files.GetSnapshot() != ex.GetWorkspace() {
		t.Errorf("files %v", files)
	}
	if _, err := parent.executions.WriteInput(t.Context(), connect.NewRequest(&skerryv1.WriteInputRequest{ExecutionId: ex.GetId()})); problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("typing into the child's execution: %v", err)
	}
	for name, child := range map[string]api{"kid": kid, "grandkid": grand} {
		if _, err := child.executions.GetExecution(t.Context(), get(own.GetId())); problem.Of(err).GetReason() != problem.NotFound {
			t.Errorf("%s sees its ancestor's: %v", name, err)
		}
		if _, err := child.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{Workspace: &skerryv1.WorkspaceSelector{Id: own.GetWorkspace()}})); problem.Of(err).GetReason() != problem.NotFound {
			t.Errorf("%s reads its ancestor's: %v", name, err)
		}
	}
	agents := must[skerryv1.ListAgentsResponse](t)(kid.agents.ListAgents(t.Context(), connect.NewRequest(&skerryv1.ListAgentsRequest{})))
	if len(agents.GetAgents()) != 2 || agents.GetAgents()[0].GetName() != "kid" {
		t.Errorf("agents %v", agents)
	}
}

func TestWhoSeesWhichTokens(t *testing.T) {
	k := start(t)
	admin := k.as(k.token("admin", "root"))
	root := k.token("agent", "ann")
	second := k.token("agent", "ann")
	k.token("agent", "bob")
	mint := func(by api, subject string) (string, api) {
		made := must[skerryv1.CreateTokenResponse](t)(by.tokens.CreateToken(t.Context(), createToken(&skerryv1.CreateTokenRequest{Subject: subject})))
		return made.GetToken().GetId(), k.as(made.GetSecret())
	}
	narrow, asNarrow := mint(k.as(root), "ann")
	kid, asKid := mint(asNarrow, "kid")
	tests := map[string]struct {
		as   api
		sees []string
	}{
		"admin":                {admin, []string{idOf(root), idOf(second), narrow, kid}},
		"first":                {k.as(root), []string{idOf(root), idOf(second), narrow, kid}},
		"another of the agent": {k.as(second), []string{idOf(root), idOf(second), narrow, kid}},
		"made by a token":      {asNarrow, []string{narrow, kid}},
		"child":                {asKid, []string{kid}},
	}
	for name, tt := range tests {
		seen := map[string]bool{}
		for _, tok := range must[skerryv1.ListTokensResponse](t)(tt.as.tokens.ListTokens(t.Context(), connect.NewRequest(&skerryv1.ListTokensRequest{}))).GetTokens() {
			seen[tok.GetId()] = true
		}
		for _, id := range tt.sees {
			if !seen[id] {
				t.Errorf("%s does not see %s", name, id)
			}
		}
		if name != "admin" && len(seen) != len(tt.sees) {
			t.Errorf("%s sees %v", name, seen)
		}
	}
	revoke := func(as api, id string) error {
		_, err := as.tokens.RevokeToken(t.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: id}))
		return err
	}
	for _, id := range []string{idOf(root), narrow} {
		if err := revoke(asKid, id); problem.Of(err).GetReason() != problem.NotFound {
			t.Errorf("a child revokes %s: %v", id, err)
		}
	}
	if err := revoke(k.as(second), narrow); err != nil {
		t.Fatal(err)
	}
	if _, err := asKid.inbox.ReadInbox(t.Context(), connect.NewRequest(&skerryv1.ReadInboxRequest{})); problem.Of(err).GetReason() != problem.Unauthenticated {
		t.Errorf("the token of a revoked one's child: %v", err)
	}
}

func TestAgentsMintOnlyNarrowTokens(t *testing.T) {
	k := start(t)
	secret, _, err := k.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Subject: "ann", Permissions: []string{"shell"}, Runners: []string{"a*"}, ExpiresS: 3600})
	if err != nil {
		t.Fatal(err)
	}
	k.token("agent", "bob")
	ann := k.as(secret)
	tests := []struct {
		req           *skerryv1.CreateTokenRequest
		field, reason string
	}{
		{&skerryv1.CreateTokenRequest{Subject: "ann", Role: "admin"}, "role", problem.PermissionDenied},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Role: "runner"}, "role", problem.PermissionDenied},
		{&skerryv1.CreateTokenRequest{Subject: "bob"}, "subject", problem.PermissionDenied},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Parent: "bob"}, "parent", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Permissions: []string{"shell", "npu"}}, "permissions[1]", problem.PermissionDenied},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Permissions: []string{"root"}}, "permissions[0]", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Runners: []string{"b"}}, "runners[0]", problem.PermissionDenied},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Runners: []string{"A B"}}, "runners[0]", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Runners: make([]string, 65)}, "runners", problem.LimitExceeded},
		{&skerryv1.CreateTokenRequest{Subject: "ann", ExpiresS: 7200}, "expiresS", problem.PermissionDenied},
		{&skerryv1.CreateTokenRequest{Subject: "ann", NetworkPolicies: []string{"pypi"}}, "networkPolicies[0]", problem.PermissionDenied},
	}
	for _, tt := range tests {
		_, err := ann.tokens.CreateToken(t.Context(), createToken(tt.req))
		if p := problem.Of(err); p.GetField() != tt.field || p.GetReason() != tt.reason {
			t.Errorf("%v: %v, %v", tt.req, err, p)
		}
	}
	made := must[skerryv1.CreateTokenResponse](t)(ann.tokens.CreateToken(t.Context(), createToken(&skerryv1.CreateTokenRequest{Subject: "kid", Runners: []string{"ab"}})))
	if tok := made.GetToken(); tok.GetExpires() == nil || tok.GetExpires().AsTime().After(time.Now().Add(time.Hour)) || len(tok.GetPermissions()) != 1 {
		t.Errorf("token %v", tok)
	}
}

func TestArchivedAgents(t *testing.T) {
	k := start(t)
	admin, ann := k.as(k.token("admin", "root")), k.as(k.token("agent", "ann"))
	must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), connect.NewRequest(&skerryv1.CreateTimerRequest{AfterMs: 3_600_000, Message: "m"})))
	res := must[skerryv1.ArchiveAgentResponse](t)(admin.agents.ArchiveAgent(t.Context(), connect.NewRequest(&skerryv1.ArchiveAgentRequest{Agent: "ann"})))
	if res.GetAgent().GetArchived() == nil || len(k.state.Read().TimersOf("ann")) != 0 {
		t.Errorf("agent %v", res)
	}
	if _, err := ann.timers.ListTimers(t.Context(), connect.NewRequest(&skerryv1.ListTimersRequest{})); problem.Of(err).GetReason() != problem.Unauthenticated {
		t.Errorf("an archived agent calls: %v", err)
	}
	_, err := admin.tokens.CreateToken(t.Context(), createToken(&skerryv1.CreateTokenRequest{Subject: "ann"}))
	if p := problem.Of(err); p.GetReason() != problem.AgentArchived {
		t.Errorf("a new token: %v", err)
	}
	if _, err := admin.agents.ArchiveAgent(t.Context(), connect.NewRequest(&skerryv1.ArchiveAgentRequest{Agent: "nobody"})); problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("nobody: %v", err)
	}
}
