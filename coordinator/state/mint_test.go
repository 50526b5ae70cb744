package state

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

func mint(token *raftlogv1.Token) *raftlogv1.Command {
	token.Hash, token.Role = []byte{1}, "agent"
	return &raftlogv1.Command{Op: &raftlogv1.Command_MintToken{MintToken: &raftlogv1.MintToken{Token: token}}}
}

func at(seconds int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(seconds, 0)) }

func TestMintedTokensAreNeverWider(t *testing.T) {
	l := newLog(t)
	l.apply(mint(&raftlogv1.Token{Id: "tk_1", Subject: "ann", Permissions: []string{"files", "shell"}, Runners: []string{"gpu-*", "big"},
		NetworkPolicies: []string{"pypi"}, Expires: at(1000)}))
	l.apply(create("tk_b", "agent", "bob", ""))
	tests := []struct {
		name          string
		token         *raftlogv1.Token
		reason, field string
	}{
		{"inherits", &raftlogv1.Token{Subject: "ann"}, "", ""},
		{"narrower", &raftlogv1.Token{Subject: "kid", Permissions: []string{"files"}, Runners: []string{"gpu-1*"}, NetworkPolicies: []string{"pypi"}, Expires: at(999)}, "", ""},
		{"permission", &raftlogv1.Token{Subject: "ann", Permissions: []string{"files", "npu"}}, problem.PermissionDenied, "permissions[1]"},
		{"runner", &raftlogv1.Token{Subject: "ann", Runners: []string{"cpu-1"}}, problem.PermissionDenied, "runners[0]"},
		{"wider pattern", &raftlogv1.Token{Subject: "ann", Runners: []string{"*"}}, problem.PermissionDenied, "runners[0]"},
		{"pattern as name", &raftlogv1.Token{Subject: "ann", Runners: []string{"bi*"}}, problem.PermissionDenied, "runners[0]"},
		{"policy", &raftlogv1.Token{Subject: "ann", NetworkPolicies: []string{"conda"}}, problem.PermissionDenied, "networkPolicies[0]"},
		{"expiry", &raftlogv1.Token{Subject: "ann", Expires: at(1001)}, problem.PermissionDenied, "expiresS"},
		{"another's name", &raftlogv1.Token{Subject: "bob"}, problem.PermissionDenied, "subject"},
		{"another project", &raftlogv1.Token{Subject: "new", Project: "other"}, problem.PermissionDenied, "project"},
	}
	for _, tt := range tests {
		tt.token.Id, tt.token.Parent = "tk_"+tt.name, "tk_1"
		answer := l.apply(mint(tt.token))
		if f := answer.GetFailure(); f.GetReason() != tt.reason || f.GetField() != tt.field {
			t.Errorf("%s: %v", tt.name, answer)
		}
	}
	r := l.s.Read()
	if tok := r.Token("tk_inherits"); len(tok.GetPermissions()) != 2 || len(tok.GetRunners()) != 2 || tok.GetExpires().GetSeconds() != 1000 || tok.GetDepth() != 1 {
		t.Errorf("inherited %v", tok)
	}
	if kid := r.Agent("kid"); kid.GetParent() != "ann" || kid.GetProject() != DefaultProject || !r.Descends("kid", "ann") || r.Descends("ann", "kid") {
		t.Errorf("child %v", kid)
	}
	if r.Agent("new") != nil {
		t.Error("a refused token made an agent")
	}
}

func TestRevocationReachesWhatWasMinted(t *testing.T) {
	l := newLog(t)
	l.apply(create("tk_1", "agent", "ann", ""))
	parent := "tk_1"
	for _, name := range []string{"a", "b", "c", "d"} {
		l.apply(mint(&raftlogv1.Token{Id: "tk_" + name, Subject: "kid-" + name, Parent: parent}))
		parent = "tk_" + name
	}
	if f := l.apply(mint(&raftlogv1.Token{Id: "tk_e", Subject: "kid-e", Parent: "tk_d"})).GetFailure(); f.GetReason() != problem.LimitExceeded {
		t.Errorf("too deep: %v", f)
	}
	l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_RevokeToken{RevokeToken: &raftlogv1.RevokeToken{Id: "tk_b"}}})
	r := l.s.Read()
	for id, revoked := range map[string]bool{"tk_1": false, "tk_a": false, "tk_b": true, "tk_c": true, "tk_d": true} {
		if got := r.Token(id).GetRevoked() != nil; got != revoked {
			t.Errorf("%s revoked: %v", id, got)
		}
	}
	if f := l.apply(mint(&raftlogv1.Token{Id: "tk_f", Subject: "x", Parent: "tk_b"})).GetFailure(); f.GetReason() != problem.Unauthenticated {
		t.Errorf("minted by a revoked one: %v", f)
	}
	if !r.TokenDescends("tk_d", "tk_1") || r.TokenDescends("tk_1", "tk_d") || len(r.Descendants("ann")) != 4 {
		t.Error("descent is wrong")
	}
	prune := func(before int64) uint32 {
		return l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_PruneTokens{PruneTokens: &raftlogv1.PruneTokens{Before: at(before), Limit: 10}}}).GetCounted().GetChanged()
	}
	if n := prune(1); n != 0 {
		t.Errorf("pruned %d too early", n)
	}
	total := prune(1000) + prune(1000) + prune(1000)
	if total != 3 || len(l.s.Read().Tokens()) != 2 {
		t.Errorf("pruned %d, left %v", total, l.s.Read().Tokens())
	}
}

func TestRunnerPatterns(t *testing.T) {
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "ab", false}, {"*", "", true}, {"*", "x", true}, {"a*", "a", true}, {"a*c", "abc", true},
		{"a*c", "abcd", false}, {"a*b*c", "a-b-b-c", true}, {"*a", "ba", true}, {"a*", "a*", true}, {"a*", "ab*", true}, {"ab*", "a*", false},
		{"a", "*", false}, {"*b", "a*", false}, {"a*b", "a*b", true}, {"a?", "ab", false}, {"", "", true}, {"", "a", false},
	}
	for _, tt := range tests {
		if got := covers(tt.pattern, tt.name); got != tt.want {
			t.Errorf("covers(%q, %q) = %v", tt.pattern, tt.name, got)
		}
	}
	if !AllowsRunner(nil, "x") || AllowsRunner([]string{"a", "b*"}, "c") || !AllowsRunner([]string{"a", "b*"}, "b1") {
		t.Error("AllowsRunner")
	}
}

func TestRunnerLife(t *testing.T) {
	l := newLog(t)
	l.apply(register("r1"))
	l.apply(create("tk_1", "agent", "ann", ""))
	l.apply(create("tk_r", "runner", "r1", ""))
	l.apply(assign("ws_1", "ann", "r1"))
	schedule := func(to, id, onlyID string) *raftlogv1.Runner {
		return l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_ScheduleRunner{ScheduleRunner: &raftlogv1.ScheduleRunner{
			Name: "r1", Schedule: to, Drain: &raftlogv1.Drain{Id: id}, DrainId: onlyID}}}).GetRunner()
	}
	remove := func(force bool) *raftlogv1.Answer {
		return l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_RemoveRunner{RemoveRunner: &raftlogv1.RemoveRunner{Name: "r1", Force: force}}})
	}
	schedule("cordoned", "", "")
	l.apply(create("tk_2", "agent", "bob", ""))
	if f := l.apply(assign("ws_2", "bob", "r1")).GetFailure(); f.GetReason() != problem.RunnerCordoned {
		t.Errorf("a new workspace: %v", f)
	}
	if ws := l.apply(assign("ws_3", "ann", "r1")).GetWorkspace(); ws.GetId() != "ws_1" {
		t.Errorf("a workspace that exists: %v", ws)
	}
	schedule("draining", "d1", "")
	if got := schedule("cordoned", "", ""); got.GetSchedule() != "draining" {
		t.Errorf("cordoned while draining: %v", got)
	}
	if got := schedule("drained", "d0", "d0"); got.GetSchedule() != "draining" {
		t.Errorf("report of another drain: %v", got)
	}
	l.apply(heads("r1", &raftlogv1.Head{WorkspaceId: "ws_1", Epoch: 1, Seq: 1, Digest: "d", Commit: "c", State: "ready"}))
	l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_SetRunnerState{SetRunnerState: &raftlogv1.SetRunnerState{Name: "r1", State: "up"}}})
	if f := remove(false).GetFailure(); f.GetReason() != problem.RunnerInUse {
		t.Errorf("remove while up: %v", f)
	}
	schedule("drained", "d1", "d1")
	if f := remove(false).GetFailure(); f.GetReason() != problem.RunnerInUse {
		t.Errorf("remove with the only copy: %v", f)
	}
	if remove(true).GetRunner() == nil || l.s.Read().Runner("r1") != nil {
		t.Error("not removed")
	}
	if !l.s.Read().Workspace("ws_1").GetLost() || l.s.Read().Token("tk_r").GetRevoked() == nil {
		t.Error("workspace not lost, or the runner's token still works")
	}
	if again := l.apply(register("r1")).GetRunner(); again.GetNumber() != 2 || again.GetSchedule() != "" {
		t.Errorf("same name again: %v", again)
	}
}
