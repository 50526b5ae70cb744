package coordinator

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func drain(req *skerryv1.DrainRunnerRequest) *connect.Request[skerryv1.DrainRunnerRequest] {
	return connect.NewRequest(req)
}

func (k *cluster) schedule(name string) string { return k.state.Read().Runner(name).GetSchedule() }

func TestCordonKeepsNewWorkspacesAway(t *testing.T) {
	k := start(t)
	k.runner("a")
	k.runner("b")
	admin, ann, bob := k.as(k.token("admin", "root")), k.as(k.token("agent", "ann")), k.as(k.token("agent", "bob"))
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true")))
	r := must[skerryv1.CordonRunnerResponse](t)(admin.runners.CordonRunner(t.Context(), connect.NewRequest(&skerryv1.CordonRunnerRequest{Runner: "a", Reason: "disk"}))).GetRunner()
	if r.GetSchedule() != "cordoned" || r.GetScheduleReason() != "disk" {
		t.Errorf("runner %v", r)
	}
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true")))
	if _, err := bob.executions.RunShell(t.Context(), shellOn("a", "")); problem.Of(err).GetReason() != problem.RunnerCordoned {
		t.Errorf("by name: %v", err)
	}
	must[skerryv1.RunShellResponse](t)(bob.executions.RunShell(t.Context(), shell("true")))
	if got := k.state.Read().Agent("bob").GetDefaultRunner(); got != "b" {
		t.Errorf("bob was placed on %q", got)
	}
	must[skerryv1.UncordonRunnerResponse](t)(admin.runners.UncordonRunner(t.Context(), connect.NewRequest(&skerryv1.UncordonRunnerRequest{Runner: "a"})))
	must[skerryv1.RunShellResponse](t)(bob.executions.RunShell(t.Context(), shellOn("a", "")))
	for name, err := range map[string]error{
		"unknown":     second(admin.runners.CordonRunner(t.Context(), connect.NewRequest(&skerryv1.CordonRunnerRequest{Runner: "c"}))),
		"long reason": second(admin.runners.CordonRunner(t.Context(), connect.NewRequest(&skerryv1.CordonRunnerRequest{Runner: "a", Reason: strings.Repeat("x", 257)}))),
		"far":         second(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "a", DeadlineS: proto.Uint32(1 << 31)}))),
	} {
		if problem.Of(err) == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestDrainWaitsForWhatRuns(t *testing.T) {
	k := start(t)
	r := k.runner("a")
	r.SetLive(2)
	admin, ann := k.as(k.token("admin", "root")), k.as(k.token("agent", "ann"))
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true")))
	got := must[skerryv1.DrainRunnerResponse](t)(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "a"}))).GetRunner()
	if got.GetSchedule() != "draining" || got.GetDrain().GetDeadline() == nil {
		t.Errorf("runner %v", got)
	}
	_, err := ann.executions.RunShell(t.Context(), shell("true"))
	if p := problem.Of(err); p.GetReason() != problem.RunnerDraining || !p.GetRetryable() {
		t.Errorf("a new execution: %v", err)
	}
	must[skerryv1.ListFilesResponse](t)(ann.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{})))
	k.until("drain sees what runs", func() bool { return k.apiRunner(k.state.Read().Runner("a")).GetDrain().GetRemaining() == 2 })
	r.SetLive(0)
	got = must[skerryv1.DrainRunnerResponse](t)(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "a", WaitMs: 10_000}))).GetRunner()
	if d := got.GetDrain(); got.GetSchedule() != "drained" || d.GetEnded() == nil || d.GetCancelled() != 0 || d.GetLeft() != 0 || len(r.Cancelled()) != 0 {
		t.Errorf("runner %v", got)
	}
	// It stays so over a restart, until it is let in again.
	must[skerryv1.UncordonRunnerResponse](t)(admin.runners.UncordonRunner(t.Context(), connect.NewRequest(&skerryv1.UncordonRunnerRequest{Runner: "a"})))
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true")))
}

func TestDrainAtTheDeadline(t *testing.T) {
	k := start(t)
	a, b := k.runner("a"), k.runner("b")
	a.SetLive(3)
	b.SetLive(2)
	k.runner("c")
	admin := k.as(k.token("admin", "root"))
	must[skerryv1.DrainRunnerResponse](t)(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "a", DeadlineS: proto.Uint32(0)})))
	k.until("cancelled", func() bool {
		return len(a.Cancelled()) > 0 && k.state.Read().Runner("a").GetDrain().GetCancelled() == 3
	})
	a.SetLive(0)
	k.until("drained", func() bool { return k.schedule("a") == "drained" })
	if d := k.state.Read().Runner("a").GetDrain(); d.GetCancelled() != 3 || d.GetLeft() != 0 || !strings.Contains(d.GetDetail(), "cancelled 3") {
		t.Errorf("drain %v", d)
	}
	must[skerryv1.DrainRunnerResponse](t)(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "b", DeadlineS: proto.Uint32(0), LeaveRunning: true})))
	k.until("left", func() bool { return k.schedule("b") == "drained" })
	if d := k.state.Read().Runner("b").GetDrain(); d.GetLeft() != 2 || d.GetCancelled() != 0 || len(b.Cancelled()) != 0 {
		t.Errorf("drain %v", d)
	}
}

// A runner that is away is drained at the deadline without knowing.
func TestDrainOfARunnerThatIsAway(t *testing.T) {
	k := start(t)
	stop := k.run(newNamed("a"))
	stop()
	k.until("down", func() bool { return k.links.get("a") == nil })
	admin := k.as(k.token("admin", "root"))
	must[skerryv1.DrainRunnerResponse](t)(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "a", DeadlineS: proto.Uint32(1)})))
	k.until("drained", func() bool { return k.schedule("a") == "drained" })
	if d := k.state.Read().Runner("a").GetDrain(); !strings.Contains(d.GetDetail(), "not known") {
		t.Errorf("drain %v", d)
	}
}

func TestRemoveRunner(t *testing.T) {
	k := start(t)
	r := newNamed("a")
	stop := k.run(r)
	k.runner("b")
	admin, ann := k.as(k.token("admin", "root")), k.as(k.token("agent", "ann"))
	ex := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("a", ""))).GetExecution()
	r.Report(&skerryv1.WatchWorkspacesResponse{Workspaces: []*skerryv1.Workspace{{Id: ex.GetWorkspace(), Epoch: 1, State: "ready",
		Head: &skerryv1.Snapshot{Seq: 1, Digest: "sha256:1", Commit: "sha256:2"}}}})
	k.until("head", func() bool { return k.state.Read().Workspace(ex.GetWorkspace()).GetHead().GetSeq() == 1 })
	remove := func(force bool) (*skerryv1.RemoveRunnerResponse, error) {
		res, err := admin.runners.RemoveRunner(t.Context(), connect.NewRequest(&skerryv1.RemoveRunnerRequest{Runner: "a", Force: force}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	if _, err := remove(false); problem.Of(err).GetReason() != problem.RunnerInUse || !strings.Contains(err.Error(), "not drained") {
		t.Errorf("while up: %v", err)
	}
	must[skerryv1.DrainRunnerResponse](t)(admin.runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "a", WaitMs: 10_000})))
	if _, err := remove(false); problem.Of(err).GetReason() != problem.RunnerInUse || !strings.Contains(err.Error(), ex.GetWorkspace()) {
		t.Errorf("with the only copy: %v", err)
	}
	res, err := remove(true)
	if err != nil || len(res.GetLostWorkspaces()) != 1 || res.GetLostWorkspaces()[0] != ex.GetWorkspace() {
		t.Fatalf("%v, %v", res, err)
	}
	k.until("link cut", func() bool { return k.links.get("a") == nil })
	stop()
	if _, err := ann.executions.RunShell(t.Context(), shell("true")); problem.Of(err).GetReason() != problem.WorkspaceLost {
		t.Errorf("a call to the lost workspace: %v", err)
	}
	if _, err := ann.executions.GetExecution(t.Context(), get(ex.GetId())); problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("an execution of the removed runner: %v", err)
	}
	must[skerryv1.ListExecutionsResponse](t)(ann.executions.ListExecutions(t.Context(), connect.NewRequest(&skerryv1.ListExecutionsRequest{})))
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("b", "")))
	// The name may come again, with another number; what was lost stays lost.
	again := newNamed("a")
	k.run(again)
	if n := k.state.Read().Runner("a").GetNumber(); n != 3 {
		t.Errorf("number %d", n)
	}
	if _, err := ann.executions.RunShell(t.Context(), shellOn("a", "")); problem.Of(err).GetReason() != problem.WorkspaceLost {
		t.Errorf("on the new runner of that name: %v", err)
	}
}

func TestPlacementFollowsTheRequest(t *testing.T) {
	k := start(t)
	big := newNamed("big")
	big.Info.Labels = map[string]string{"size": "big"}
	big.Info.Devices = []*skerryv1.DeviceCount{{Kind: "npu", Count: 8, Free: 2}}
	big.Info.Running = 1
	k.run(big)
	k.runner("small")
	ann := k.as(k.token("agent", "ann"))
	explain := func(req *skerryv1.ExplainPlacementRequest) *skerryv1.ExplainPlacementResponse {
		return must[skerryv1.ExplainPlacementResponse](t)(ann.runners.ExplainPlacement(t.Context(), connect.NewRequest(req)))
	}
	if got := explain(&skerryv1.ExplainPlacementRequest{}); len(got.GetCandidates()) != 2 || got.GetCandidates()[0].GetRunner() != "small" || got.GetPolicy() != "spread" {
		t.Errorf("spread: %v", got)
	}
	if got := explain(&skerryv1.ExplainPlacementRequest{Policy: "pack"}); got.GetCandidates()[0].GetRunner() != "big" {
		t.Errorf("pack: %v", got)
	}
	if got := explain(&skerryv1.ExplainPlacementRequest{Npu: 2}); len(got.GetCandidates()) != 1 || got.GetRejected()[0].GetReason() != "npu" {
		t.Errorf("npu: %v", got)
	}
	run := shell("true")
	run.Msg.Options = &skerryv1.RunOptions{RunnerSelector: []string{"size=huge"}}
	if _, err := ann.executions.RunShell(t.Context(), run); problem.Of(err).GetReason() != problem.NoRunner || !strings.Contains(err.Error(), "size=huge") {
		t.Errorf("no such runner: %v", err)
	}
	run.Msg.Options.RunnerSelector = []string{"size"}
	if _, err := ann.executions.RunShell(t.Context(), run); problem.Of(err).GetField() != "options.runnerSelector[0]" {
		t.Errorf("no condition: %v", err)
	}
	run.Msg.Options.RunnerSelector = []string{"size=big"}
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), run))
	// Chosen once: a selector does not move it.
	run.Msg.Options.RunnerSelector = []string{"size!=big"}
	must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), run))
	if got := explain(&skerryv1.ExplainPlacementRequest{}); got.GetCurrent() != "big" || got.GetRejected()[0].GetReason() != "workspace" {
		t.Errorf("with a runner: %v", got)
	}
	list := must[skerryv1.ListRunnersResponse](t)(ann.runners.ListRunners(t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{})))
	if d := list.GetRunners()[0].GetDevices(); len(d) != 1 || d[0].GetCount() != 8 || d[0].GetFree() != 2 {
		t.Errorf("devices %v", d)
	}
}

func TestVersionSkew(t *testing.T) {
	tests := []struct {
		own, runner string
		flagged     bool
		refused     bool
	}{
		{"1.4.0", "1.4.9", false, false}, {"v1.4.0", "1.3.0", false, false}, {"1.4.0", "v1.5.0-rc1", false, false},
		{"1.4.0", "1.2.0", true, false}, {"1.4.0", "1.6.0", true, false}, {"1.4.0", "2.4.0", true, true}, {"2.0.0", "1.9.0", true, true},
		{"0.0.0-dev", "3.0.0", false, false}, {"1.4.0", "d5edd8d", false, false}, {"", "1.0.0", false, false}, {"1.4.0", "0.0.0-dev", false, false},
		{"v1.4.0-12-gabc", "1.1.0", true, false},
	}
	for _, tt := range tests {
		c := &Coordinator{version: tt.own}
		if got := versionSkew(tt.own, tt.runner); (got != "") != tt.flagged {
			t.Errorf("%s and %s: %q", tt.own, tt.runner, got)
		}
		if err := c.refuseVersion(tt.runner); (err != nil) != tt.refused {
			t.Errorf("%s and %s: %v", tt.own, tt.runner, err)
		}
	}
	k := startWithDeps(t, testConfig(t.TempDir()), Deps{Logger: testLogger(t), Version: "1.4.0"})
	old := newNamed("old")
	old.Info.Version = "1.1.0"
	k.run(old)
	if r := k.apiRunner(k.state.Read().Runner("old")); !strings.Contains(r.GetVersionSkew(), "behind") {
		t.Errorf("runner %v", r)
	}
}

func TestManyRunnersGetLongerToReturn(t *testing.T) {
	for _, tt := range []struct {
		configured time.Duration
		runners    int
		want       time.Duration
	}{{2 * time.Second, 0, attachTimeout}, {2 * time.Second, 10_000, attachTimeout + 50*time.Second}, {time.Minute, 1000, 65 * time.Second}} {
		if got := returnGrace(tt.configured, tt.runners); got != tt.want {
			t.Errorf("%d runners, %s configured: %s, want %s", tt.runners, tt.configured, got, tt.want)
		}
	}
}
