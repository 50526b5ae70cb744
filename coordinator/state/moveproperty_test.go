package state

import (
	"fmt"

	"pgregory.net/rapid"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// drawMove draws a command of transfers and workspaces that move.
func drawMove(t *rapid.T, cmd *raftlogv1.Command) {
	id := func(prefix string) string { return fmt.Sprintf("%s_%d", prefix, rapid.IntRange(0, 4).Draw(t, prefix)) }
	runner := rapid.SampledFrom([]string{"", "r1", "r2", "r3"}).Draw(t, "runner")
	epoch, seq := rapid.Uint64Range(0, 3).Draw(t, "epoch"), rapid.Uint64Range(0, 5).Draw(t, "seq")
	state := rapid.SampledFrom([]string{"", "queued", "running", "completed", "partial", "unknown"}).Draw(t, "state")
	switch rapid.IntRange(0, 8).Draw(t, "move") {
	case 0:
		cmd.Op = &raftlogv1.Command_CreateTransfer{CreateTransfer: &raftlogv1.CreateTransfer{Transfer: &raftlogv1.Transfer{Id: id("tr"), Agent: "ann",
			Source: id("ws"), Target: id("ws"), TargetRunner: runner, IdempotencyKey: rapid.SampledFrom([]string{"", "k"}).Draw(t, "key")}}}
	case 1:
		cmd.Op = &raftlogv1.Command_UpdateTransfer{UpdateTransfer: &raftlogv1.UpdateTransfer{Id: id("tr"), State: state, Counts: &raftlogv1.Counts{Completed: seq}}}
	case 2:
		cmd.Op = &raftlogv1.Command_CancelTransfer{CancelTransfer: &raftlogv1.CancelTransfer{Id: id("tr")}}
	case 3:
		cmd.Op = &raftlogv1.Command_AddGrantKey{AddGrantKey: &raftlogv1.AddGrantKey{First: seq == 0, Key: &raftlogv1.GrantKey{Seed: []byte{byte(seq)}, Public: []byte{byte(seq)}}}}
	case 4:
		cmd.Op = &raftlogv1.Command_SetReplication{SetReplication: &raftlogv1.SetReplication{Workspace: id("ws"), Policy: rapid.SampledFrom([]string{"", "none", "on_commit"}).Draw(t, "policy"), Target: runner}}
	case 5:
		cmd.Op = &raftlogv1.Command_SetReplica{SetReplica: &raftlogv1.SetReplica{Workspace: id("ws"), Replica: &raftlogv1.Replica{Runner: runner, Epoch: epoch, Seq: seq, Commit: id("c")}}}
	case 6:
		cmd.Op = &raftlogv1.Command_ReassignWorkspace{ReassignWorkspace: &raftlogv1.ReassignWorkspace{Workspace: id("ws"), Epoch: epoch, To: runner, BranchId: id("br"), AcceptLoss: seq > 1}}
	case 7:
		cmd.Op = &raftlogv1.Command_EndRestore{EndRestore: &raftlogv1.EndRestore{Workspace: id("ws"), Epoch: epoch, Head: &raftlogv1.Head{Epoch: epoch, Seq: seq}}}
	case 8:
		cmd.Op = &raftlogv1.Command_UpdateBranches{UpdateBranches: &raftlogv1.UpdateBranches{Runner: runner, Heads: []*raftlogv1.Head{{WorkspaceId: id("ws"), Epoch: epoch, Seq: seq,
			State: rapid.SampledFrom([]string{"ready", "fenced"}).Draw(t, "head")}}}}
	}
}

// checkMoves: a workspace is on one runner, each runner that had it before keeps
// one branch of a lower epoch, and indexes show what records say.
func checkMoves(t *rapid.T, r Reader) {
	open := map[string]bool{}
	for _, tr := range r.OpenTransfers() {
		open[tr.GetId()] = true
	}
	for _, tr := range r.TransfersOfAgent("ann") {
		if open[tr.GetId()] == settled(tr.GetState()) || (tr.GetEnded() != nil) != skerryv1.TransferEnded(tr.GetState()) {
			t.Fatalf("transfer %v, open %v", tr, open[tr.GetId()])
		}
	}
	for i := range 5 {
		w := r.Workspace(fmt.Sprintf("ws_%d", i))
		if w == nil {
			continue
		}
		seen := map[string]bool{w.GetRunner(): true}
		for _, b := range r.BranchesOfWorkspace(w.GetId()) {
			if seen[b.GetRunner()] || b.GetEpoch() >= w.GetEpoch() || b.GetFence() != b.GetEpoch()+1 || b.GetAgent() != w.GetAgent() {
				t.Fatalf("branch %v of workspace %v", b, w)
			}
			seen[b.GetRunner()] = true
		}
		if head := w.GetHead(); head != nil && head.GetEpoch() > w.GetEpoch() {
			t.Fatalf("workspace %v has a head of a later epoch", w)
		}
	}
}
