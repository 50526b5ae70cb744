package state

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// mover applies commands of transfers and moves to a state with agent ann on r1.
type mover struct {
	t *testing.T
	*State
	n uint64
}

func newMover(t *testing.T) *mover {
	m := &mover{t: t, State: New()}
	for _, name := range []string{"r1", "r2", "r3"} {
		m.do(register(name))
	}
	m.do(create("tk_1", "agent", "ann", "p"))
	m.do(assign("ws_1", "ann", "r1"))
	return m
}

func (m *mover) do(cmd *raftlogv1.Command) *raftlogv1.Answer {
	m.n++
	cmd.Id, cmd.Time = fmt.Sprintf("cm_%d", m.n), &timestamppb.Timestamp{Seconds: int64(m.n)}
	return m.Apply([]Entry{{Index: m.n, Command: cmd}})[0]
}

// again restores the state from its own snapshot.
func (m *mover) again() {
	var b, c bytes.Buffer
	if _, err := m.Snapshot().WriteTo(&b); err != nil {
		m.t.Fatal(err)
	}
	raw := bytes.Clone(b.Bytes())
	fresh := New()
	if err := fresh.Restore(&b); err != nil {
		m.t.Fatal(err)
	}
	if _, err := fresh.Snapshot().WriteTo(&c); err != nil || !bytes.Equal(raw, c.Bytes()) {
		m.t.Fatalf("snapshot differs after a restore: %v", err)
	}
	m.State = fresh
}

func (m *mover) transfer(id, key string) *raftlogv1.Answer {
	return m.do(&raftlogv1.Command{Op: &raftlogv1.Command_CreateTransfer{CreateTransfer: &raftlogv1.CreateTransfer{Transfer: &raftlogv1.Transfer{
		Id: id, Agent: "ann", Source: "ws_1", Target: "ws_2", TargetRunner: "r2", IdempotencyKey: key, RequestHash: []byte(key)}}}})
}

func (m *mover) update(u *raftlogv1.UpdateTransfer) *raftlogv1.Transfer {
	return m.do(&raftlogv1.Command{Op: &raftlogv1.Command_UpdateTransfer{UpdateTransfer: u}}).GetTransfer()
}

func (m *mover) reassign(to string, epoch uint64, accept bool) *raftlogv1.Answer {
	return m.do(&raftlogv1.Command{Op: &raftlogv1.Command_ReassignWorkspace{ReassignWorkspace: &raftlogv1.ReassignWorkspace{
		Workspace: "ws_1", Epoch: epoch, To: to, BranchId: fmt.Sprintf("br_%d", m.n), AcceptLoss: accept}}})
}

func head1(epoch, seq uint64) *raftlogv1.Head {
	return &raftlogv1.Head{WorkspaceId: "ws_1", Epoch: epoch, Seq: seq, Digest: fmt.Sprintf("d%d", seq), Commit: fmt.Sprintf("c%d.%d", epoch, seq), State: "ready"}
}

func TestTransferLife(t *testing.T) {
	m := newMover(t)
	a := m.transfer("tr_1", "k")
	if a.GetTransfer().GetState() != "queued" || a.GetTransfer().GetCreated() == nil {
		t.Fatalf("created %v", a)
	}
	if again := m.transfer("tr_2", "k").GetTransfer(); again.GetId() != "tr_1" {
		t.Fatalf("the key came again and gave %v", again)
	}
	if len(m.Read().OpenTransfers()) != 1 {
		t.Fatal("not open")
	}
	m.again()
	if got := m.update(&raftlogv1.UpdateTransfer{Id: "tr_1", State: "running", Snapshot: "s"}); got.GetState() != "running" || got.GetSnapshot() != "s" || got.GetStarted() == nil {
		t.Fatalf("running %v", got)
	}
	cancel := func(id string) *raftlogv1.Transfer {
		return m.do(&raftlogv1.Command{Op: &raftlogv1.Command_CancelTransfer{CancelTransfer: &raftlogv1.CancelTransfer{Id: id}}}).GetTransfer()
	}
	if got := cancel("tr_1"); got.GetState() != "running" || !got.GetCancelRequested() {
		t.Fatalf("a running transfer was cancelled behind its target's back: %v", got)
	}
	if got := m.update(&raftlogv1.UpdateTransfer{Id: "tr_1", State: "unknown"}); got.GetState() != "unknown" || len(m.Read().OpenTransfers()) != 1 {
		t.Fatalf("unknown %v", got)
	}
	if got := m.update(&raftlogv1.UpdateTransfer{Id: "tr_1", State: "partial", Counts: &raftlogv1.Counts{Completed: 1}}); got.GetState() != "partial" || len(m.Read().OpenTransfers()) != 0 {
		t.Fatalf("resolved %v", got)
	}
	if got := m.update(&raftlogv1.UpdateTransfer{Id: "tr_1", State: "completed"}); got.GetState() != "partial" {
		t.Fatalf("an ended transfer became %v", got)
	}
	m.transfer("tr_3", "")
	if got := cancel("tr_3"); got.GetState() != "cancelled" || got.GetEnded() == nil {
		t.Fatalf("a queued transfer is %v after a cancel", got)
	}
}

func TestI10TransfersAreBounded(t *testing.T) {
	m := newMover(t)
	for n := range KeptTransfers + 50 {
		id := fmt.Sprintf("tr_%06d", n)
		if f := m.transfer(id, "").GetFailure(); f != nil {
			t.Fatal(f)
		}
		m.update(&raftlogv1.UpdateTransfer{Id: id, State: "completed"})
	}
	if n := len(m.Read().TransfersOfAgent("ann")); n != KeptTransfers {
		t.Fatalf("%d ended transfers are kept", n)
	}
	if m.Read().Transfer("tr_000000") != nil || m.Read().Transfer(fmt.Sprintf("tr_%06d", KeptTransfers+49)) == nil {
		t.Fatal("not the oldest were forgotten")
	}
	for n := range MaxActiveTransfers {
		if f := m.transfer(fmt.Sprintf("tr_a%06d", n), "").GetFailure(); f != nil {
			t.Fatal(f)
		}
	}
	if f := m.transfer("tr_b", "").GetFailure(); f.GetReason() != problem.LimitExceeded {
		t.Fatalf("one more was answered %v", f)
	}
	m.again()
}

func TestI6ReassignMakesABranch(t *testing.T) {
	m := newMover(t)
	m.do(heads("r1", head1(1, 3)))
	setReplica := func(runner string, epoch, seq uint64) {
		m.do(&raftlogv1.Command{Op: &raftlogv1.Command_SetReplica{SetReplica: &raftlogv1.SetReplica{Workspace: "ws_1", Replica: &raftlogv1.Replica{
			Runner: runner, Epoch: epoch, Seq: seq, Digest: fmt.Sprintf("d%d", seq), Commit: fmt.Sprintf("c%d.%d", epoch, seq)}}}})
	}
	if got := m.Read().Unreplicated("", "", 10); len(got) != 1 {
		t.Fatalf("unreplicated %v", got)
	}
	setReplica("r2", 1, 2)
	if f := m.reassign("r2", 1, false).GetFailure(); f.GetReason() != problem.ReplicaBehind {
		t.Fatalf("a lossy move was answered %v", f)
	}
	if f := m.reassign("r2", 7, true).GetFailure(); f.GetReason() != problem.Fenced {
		t.Fatalf("a move of another epoch was answered %v", f)
	}
	setReplica("r2", 1, 3)
	if len(m.Read().Unreplicated("", "", 10)) != 0 {
		t.Fatal("a replicated workspace counts as behind")
	}
	w := m.reassign("r2", 1, false).GetWorkspace()
	if w.GetEpoch() != 2 || w.GetRunner() != "r2" || w.GetRestore().GetSeq() != 3 || w.GetReplica() != nil {
		t.Fatalf("moved: %v", w)
	}
	if m.Read().Agent("ann").GetDefaultRunner() != "r2" || len(m.Read().Restoring()) != 1 {
		t.Fatal("the agent's calls do not follow, or nobody is to restore")
	}
	m.again()
	// The old runner's later commits are its branch's, never the workspace's.
	m.do(heads("r1", head1(1, 9)))
	if w := m.Read().Workspace("ws_1"); w.GetHead().GetSeq() != 3 || w.GetHead().GetState() != skerryv1.WorkspaceRestoring {
		t.Fatalf("a fenced runner moved the head: %v", w)
	}
	if b := m.Read().BranchesOfWorkspace("ws_1")[0]; b.GetSeq() != 9 || b.GetState() != skerryv1.BranchAway {
		t.Fatalf("a runner that does not know of its branch keeps %v", b)
	}
	fenced := head1(1, 9)
	fenced.State = skerryv1.WorkspaceFenced
	m.do(heads("r1", fenced))
	b := m.Read().BranchesOfWorkspace("ws_1")
	if len(b) != 1 || b[0].GetSeq() != 9 || b[0].GetState() != skerryv1.BranchKept || b[0].GetFence() != 2 {
		t.Fatalf("branches %v", b)
	}
	m.do(&raftlogv1.Command{Op: &raftlogv1.Command_EndRestore{EndRestore: &raftlogv1.EndRestore{Workspace: "ws_1", Epoch: 2, Head: head1(2, 4)}}})
	if w := m.Read().Workspace("ws_1"); w.GetRestore() != nil || w.GetHead().GetSeq() != 4 {
		t.Fatalf("restored: %v", w)
	}
	if f := m.reassign("r1", 2, true).GetFailure(); f.GetReason() != problem.AlreadyExists {
		t.Fatalf("a move back onto a branch was answered %v", f)
	}
	if got := m.Read().BranchOf("ann", "r1"); !proto.Equal(got, b[0]) {
		t.Fatalf("branch of ann on r1 is %v", got)
	}
}
