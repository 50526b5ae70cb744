package state

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// log is a hand-driven Raft log.
type log struct {
	t *testing.T
	s *State
	n uint64
}

func (l *log) apply(cmd *raftlogv1.Command) *raftlogv1.Answer {
	l.t.Helper()
	l.n++
	if cmd.Id == "" {
		cmd.Id = fmt.Sprintf("cm_%d", l.n)
	}
	if cmd.Time == nil {
		cmd.Time = timestamppb.New(time.Unix(int64(l.n), 0))
	}
	return l.s.Apply([]Entry{{Index: l.n, Command: cmd}})[0]
}

func newLog(t *testing.T) *log { return &log{t: t, s: New()} }

func register(name string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{RegisterRunner: &raftlogv1.RegisterRunner{Name: name}}}
}

func create(id, role, subject, project string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_CreateToken{CreateToken: &raftlogv1.CreateToken{
		Token: &raftlogv1.Token{Id: id, Hash: []byte{1}, Role: role, Subject: subject, Project: project}}}}
}

func assign(id, agent, runner string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_AssignWorkspace{AssignWorkspace: &raftlogv1.AssignWorkspace{
		Id: id, Agent: agent, Runner: runner}}}
}

func heads(runner string, list ...*raftlogv1.Head) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_UpdateHeads{UpdateHeads: &raftlogv1.UpdateHeads{Runner: runner, Heads: list}}}
}

func TestRunnersKeepTheirNumber(t *testing.T) {
	l := newLog(t)
	for i, name := range []string{"b", "a", "b"} {
		got := l.apply(register(name)).GetRunner()
		if want := map[string]uint32{"b": 1, "a": 2}[name]; got.GetNumber() != want || got.GetState() != skerryv1.RunnerDown {
			t.Errorf("%d: %s has number %d, state %s", i, name, got.GetNumber(), got.GetState())
		}
	}
	cmd := register("a")
	cmd.GetRegisterRunner().Slots, cmd.GetRegisterRunner().Labels = 8, map[string]string{"k": "v"}
	l.apply(cmd)
	l.apply(register("a"))
	got := l.s.Read().RunnerByNumber(2)
	if got.GetSlots() != 8 || got.GetLabels()["k"] != "v" {
		t.Errorf("a bare registration changed %v", got)
	}
	up := &raftlogv1.Command{Op: &raftlogv1.Command_SetRunnerState{SetRunnerState: &raftlogv1.SetRunnerState{Name: "a", State: "up"}}}
	changed := l.apply(up).GetRunner().GetChanged()
	up.Id, up.Time = "", nil
	if again := l.apply(up).GetRunner(); again.GetState() != "up" || !proto.Equal(again.GetChanged(), changed) {
		t.Errorf("up twice: %v", again)
	}
}

func TestTokensAndAgents(t *testing.T) {
	l := newLog(t)
	if got := l.apply(create("tk_1", "agent", "ann", "")).GetToken(); got.GetProject() != DefaultProject || got.GetCreated().GetSeconds() != 1 {
		t.Errorf("token %v", got)
	}
	if l.s.Read().Agent("ann").GetProject() != DefaultProject {
		t.Error("agent was not made")
	}
	l.apply(create("tk_2", "runner", "r1", ""))
	if l.s.Read().Agent("r1") != nil {
		t.Error("a runner token made an agent")
	}
	if got := l.apply(create("tk_3", "agent", "ann", "other")).GetFailure(); got.GetField() != "project" {
		t.Errorf("other project: %v", got)
	}
	revoke := func(id string) *raftlogv1.Answer {
		return l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_RevokeToken{RevokeToken: &raftlogv1.RevokeToken{Id: id}}})
	}
	first := revoke("tk_1").GetToken().GetRevoked()
	if again := revoke("tk_1").GetToken().GetRevoked(); !proto.Equal(first, again) {
		t.Errorf("second revocation moved the time from %v to %v", first, again)
	}
	if got := revoke("tk_9").GetFailure(); got.GetReason() != problem.NotFound {
		t.Errorf("unknown token: %v", got)
	}
	if got := l.apply(create("tk_1", "agent", "ann", "")).GetFailure(); got.GetReason() != problem.AlreadyExists {
		t.Errorf("same id: %v", got)
	}
}

func TestAssignGivesOneWorkspaceEach(t *testing.T) {
	l := newLog(t)
	l.apply(register("r1"))
	l.apply(register("r2"))
	l.apply(create("tk_1", "agent", "ann", ""))
	first := l.apply(assign("ws_1", "ann", "r1")).GetWorkspace()
	again := l.apply(assign("ws_2", "ann", "r1")).GetWorkspace()
	if first.GetId() != "ws_1" || first.GetEpoch() != 1 || again.GetId() != "ws_1" {
		t.Errorf("first %v, again %v", first, again)
	}
	l.apply(assign("ws_3", "ann", "r2"))
	if got := l.s.Read().Agent("ann").GetDefaultRunner(); got != "r1" {
		t.Errorf("default runner %q", got)
	}
	if got := l.s.Read().WorkspacesOfAgent("ann"); len(got) != 2 {
		t.Errorf("%d workspaces", len(got))
	}
	for _, tt := range []struct{ id, agent, runner, reason string }{
		{"ws_4", "bob", "r1", problem.NotFound},
		{"ws_4", "ann", "r9", problem.NoRunner},
	} {
		if got := l.apply(assign(tt.id, tt.agent, tt.runner)).GetFailure(); got.GetReason() != tt.reason {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// I6: what a fenced or confused runner reports never moves a head.
func TestI6StaleHeadsAreIgnored(t *testing.T) {
	l := newLog(t)
	l.apply(register("r1"))
	l.apply(register("r2"))
	l.apply(create("tk_1", "agent", "ann", ""))
	l.apply(assign("ws_1", "ann", "r1"))
	head := func(epoch, seq uint64, digest, state string) *raftlogv1.Head {
		return &raftlogv1.Head{WorkspaceId: "ws_1", Epoch: epoch, Seq: seq, Digest: digest, State: state}
	}
	tests := []struct {
		name   string
		runner string
		head   *raftlogv1.Head
		moves  bool
	}{
		{"first", "r1", head(1, 3, "d3", "ready"), true},
		{"same again", "r1", head(1, 3, "d3", "ready"), false},
		{"lower seq", "r1", head(1, 2, "d2", "ready"), false},
		{"lower epoch", "r1", head(0, 9, "d9", "ready"), false},
		{"epoch that was never given", "r1", head(2, 9, "d9", "ready"), false},
		{"another runner", "r2", head(1, 9, "d9", "ready"), false},
		{"other content under the same seq", "r1", head(1, 3, "dX", "ready"), false},
		{"state only", "r1", head(1, 3, "d3", "needs_repair"), true},
		{"next", "r1", head(1, 4, "d4", "ready"), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := l.s.Read().Workspace("ws_1").GetHead()
			got := l.apply(heads(tt.runner, tt.head)).GetHeads()
			if moved := got.GetChanged() == 1; moved != tt.moves || got.GetChanged()+got.GetIgnored() != 1 {
				t.Errorf("answer %v, want moves=%v", got, tt.moves)
			}
			after := l.s.Read().Workspace("ws_1").GetHead()
			if tt.moves && !proto.Equal(after, tt.head) || !tt.moves && !proto.Equal(after, before) {
				t.Errorf("head is %v", after)
			}
		})
	}
}

func TestI3RepeatedCommandGivesFirstAnswer(t *testing.T) {
	l := newLog(t)
	cmd := register("r1")
	cmd.Id = "cm_same"
	first := l.apply(cmd)
	dump := bytesOf(t, l.s)
	if again := l.apply(cmd); !proto.Equal(first, again) {
		t.Errorf("first %v, again %v", first, again)
	}
	if !bytes.Equal(dump, bytesOf(t, l.s)) {
		t.Error("a repeat changed the state")
	}
	l.n += Remembered
	l.apply(register("r2"))
	if l.s.memory.answer("cm_same") != nil {
		t.Error("an old answer was not forgotten")
	}
	if got := l.apply(&raftlogv1.Command{Id: "x", Op: register("").Op}).GetFailure(); got.GetField() != "name" {
		t.Errorf("empty name: %v", got)
	}
}

func TestUnknownOperationPanics(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "does not know") {
			t.Errorf("recovered %v", r)
		}
	}()
	newLog(t).apply(&raftlogv1.Command{})
}

func bytesOf(t interface{ Fatal(...any) }, s *State) []byte {
	var out bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func records(t *testing.T, list ...*raftlogv1.SnapshotRecord) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, r := range list {
		if _, err := protodelim.MarshalTo(&out, r); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func header(version, next uint32) *raftlogv1.SnapshotRecord {
	return &raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Header{Header: &raftlogv1.SnapshotHeader{
		Version: version, NextRunnerNumber: next}}}
}

func runner(name string, number uint32) *raftlogv1.SnapshotRecord {
	return &raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Runner{Runner: &raftlogv1.Runner{Name: name, Number: number}}}
}

func workspace(id, agent, runner string) *raftlogv1.SnapshotRecord {
	return &raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Workspace{Workspace: &raftlogv1.Workspace{Id: id, Agent: agent, Runner: runner}}}
}

func TestRestoreRefusals(t *testing.T) {
	good := records(t, header(1, 3), runner("a", 1))
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "EOF"},
		{"cut short", good[:len(good)-2], "unexpected EOF"},
		{"newer version", records(t, header(Version+1, 1)), "install a newer one"},
		{"newer commands", records(t, &raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Header{Header: &raftlogv1.SnapshotHeader{
			Version: Version, NextRunnerNumber: 1, CommandVersion: HighestCommand + 1}}}), "install a newer one"},
		{"no version", records(t, header(0, 1)), "version 0"},
		{"no header", records(t, runner("a", 1)), "header"},
		{"two headers", records(t, header(1, 1), header(1, 1)), "header"},
		{"unknown record", records(t, header(1, 1), &raftlogv1.SnapshotRecord{}), "newer one"},
		{"same runner twice", records(t, header(1, 3), runner("a", 1), runner("a", 2)), "two records"},
		{"number twice", records(t, header(1, 3), runner("a", 1), runner("b", 1)), "not its own"},
		{"number to come", records(t, header(1, 3), runner("a", 3)), "not its own"},
		{"pair twice", records(t, header(1, 3), workspace("w1", "a", "r"), workspace("w2", "a", "r")), "two workspaces"},
		{"giant record", []byte{0xff, 0xff, 0xff, 0xff, 0x7f}, "size"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.apply(register("kept"))
			err := l.s.Restore(bytes.NewReader(tt.data))
			if !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			if l.s.Read().Runner("kept") == nil {
				t.Error("a refused snapshot changed the state")
			}
		})
	}
	if err := New().Restore(bytes.NewReader(good)); err != nil {
		t.Errorf("good snapshot: %v", err)
	}
}

func TestReadersSeeOneInstant(t *testing.T) {
	l := newLog(t)
	before := l.s.Read()
	snap := l.s.Snapshot()
	l.apply(register("late"))
	if before.Runner("late") != nil {
		t.Error("a view changed")
	}
	var out bytes.Buffer
	if _, err := snap.WriteTo(&out); err != nil || bytes.Contains(out.Bytes(), []byte("late")) {
		t.Errorf("snapshot holds a later record (%v)", err)
	}
}

func FuzzRestore(f *testing.F) {
	s := New()
	s.Apply([]Entry{{Index: 1, Command: &raftlogv1.Command{Id: "c1", Op: register("r1").Op}},
		{Index: 2, Command: &raftlogv1.Command{Id: "c2", Op: create("t1", "agent", "ann", "").Op}},
		{Index: 3, Command: &raftlogv1.Command{Id: "c3", Op: assign("w1", "ann", "r1").Op}}})
	f.Add(bytesOf(f, s))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := New()
		if err := s.Restore(bytes.NewReader(data)); err != nil {
			if !errors.Is(err, ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		// What was accepted is written and read back as the same state.
		once := bytesOf(t, s)
		again := New()
		if err := again.Restore(bytes.NewReader(once)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(once, bytesOf(t, again)) {
			t.Fatal("state changed by a round trip")
		}
	})
}
