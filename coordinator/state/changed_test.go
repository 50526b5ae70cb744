package state

import (
	"bytes"
	"testing"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestChangesOfOnePartWakeNobodyElse(t *testing.T) {
	s := New()
	commands := []struct {
		name          string
		cmd           *raftlogv1.Command
		tokens, fleet bool
	}{
		{"a runner", &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{RegisterRunner: &raftlogv1.RegisterRunner{Name: "r1"}}}, false, true},
		{"a token", &raftlogv1.Command{Op: &raftlogv1.Command_CreateToken{CreateToken: &raftlogv1.CreateToken{Token: &raftlogv1.Token{
			Id: "tk_1", Hash: []byte{1}, Role: skerryv1.RoleAgent, Subject: "ann"}}}}, true, false},
		{"a workspace", &raftlogv1.Command{Op: &raftlogv1.Command_AssignWorkspace{AssignWorkspace: &raftlogv1.AssignWorkspace{Id: "ws_1", Agent: "ann", Runner: "r1"}}}, false, false},
		{"a head", &raftlogv1.Command{Op: &raftlogv1.Command_UpdateHeads{UpdateHeads: &raftlogv1.UpdateHeads{Runner: "r1", Heads: []*raftlogv1.Head{
			{WorkspaceId: "ws_1", Epoch: 1, Seq: 1, State: skerryv1.WorkspaceReady}}}}}, false, false},
		{"another state of the runner", &raftlogv1.Command{Op: &raftlogv1.Command_SetRunnerState{SetRunnerState: &raftlogv1.SetRunnerState{Name: "r1", State: skerryv1.RunnerUp}}}, false, true},
	}
	for i, tt := range commands {
		tokens, fleet, any := s.ChangedIn(Tokens), s.ChangedIn(Fleet), s.Changed()
		tt.cmd.Id = tt.name
		if answer := s.Apply([]Entry{{Index: uint64(i + 1), Command: tt.cmd}})[0]; answer.GetFailure() != nil {
			t.Fatalf("%s: %v", tt.name, answer)
		}
		if !closed(any) || closed(tokens) != tt.tokens || closed(fleet) != tt.fleet {
			t.Errorf("%s: woke tokens %t, fleet %t, any %t", tt.name, closed(tokens), closed(fleet), closed(any))
		}
	}
	var saved bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&saved); err != nil {
		t.Fatal(err)
	}
	tokens, fleet := s.ChangedIn(Tokens), s.ChangedIn(Fleet)
	if err := s.Restore(&saved); err != nil {
		t.Fatal(err)
	}
	if !closed(tokens) || !closed(fleet) {
		t.Error("a restore woke not all")
	}
}
