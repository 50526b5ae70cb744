package coordinator

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// A cell of the matrix says how another agent tries to get at something of
// annabel's by one call, and what it must get. Every call needs a cell.
type cell struct {
	// body is the request as JSON, the first message of a stream; $WS, $EX, $TIMER,
	// $TOKEN and $RUNNER stand for annabel's things.
	body string
	// want is the reason of the refusal; "": the call succeeds, and nothing of
	// annabel's is in the answer.
	want string
	// named is a body that names a runner, for tokens that are not for it.
	named string
	// endless: a stream that goes on; what came at once is looked at.
	endless bool
}

const (
	byWorkspace = `{"workspace":{"id":"$WS"}}`
	byExecution = `{"executionId":"$EX"}`
	onRunner    = `{"workspace":{"runner":"$RUNNER"}}`
)

var (
	// forbidden calls are for other roles.
	forbidden = cell{body: `{}`, want: problem.PermissionDenied}
	// withToken calls take a join token or a certificate instead.
	withToken = cell{body: `{}`}
)

var matrix = map[string]cell{
	"AgentService/ArchiveAgent":              {body: `{"agent":"annabel"}`, want: problem.PermissionDenied},
	"AgentService/ListAgents":                {body: `{}`},
	"ClusterService/AnnounceMember":          forbidden,
	"ClusterService/GetClusterStatus":        forbidden,
	"ClusterService/ListMembers":             forbidden,
	"ClusterService/RemoveMember":            forbidden,
	"ClusterService/RestoreSnapshot":         forbidden,
	"ClusterService/SaveSnapshot":            forbidden,
	"ClusterService/TransferLeadership":      forbidden,
	"ExecutionService/CancelExecution":       {body: byExecution, want: problem.NotFound},
	"ExecutionService/FollowExecutionLogs":   {body: byExecution, want: problem.NotFound},
	"ExecutionService/GetExecution":          {body: byExecution, want: problem.NotFound},
	"ExecutionService/ListExecutions":        {body: `{"limit":200}`, named: `{"runner":"$RUNNER"}`},
	"ExecutionService/PortForward":           {body: `{"executionId":"$EX","port":80}`, want: problem.NotFound},
	"ExecutionService/ReadExecutionLogs":     {body: byExecution, want: problem.NotFound},
	"ExecutionService/ResizeTerminal":        {body: `{"executionId":"$EX","rows":1,"cols":1}`, want: problem.NotFound},
	"ExecutionService/RunCommand":            {body: `{"program":"true"}`, named: `{"program":"true","options":{"runner":"$RUNNER"}}`},
	"ExecutionService/RunShell":              {body: `{"command":"true"}`, named: `{"command":"true","options":{"runner":"$RUNNER"}}`},
	"ExecutionService/WriteInput":            {body: byExecution, want: problem.NotFound},
	"FileService/DeleteFile":                 {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"FileService/DownloadFile":               {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"FileService/FileHistory":                {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"FileService/ListFiles":                  {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"FileService/ReadFile":                   {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"FileService/UploadFile":                 {body: `{"header":` + byWorkspace + `}`, want: problem.NotFound, named: `{"header":` + onRunner + `}`},
	"FileService/WriteFile":                  {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"InboxService/ReadInbox":                 {body: `{}`},
	"InboxService/WatchInbox":                {body: `{}`, endless: true},
	"JoinService/CreateJoinToken":            forbidden,
	"JoinService/DenyMember":                 forbidden,
	"JoinService/GetAuthority":               forbidden,
	"JoinService/Join":                       withToken,
	"JoinService/ListJoinTokens":             forbidden,
	"JoinService/Renew":                      withToken,
	"JoinService/RevokeJoinToken":            forbidden,
	"JoinService/RotateAuthority":            forbidden,
	"MemberService/GetMemberStats":           forbidden,
	"RunnerService/CordonRunner":             {body: `{"runner":"$RUNNER"}`, want: problem.PermissionDenied},
	"RunnerService/DrainRunner":              {body: `{"runner":"$RUNNER"}`, want: problem.PermissionDenied},
	"RunnerService/ExplainPlacement":         {body: `{"agent":"annabel"}`, want: problem.NotFound},
	"RunnerService/ListRunners":              {body: `{}`},
	"RunnerService/RemoveRunner":             {body: `{"runner":"$RUNNER","force":true}`, want: problem.PermissionDenied},
	"RunnerService/UncordonRunner":           {body: `{"runner":"$RUNNER"}`, want: problem.PermissionDenied},
	"TimerService/CancelTimer":               {body: `{"timerId":"$TIMER"}`, want: problem.NotFound},
	"TimerService/CreateTimer":               {body: `{"afterMs":"1000","message":"m","executionId":"$EX"}`, want: problem.NotFound},
	"TimerService/ListTimers":                {body: `{}`},
	"TokenService/CreateToken":               {body: `{"subject":"annabel"}`, want: problem.PermissionDenied},
	"TokenService/ListTokens":                {body: `{}`},
	"TokenService/RevokeToken":               {body: `{"tokenId":"$TOKEN"}`, want: problem.NotFound},
	"TransferService/CancelTransfer":         {body: `{"transferId":"$TR"}`, want: problem.NotFound},
	"TransferService/GetTransfer":            {body: `{"transferId":"$TR"}`, want: problem.NotFound},
	"TransferService/ListTransferWorkspaces": {body: `{}`},
	"TransferService/ListTransfers":          {body: `{}`},
	"TransferService/StartTransfer":          {body: `{"source":"$WS","target":"$WS","mappings":[{"source":"a","target":"b"}]}`, want: problem.NotFound},
	"WorkspaceService/ListBranches":          {body: `{"workspace":"$WS"}`, want: problem.NotFound},
	"WorkspaceService/ReassignWorkspace":     {body: `{"workspace":"$WS"}`, want: problem.PermissionDenied},
	"WorkspaceService/SetReplication": {body: `{"workspace":"$WS","policy":"none"}`, want: problem.NotFound,
		named: `{"workspace":"$NEAR","policy":"on_commit","target":"$RUNNER"}`},
	"WorkspaceService/Diff":             {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"WorkspaceService/History":          {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"WorkspaceService/ListWorkspaces":   {body: `{"descendants":true}`},
	"WorkspaceService/RepairWorkspace":  {body: byWorkspace, want: problem.NotFound, named: onRunner},
	"WorkspaceService/RestoreWorkspace": {body: byWorkspace, want: problem.NotFound, named: onRunner},
}

// estate is what annabel has: on the runner "far", and on "near" too.
type estate struct {
	*cluster
	secret string
	// things are annabel's ids by their names in cells.
	things map[string]string
}

func newEstate(t *testing.T) *estate {
	k := start(t)
	k.runner("near")
	k.runner("far")
	secret, token, err := k.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Subject: "annabel"})
	if err != nil {
		t.Fatal(err)
	}
	annabel := k.as(secret)
	must[skerryv1.RunShellResponse](t)(annabel.executions.RunShell(t.Context(), shellOn("near", "")))
	ex := must[skerryv1.RunShellResponse](t)(annabel.executions.RunShell(t.Context(), shellOn("far", ""))).GetExecution()
	timer := must[skerryv1.CreateTimerResponse](t)(annabel.timers.CreateTimer(t.Context(),
		connect.NewRequest(&skerryv1.CreateTimerRequest{AfterMs: 3_600_000, Message: "for annabel"}))).GetTimer()
	transfer := ids.New(ids.Transfer, 0, time.Now()).String()
	ws := k.state.Read().WorkspaceOf("annabel", "far")
	if _, err := k.node.apply(t.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_CreateTransfer{CreateTransfer: &raftlogv1.CreateTransfer{
		Transfer: &raftlogv1.Transfer{Id: transfer, Agent: "annabel", Source: ws.GetId(), Target: ws.GetId(), SourceRunner: "far", TargetRunner: "far"}}}}); err != nil {
		t.Fatal(err)
	}
	return &estate{cluster: k, secret: secret, things: map[string]string{
		"$WS": k.state.Read().WorkspaceOf("annabel", "far").GetId(), "$EX": ex.GetId(), "$TIMER": timer.GetId(), "$TOKEN": token.GetId(), "$RUNNER": "far", "$TR": transfer,
		"$NEAR": k.state.Read().WorkspaceOf("annabel", "near").GetId(),
	}}
}

func (e *estate) fill(body string) string {
	for name, id := range e.things {
		body = strings.ReplaceAll(body, name, id)
	}
	return body
}

// clean reports a thing of annabel's that is in an answer.
func (e *estate) clean(answer string) (leak string) {
	for name, id := range e.things {
		if name != "$RUNNER" && strings.Contains(answer, id) {
			return name
		}
	}
	if strings.Contains(answer, "annabel") {
		return "annabel"
	}
	return ""
}

// call makes any call as JSON, streams included, and gives the reason of its
// refusal and all that was answered.
func (e *estate) call(procedure, token, body string, limit time.Duration) (reason, answer string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), limit)
	defer cancel()
	method := methods()[procedure]
	streams := method.IsStreamingClient() || method.IsStreamingServer()
	kind, payload, client := "application/json", []byte(body), e.http1
	if streams {
		kind, client = "application/connect+json", e.h2
		payload = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+procedure, bytes.NewReader(payload))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	res, err := bearer{client, token}.Do(req)
	if err != nil {
		e.t.Fatalf("%s: %v", procedure, err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		e.t.Fatalf("%s: %v", procedure, err)
	}
	if !streams || len(data) < 5 || res.StatusCode != http.StatusOK {
		return reasonOf(data), string(data)
	}
	return lastReason(data), string(data)
}

// lastReason reads the envelope that ends a stream.
func lastReason(data []byte) string {
	for len(data) >= 5 {
		size := binary.BigEndian.Uint32(data[1:])
		if data[0]&2 != 0 {
			var end struct{ Error json.RawMessage }
			_ = json.Unmarshal(data[5:], &end)
			return reasonOf(end.Error)
		}
		data = data[5+size:]
	}
	return ""
}

func reasonOf(data []byte) string {
	var e struct {
		Details []struct{ Debug struct{ Reason string } }
	}
	_ = json.Unmarshal(data, &e)
	if len(e.Details) == 0 {
		return ""
	}
	return e.Details[0].Debug.Reason
}

// methods are all calls of the API by their paths.
func methods() map[string]protoreflect.MethodDescriptor {
	out := make(map[string]protoreflect.MethodDescriptor)
	protoregistry.GlobalFiles.RangeFilesByPackage("skerry.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				if !slices.Contains(internal, service.FullName()) {
					out["/"+string(service.FullName())+"/"+string(m.Name())] = m
				}
			}
		}
		return true
	})
	return out
}

const (
	callLimit    = 10 * time.Second
	endlessLimit = 500 * time.Millisecond
)

func (c cell) limit() time.Duration {
	if c.endless {
		return endlessLimit
	}
	return callLimit
}

func TestEveryCallIsInTheMatrix(t *testing.T) {
	for _, procedure := range procedures() {
		if _, ok := matrix[methodLabel(procedure)]; !ok {
			t.Errorf("%s has no cell: how does another agent try it, and what must it get?", methodLabel(procedure))
		}
	}
	for name := range matrix {
		if methods()["/skerry.v1."+name] == nil {
			t.Errorf("cell for %s, which is no call", name)
		}
	}
}

// Another agent's token sees, reads, changes and times nothing of annabel's.
func TestMatrixOfOtherAgents(t *testing.T) {
	e := newEstate(t)
	bob := e.token("agent", "bob")
	// A child does not see its parent's either.
	child, _, err := e.CreateToken(withIdentity(t.Context(), e.identityOf(e.secret)), &skerryv1.CreateTokenRequest{Subject: "child"})
	if err != nil {
		t.Fatal(err)
	}
	// Both work where annabel does: there the runner alone can tell whose it is.
	for _, token := range []string{bob, child} {
		must[skerryv1.RunShellResponse](t)(e.as(token).executions.RunShell(t.Context(), shellOn("far", "")))
	}
	for _, procedure := range procedures() {
		c := matrix[methodLabel(procedure)]
		for who, token := range map[string]string{"bob": bob, "child": child} {
			body := e.fill(c.body)
			reason, answer := e.call(procedure, token, body, c.limit())
			switch {
			case rules[procedure].open:
				if reason == "" {
					t.Errorf("%s as %s: %s", procedure, who, answer)
				}
			case reason != c.want:
				t.Errorf("%s as %s: reason %q, want %q: %s", procedure, who, reason, c.want, answer)
			}
			// What the caller named itself is no leak, nor is its own parent's name.
			if leak := e.clean(answer); leak != "" && c.want == "" && !(who == "child" && leak == "annabel") {
				t.Errorf("%s as %s gives away %s: %s", procedure, who, leak, answer)
			}
		}
	}
	if e.state.Read().Timer(e.things["$TIMER"]) == nil || e.state.Read().Token(e.things["$TOKEN"]).GetRevoked() != nil {
		t.Error("something of annabel's is gone")
	}
}

// A token that lacks a permission makes none of the calls that need it.
func TestMatrixOfPermissions(t *testing.T) {
	e := newEstate(t)
	for _, permission := range permissions {
		var others []string
		for _, p := range permissions {
			if p != permission {
				others = append(others, p)
			}
		}
		secret, _, err := e.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Subject: "annabel", Permissions: others})
		if err != nil {
			t.Fatal(err)
		}
		for procedure, rule := range rules {
			if procedure == link.Path || !slices.Contains(rule.roles, skerryv1.RoleAgent) {
				continue
			}
			want := ""
			if rule.needs == permission {
				want = problem.PermissionDenied
			}
			status, body := e.post(procedure, secret, `{"malformed`)
			checkRefusal(t, procedure+" without "+permission, status, body, want)
		}
	}
}

// A token for one runner gets nowhere on another, by name or by id.
func TestMatrixOfRunners(t *testing.T) {
	e := newEstate(t)
	scoped, _, err := e.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Subject: "annabel", Runners: []string{"nea*"}})
	if err != nil {
		t.Fatal(err)
	}
	byID := []string{"$WS", "$EX", "$TR"}
	for _, procedure := range procedures() {
		c := matrix[methodLabel(procedure)]
		if c.named != "" {
			if reason, answer := e.call(procedure, scoped, e.fill(c.named), callLimit); reason != problem.PermissionDenied {
				t.Errorf("%s on a runner by name: %q: %s", procedure, reason, answer)
			}
			if reason, answer := e.call(procedure, scoped, e.fill(strings.ReplaceAll(c.named, "$RUNNER", "nowhere")), callLimit); reason != problem.PermissionDenied {
				t.Errorf("%s on a runner that does not exist: %q: %s", procedure, reason, answer)
			}
		}
		if slices.ContainsFunc(byID, func(name string) bool { return strings.Contains(c.body, name) }) && slices.Contains(rules[procedure].roles, skerryv1.RoleAgent) {
			if reason, answer := e.call(procedure, scoped, e.fill(c.body), callLimit); reason != problem.NotFound {
				t.Errorf("%s by id: %q: %s", procedure, reason, answer)
			}
		}
		if c.want == "" && !rules[procedure].open {
			reason, answer := e.call(procedure, scoped, e.fill(c.body), c.limit())
			if reason != "" || strings.Contains(answer, e.things["$WS"]) || strings.Contains(answer, e.things["$EX"]) || strings.Contains(answer, `"far"`) && strings.Contains(procedure, "Runner") {
				t.Errorf("%s in scope: %q: %s", procedure, reason, answer)
			}
		}
	}
	// The agent's default runner is "near"; a token that is not for it goes where
	// the agent has a workspace.
	other, _, err := e.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Subject: "annabel", Runners: []string{"far"}})
	if err != nil {
		t.Fatal(err)
	}
	if ex := must[skerryv1.RunShellResponse](t)(e.as(other).executions.RunShell(t.Context(), shell("true"))).GetExecution(); ex.GetWorkspace() != e.things["$WS"] {
		t.Errorf("ran in %s", ex.GetWorkspace())
	}
}

// identityOf is who calls with a token.
func (k *cluster) identityOf(secret string) identity {
	k.t.Helper()
	id, refusal := k.authenticate(&http.Request{Header: http.Header{"Authorization": {"Bearer " + secret}}}, time.Now())
	if refusal != nil {
		k.t.Fatal(refusal)
	}
	return id
}

// Workspaces of all agents are for admins alone.
func TestOnlyAdminsListWorkspacesOfAll(t *testing.T) {
	e := newEstate(t)
	procedure := "/skerry.v1.WorkspaceService/ListWorkspaces"
	if reason, answer := e.call(procedure, e.token("agent", "bob"), `{"all":true}`, callLimit); reason != problem.PermissionDenied || e.clean(answer) != "" {
		t.Errorf("bob gets %q: %s", reason, answer)
	}
	var got []string
	admin := e.as(e.token("admin", "root"))
	for token, pages := "", 0; pages < 5; pages++ {
		res := must[skerryv1.ListWorkspacesResponse](t)(admin.workspaces.ListWorkspaces(t.Context(),
			connect.NewRequest(&skerryv1.ListWorkspacesRequest{All: true, Limit: 1, PageToken: token})))
		for _, ws := range res.GetWorkspaces() {
			got = append(got, ws.GetAgent()+" on "+ws.GetRunner())
		}
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"annabel on far", "annabel on near"}) {
		t.Errorf("an admin sees %q", got)
	}
	res := must[skerryv1.ListWorkspacesResponse](t)(admin.workspaces.ListWorkspaces(t.Context(),
		connect.NewRequest(&skerryv1.ListWorkspacesRequest{All: true, Runner: "far"})))
	if len(res.GetWorkspaces()) != 1 || res.GetWorkspaces()[0].GetId() != e.things["$WS"] {
		t.Errorf("on far: %v", res)
	}
}
