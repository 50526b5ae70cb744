package coordinator

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (k *cluster) listRunners(token string) map[string]*skerryv1.Runner {
	k.t.Helper()
	list := must[skerryv1.ListRunnersResponse](k.t)(k.as(token).runners.ListRunners(k.t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{})))
	out := map[string]*skerryv1.Runner{}
	for _, r := range list.GetRunners() {
		out[r.GetName()] = r
	}
	return out
}

func TestRunnerComesAndGoes(t *testing.T) {
	k := start(t)
	ann := k.token("agent", "ann")
	r := newNamed("r1")
	r.Info.Labels = map[string]string{"zone": "a"}
	r.Info.Running = 3
	stop := k.run(r)
	got := k.listRunners(ann)["r1"]
	if got.GetState() != "up" || got.GetNumber() != 1 || got.GetLabels()["zone"] != "a" || got.GetSlots() != 2 || got.GetRunning() != 3 ||
		time.Since(got.GetLastSeen().AsTime()) > time.Minute {
		t.Errorf("up: %v", got)
	}
	r.Report(&skerryv1.WatchWorkspacesResponse{Running: 1, Queued: 7})
	k.until("load reported", func() bool { return k.listRunners(ann)["r1"].GetQueued() == 7 })
	stop()
	k.until("r1 down", func() bool { return k.state.Read().Runner("r1").GetState() == "down" })
	if got := k.listRunners(ann)["r1"]; got.GetState() != "down" || got.GetRunning() != 0 || got.GetLastSeen() == nil {
		t.Errorf("down: %v", got)
	}
	applied := k.node.raft.LastIndex()
	k.run(r)
	// Only the token for this second run and the change of state: nothing that is known already.
	if got := k.node.raft.LastIndex() - applied; got != 2 {
		t.Errorf("%d log entries for a runner that came back unchanged", got)
	}
	if got := k.listRunners(ann)["r1"]; got.GetNumber() != 1 || got.GetState() != "up" {
		t.Errorf("again: %v", got)
	}
}

// A runner that dials again within the grace never counts as down in the log.
func TestShortBreakIsNotCommitted(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.RunnerGrace = DefaultConfig().RunnerGrace
	k := startWith(t, cfg)
	r := k.runner("r1")
	applied := k.node.raft.LastIndex()
	_ = k.links.get("r1").conn.Close()
	k.until("second link", func() bool { return r.Attached() == 2 && k.links.get("r1") != nil })
	if got := k.node.raft.LastIndex(); got != applied {
		t.Errorf("%d log entries for a break", got-applied)
	}
}

func TestNewLinkReplacesOld(t *testing.T) {
	k := start(t)
	k.runner("r1")
	old := k.links.get("r1")
	// A second daemon under the same name, as after a half-dead connection.
	second := newNamed("r1")
	token := k.token("runner", "r1")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	conn, _, err := link.Dial(ctx, link.DialConfig{Endpoint: k.url, Token: token, Name: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- link.Serve(ctx, conn, second.Handler(ctx)) }()
	<-old.conn.Done()
	k.until("new link", func() bool { l := k.links.get("r1"); return l != nil && l != old })
	if k.RunnersUp() != 1 {
		t.Errorf("%d links", k.RunnersUp())
	}
	cancel()
	if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
		t.Logf("second runner: %v", err) // the first one may have taken its place back
	}
}

func TestLinkRefusals(t *testing.T) {
	k := start(t)
	runner, agent := k.token("runner", "r1"), k.token("agent", "ann")
	tests := []struct {
		name, token, runner string
		status              int
	}{
		{"no token", "", "r1", 401},
		{"agent's token", agent, "ann", 403},
		{"another runner's name", runner, "r2", 403},
		{"no name", runner, "", 403},
	}
	for _, tt := range tests {
		_, _, err := link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Token: tt.token, Name: tt.runner})
		var status *link.StatusError
		if !errors.As(err, &status) || status.Status != tt.status || status.Message == "" {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	req, _ := http.NewRequest(http.MethodGet, k.url+link.Path, nil)
	req.Header.Set(link.HeaderRunner, "r1")
	res, err := bearer{k.http1, runner}.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != 400 {
		t.Errorf("no upgrade: %d", res.StatusCode)
	}
	if len(k.state.Read().Runners()) != 0 {
		t.Errorf("a refused link registered %v", k.state.Read().Runners())
	}
}

// A runner that answers Attach with another name, or floods the state, gets no link.
func TestAttachIsChecked(t *testing.T) {
	k := start(t)
	big := map[string]string{}
	for i := range 65 {
		big[string(rune('A'+i))] = ""
	}
	for name, info := range map[string]*skerryv1.Runner{
		"name":   {Name: "other"},
		"labels": {Name: "r1", Labels: big},
		"text":   {Name: "r1", Version: string(make([]byte, 300))},
	} {
		t.Run(name, func(t *testing.T) {
			r := newNamed("r1")
			r.Info = info
			conn, _, err := link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Token: k.token("runner", "r1"), Name: "r1"})
			if err != nil {
				t.Fatal(err)
			}
			if err := link.Serve(t.Context(), conn, r.Handler(t.Context())); err == nil {
				t.Error("link was kept")
			}
			if k.RunnersUp() != 0 {
				t.Error("runner is up")
			}
		})
	}
}

func TestRevokedTokenCutsLink(t *testing.T) {
	k := start(t)
	admin := k.as(k.token("admin", "root"))
	k.runner("r1")
	live := k.links.get("r1")
	must[skerryv1.RevokeTokenResponse](t)(admin.tokens.RevokeToken(t.Context(),
		connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: live.tokenID})))
	<-live.conn.Done()
	k.until("r1 down", func() bool { return k.state.Read().Runner("r1").GetState() == "down" })
}

func TestExpiredTokenEndsLink(t *testing.T) {
	k := start(t)
	secret, _, err := k.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Role: "runner", Subject: "r1", ExpiresS: 1})
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Token: secret, Name: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := link.Serve(t.Context(), conn, newNamed("r1").Handler(t.Context())); err == nil {
		t.Error("link outlived its token")
	}
}

func TestHeadsAreCommittedOnce(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	id := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true"))).GetExecution().GetWorkspace()
	state := func(seq uint64, epoch uint64, digest, state string) *skerryv1.Workspace {
		return &skerryv1.Workspace{Id: id, Epoch: epoch, State: state, Detail: "d",
			Head: &skerryv1.Snapshot{Seq: seq, Digest: digest, Commit: "c" + digest, Parent: "p"}}
	}
	report := func(list ...*skerryv1.Workspace) { r.Report(&skerryv1.WatchWorkspacesResponse{Workspaces: list}) }
	head := func() *skerryv1.Workspace {
		list := must[skerryv1.ListWorkspacesResponse](t)(ann.workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{})))
		if len(list.GetWorkspaces()) != 1 {
			t.Fatalf("workspaces %v", list)
		}
		return list.GetWorkspaces()[0]
	}
	if ws := head(); ws.GetHead() != nil || ws.GetState() != "ready" || ws.GetRunner() != "r1" {
		t.Errorf("before any commit: %v", ws)
	}
	report(state(1, 1, "d1", "ready"))
	k.until("first head", func() bool { return head().GetHead().GetDigest() == "d1" })
	applied := k.node.raft.LastIndex()
	// Repeats, stale and forged ones, and one for a workspace that is not this runner's.
	report(state(1, 1, "d1", "ready"), state(0, 1, "d0", "ready"), state(9, 2, "d9", "ready"), &skerryv1.Workspace{Id: "ws_x", Epoch: 1})
	report(state(2, 1, "d2", "needs_repair"))
	k.until("second head", func() bool { return head().GetHead().GetDigest() == "d2" })
	if ws := head(); ws.GetState() != "needs_repair" || ws.GetDetail() != "d" || ws.GetHead().GetParent() != "p" || ws.GetHead().GetSeq() != 2 {
		t.Errorf("head %v", ws)
	}
	if got := k.node.raft.LastIndex() - applied; got != 1 {
		t.Errorf("%d log entries, want 1", got)
	}
	// A link that comes anew reports everything again, which is no news.
	_ = k.links.get("r1").conn.Close()
	k.until("second link", func() bool { return r.Attached() == 2 && k.links.get("r1") != nil })
	report(state(3, 1, "d3", "ready"))
	k.until("third head", func() bool { return head().GetHead().GetDigest() == "d3" })
}

// What was up before a restart and does not come back is marked down.
func TestRestartExpectsRunners(t *testing.T) {
	cfg := testConfig(t.TempDir())
	k := startWith(t, cfg)
	stop := k.run(newNamed("r1"))
	k.stop()
	stop()
	again := startWith(t, cfg)
	if got := again.state.Read().Runner("r1").GetState(); got != "up" {
		t.Errorf("right after the restart: %s", got)
	}
	again.links.mu.Lock()
	pending := len(again.links.grace)
	again.links.mu.Unlock()
	if pending != 1 {
		t.Errorf("%d runners expected", pending)
	}
	again.markDown("r1") // what the timer does
	if got := again.state.Read().Runner("r1").GetState(); got != "down" {
		t.Errorf("afterwards: %s", got)
	}
}
