package state

import (
	"bytes"
	"os"
	"testing"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

func putMember(name, address, incarnation string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_PutMember{PutMember: &raftlogv1.PutMember{
		Member: &raftlogv1.Member{Name: name, Address: address, Incarnation: incarnation}}}}
}

func removeMember(name string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_RemoveMember{RemoveMember: &raftlogv1.RemoveMember{Name: name}}}
}

func TestMembers(t *testing.T) {
	l := newLog(t)
	steps := []struct {
		name    string
		cmd     *raftlogv1.Command
		reason  string
		members int
	}{
		{"first", putMember("a", "h1:1", "i1"), "", 1},
		{"second", putMember("b", "h2:1", "i2"), "", 2},
		{"address of another", putMember("c", "h2:1", "i3"), problem.AlreadyExists, 2},
		{"moved", putMember("b", "h3:1", "i2"), "", 2},
		{"no name", putMember("", "h4:1", "i4"), problem.InvalidArgument, 2},
		{"remove an unknown one", removeMember("z"), problem.NotFound, 2},
		{"remove", removeMember("b"), "", 1},
		{"remove again", removeMember("b"), "", 1},
		{"a removed one comes back", putMember("b", "h3:1", "i2"), problem.MemberRemoved, 1},
		{"the address of a removed one is free", putMember("c", "h3:1", "i5"), "", 2},
		{"a new one of the same name", putMember("b", "h6:1", "i6"), "", 3},
	}
	for _, s := range steps {
		if got := l.apply(s.cmd).GetFailure().GetReason(); got != s.reason {
			t.Errorf("%s: %q, want %q", s.name, got, s.reason)
		}
		if got := len(l.s.Read().Members()); got != s.members {
			t.Errorf("%s: %d members, want %d", s.name, got, s.members)
		}
	}
	again := New()
	if err := again.Restore(bytes.NewReader(bytesOf(t, l.s))); err != nil {
		t.Fatal(err)
	}
	if got := again.Read().Member("b"); got.GetIncarnation() != "i6" || got.GetRemoved() != nil {
		t.Errorf("after a restore: %v", got)
	}
}

func TestVersionOnlyRises(t *testing.T) {
	l := newLog(t)
	raise := func(v uint32) {
		l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_RaiseVersion{RaiseVersion: &raftlogv1.RaiseVersion{Version: v}}})
	}
	if got := l.s.Read().ActiveVersion(); got != 1 {
		t.Errorf("at first %d", got)
	}
	raise(2)
	raise(1)
	if got := l.s.Read().ActiveVersion(); got != 2 {
		t.Errorf("at last %d", got)
	}
	if got := CommandVersion(register("r")); got != 1 {
		t.Errorf("an old operation is of version %d", got)
	}
	if got := CommandVersion(&raftlogv1.Command{}); got != HighestCommand {
		t.Errorf("an operation that is not listed is of version %d", got)
	}
}

// What the version before this one wrote is read, and written again whole.
func TestSnapshotOfVersion1(t *testing.T) {
	data, err := os.ReadFile("testdata/snapshot-v1.bin")
	if err != nil {
		t.Fatal(err)
	}
	s := New()
	if err := s.Restore(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	check := func(s *State) {
		t.Helper()
		view := s.Read()
		if view.Agent("alice").GetProject() != "genomics" || view.Agent("bob") == nil {
			t.Errorf("agents %v, %v", view.Agent("alice"), view.Agent("bob"))
		}
		if view.WorkspaceOf("alice", "local") == nil || view.WorkspaceOf("dev", "local") == nil {
			t.Error("a workspace is missing")
		}
		if view.Cluster().GetClusterId() == "" || view.ActiveVersion() != 1 {
			t.Errorf("header %v", view.Cluster())
		}
	}
	check(s)
	again := New()
	if err := again.Restore(bytes.NewReader(bytesOf(t, s))); err != nil {
		t.Fatal(err)
	}
	check(again)
}
