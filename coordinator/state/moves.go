package state

import (
	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// MaxBranches bounds the branches of one workspace.
const MaxBranches = 64

const (
	indexWorkspace = "workspace" // branches by workspace and id
	indexBehind    = "behind"    // workspaces whose head is not replicated, by policy and id
	indexRestore   = "restore"   // workspaces that their new runner is to restore
	// configured stands for the policy of workspaces that name none.
	configured = "configured"
)

func branchTable() *memdb.TableSchema {
	type branch = raftlogv1.Branch
	return table(tableBranches, byID((*branch).GetId),
		byText(indexWorkspace, true, 2, func(b *branch) []string { return []string{b.GetWorkspace(), b.GetId()} }),
		byText(indexOwner, false, 2, func(b *branch) []string { return []string{b.GetAgent(), b.GetRunner()} }),
		byText(indexRunner, false, 1, func(b *branch) []string { return []string{b.GetRunner()} }))
}

// behindIndex has no workspaces that nobody is to replicate: it would be a fifth
// of the memory of a large state for nothing.
func behindIndex(byDefault bool) *memdb.IndexSchema {
	return some(byText(indexBehind, true, 2, func(w *raftlogv1.Workspace) []string {
		policy := w.GetReplicationPolicy()
		switch {
		case !Behind(w) || policy == skerryv1.ReplicateNone || (policy == "" && !byDefault):
			return []string{""}
		case policy == "":
			policy = configured
		}
		return []string{policy, w.GetId()}
	}))
}

func restoreIndex() *memdb.IndexSchema {
	return some(byText(indexRestore, true, 1, func(w *raftlogv1.Workspace) []string {
		if w.GetRestore() == nil {
			return []string{""}
		}
		return []string{w.GetId()}
	}))
}

// Behind reports whether the workspace has a commit that its replica has not.
func Behind(w *raftlogv1.Workspace) bool {
	same := w.GetReplica() != nil && w.GetHead().GetCommit() == w.GetReplica().GetCommit()
	return w.GetHead().GetSeq() > 0 && !same && w.GetRestore() == nil
}

// Branch finds a branch by id.
func (r Reader) Branch(id string) *raftlogv1.Branch {
	v, _ := first[raftlogv1.Branch](r.txn, tableBranches, indexID, id)
	return v
}

// BranchesOfWorkspace lists a workspace's branches, oldest first.
func (r Reader) BranchesOfWorkspace(id string) []*raftlogv1.Branch {
	it, err := r.txn.LowerBound(tableBranches, indexWorkspace, id, "")
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Branch
	for raw := it.Next(); raw != nil && raw.(*raftlogv1.Branch).GetWorkspace() == id; raw = it.Next() {
		out = append(out, raw.(*raftlogv1.Branch))
	}
	return out
}

// BranchesOfRunner lists what a runner has of workspaces that went on elsewhere.
func (r Reader) BranchesOfRunner(runner string) []*raftlogv1.Branch {
	return all[raftlogv1.Branch](r.txn, tableBranches, indexRunner, runner)
}

// BranchesOfAgent lists what runners have of an agent's workspaces that went on
// elsewhere, by runner.
func (r Reader) BranchesOfAgent(agent string) []*raftlogv1.Branch {
	it, err := r.txn.LowerBound(tableBranches, indexOwner, agent, "")
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Branch
	for raw := it.Next(); raw != nil && raw.(*raftlogv1.Branch).GetAgent() == agent; raw = it.Next() {
		out = append(out, raw.(*raftlogv1.Branch))
	}
	return out
}

// RunnersWithBranches are those that have, or had when they were last seen,
// something of a workspace that went on elsewhere.
func (r Reader) RunnersWithBranches() map[string]bool {
	out := make(map[string]bool)
	for _, b := range all[raftlogv1.Branch](r.txn, tableBranches, indexRunner) {
		out[b.GetRunner()] = true
	}
	return out
}

// BranchOf finds a branch of an agent on a runner, so that what the runner has
// of the agent stays addressable.
func (r Reader) BranchOf(agent, runner string) *raftlogv1.Branch {
	v, _ := first[raftlogv1.Branch](r.txn, tableBranches, indexOwner, agent, runner)
	return v
}

// Restoring lists the workspaces that their new runner is to restore.
func (r Reader) Restoring() []*raftlogv1.Workspace {
	return all[raftlogv1.Workspace](r.txn, tableWorkspaces, indexRestore)
}

// Unreplicated lists the workspaces of a policy ("": of none of their own) whose
// head is not replicated, at most so many, behind the one named.
func (r Reader) Unreplicated(policy, after string, most int) []*raftlogv1.Workspace {
	if policy == "" {
		policy = configured
	}
	it, err := r.txn.LowerBound(tableWorkspaces, indexBehind, policy, after)
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Workspace
	for raw := it.Next(); raw != nil && len(out) < most; raw = it.Next() {
		w := raw.(*raftlogv1.Workspace)
		own := w.GetReplicationPolicy()
		if own == "" {
			own = configured
		}
		if own != policy {
			break
		}
		if w.GetId() != after {
			out = append(out, w)
		}
	}
	return out
}

func workspaceAnswer(w *raftlogv1.Workspace) *raftlogv1.Answer {
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Workspace{Workspace: w}}
}

func (p processor) setReplication(op *raftlogv1.SetReplication) *raftlogv1.Answer {
	w := p.Workspace(op.GetWorkspace())
	if w == nil {
		return refuse(problem.NotFound, "workspace", "no workspace %q", op.GetWorkspace())
	}
	if op.GetTarget() != "" && p.Runner(op.GetTarget()) == nil {
		return refuse(problem.NoRunner, "target", "no runner %q", op.GetTarget())
	}
	w = proto.CloneOf(w)
	w.ReplicationPolicy, w.ReplicationIntervalS, w.ReplicationTarget = op.GetPolicy(), op.GetIntervalS(), op.GetTarget()
	p.put(tableWorkspaces, w)
	return workspaceAnswer(w)
}

// setReplica records a copy of a head. One of an epoch that is over, or older
// than the one that is known, changes nothing.
func (p processor) setReplica(cmd *raftlogv1.Command, op *raftlogv1.SetReplica) *raftlogv1.Answer {
	w, replica := p.Workspace(op.GetWorkspace()), op.GetReplica()
	if w == nil {
		return refuse(problem.NotFound, "workspace", "no workspace %q", op.GetWorkspace())
	}
	stale := replica.GetEpoch() != w.GetEpoch() || replica.GetRunner() == w.GetRunner() ||
		(w.GetReplica().GetEpoch() == replica.GetEpoch() && w.GetReplica().GetSeq() > replica.GetSeq())
	if !stale {
		w = proto.CloneOf(w)
		w.Replica = proto.CloneOf(replica)
		w.Replica.Time = cmd.GetTime()
		p.put(tableWorkspaces, w)
	}
	return workspaceAnswer(w)
}

// reassignWorkspace gives a workspace to another runner under the next epoch.
// What the old one has becomes a branch.
func (p processor) reassignWorkspace(cmd *raftlogv1.Command, op *raftlogv1.ReassignWorkspace) *raftlogv1.Answer {
	w := p.Workspace(op.GetWorkspace())
	if w == nil {
		return refuse(problem.NotFound, "workspace", "no workspace %q", op.GetWorkspace())
	}
	if refusal := p.mayMove(w, op); refusal != nil {
		return refusal
	}
	head, old := w.GetHead(), w.GetRunner()
	p.put(tableBranches, &raftlogv1.Branch{Id: op.GetBranchId(), Workspace: w.GetId(), Agent: w.GetAgent(), Runner: old, Epoch: w.GetEpoch(),
		Fence: w.GetEpoch() + 1, Seq: head.GetSeq(), Digest: head.GetDigest(), Commit: head.GetCommit(), State: skerryv1.BranchAway, Created: cmd.GetTime()})
	w = proto.CloneOf(w)
	w.Epoch++
	w.Lost = false
	w.Runner, w.Restore = op.GetTo(), source(w)
	w.Head = &raftlogv1.Head{WorkspaceId: w.GetId(), Epoch: w.GetEpoch(), Seq: w.Restore.GetSeq(), Digest: w.Restore.GetDigest(), Commit: w.Restore.GetCommit(),
		State: skerryv1.WorkspaceRestoring}
	if w.GetReplica().GetRunner() == op.GetTo() {
		w.Replica = nil // what is there becomes the workspace itself
	}
	p.put(tableWorkspaces, w)
	if agent := p.Agent(w.GetAgent()); agent.GetDefaultRunner() == old {
		agent = proto.CloneOf(agent)
		agent.DefaultRunner = op.GetTo()
		p.put(tableAgents, agent)
	}
	return workspaceAnswer(w)
}

// source is what a moved workspace goes on from: its replica. One that was being
// restored goes on from what it was to be restored from.
func source(w *raftlogv1.Workspace) *raftlogv1.Replica {
	switch {
	case w.GetReplica() != nil:
		return proto.CloneOf(w.GetReplica())
	case w.GetRestore() != nil:
		return proto.CloneOf(w.GetRestore())
	}
	return &raftlogv1.Replica{}
}

func (p processor) mayMove(w *raftlogv1.Workspace, op *raftlogv1.ReassignWorkspace) *raftlogv1.Answer {
	branches := p.BranchesOfWorkspace(w.GetId())
	switch {
	case op.GetBranchId() == "" || p.Branch(op.GetBranchId()) != nil:
		return refuse(problem.InvalidArgument, "branchId", "is empty or used")
	case w.GetEpoch() != op.GetEpoch():
		return refuse(problem.Fenced, "workspace", "the workspace is at epoch %d, not %d", w.GetEpoch(), op.GetEpoch())
	case p.Runner(op.GetTo()) == nil:
		return refuse(problem.NoRunner, "to", "no runner %q", op.GetTo())
	case w.GetRunner() == op.GetTo():
		return refuse(problem.InvalidArgument, "to", "the workspace is on runner %q", op.GetTo())
	case p.WorkspaceOf(w.GetAgent(), op.GetTo()) != nil:
		return refuse(problem.AlreadyExists, "to", "the agent has another workspace on runner %q", op.GetTo())
	case len(branches) >= MaxBranches:
		return refuse(problem.LimitExceeded, "workspace", "the workspace has %d branches", len(branches))
	}
	for _, b := range branches {
		if b.GetRunner() == op.GetTo() {
			return refuse(problem.AlreadyExists, "to", "runner %q holds branch %s of the workspace", op.GetTo(), b.GetId())
		}
	}
	if from := source(w); !op.GetAcceptLoss() && from.GetCommit() != w.GetHead().GetCommit() {
		return refuse(problem.ReplicaBehind, "acceptLoss", "commits %d to %d of the workspace are on runner %q alone; they would come back with it as a branch",
			from.GetSeq()+1, w.GetHead().GetSeq(), w.GetRunner())
	}
	return nil
}

// endRestore opens a moved workspace for calls.
func (p processor) endRestore(op *raftlogv1.EndRestore) *raftlogv1.Answer {
	w := p.Workspace(op.GetWorkspace())
	if w == nil {
		return refuse(problem.NotFound, "workspace", "no workspace %q", op.GetWorkspace())
	}
	if w.GetEpoch() == op.GetEpoch() && w.GetRestore() != nil {
		w = proto.CloneOf(w)
		w.Restore, w.Head = nil, proto.CloneOf(op.GetHead())
		p.put(tableWorkspaces, w)
	}
	return workspaceAnswer(w)
}

// updateBranches takes over what a runner that returned has.
func (p processor) updateBranches(op *raftlogv1.UpdateBranches) *raftlogv1.Answer {
	var done raftlogv1.HeadsUpdated
	for _, head := range op.GetHeads() {
		if p.updateBranch(op.GetRunner(), head) {
			done.Changed++
		} else {
			done.Ignored++
		}
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Heads{Heads: &done}}
}

// updateBranch takes over the newest commit of a branch and reports whether
// that was news. A runner keeps a branch from the moment on when it knows that
// it has one, which its state says.
func (p processor) updateBranch(runner string, head *raftlogv1.Head) bool {
	for _, b := range p.BranchesOfWorkspace(head.GetWorkspaceId()) {
		if b.GetRunner() != runner || b.GetEpoch() != head.GetEpoch() {
			continue
		}
		if !NewsOfBranch(b, head) {
			return false
		}
		b = proto.CloneOf(b)
		b.Seq, b.Digest, b.Commit = head.GetSeq(), head.GetDigest(), head.GetCommit()
		if head.GetState() == skerryv1.WorkspaceFenced {
			b.State = skerryv1.BranchKept
		}
		p.put(tableBranches, b)
		return true
	}
	return false
}

// NewsOfBranch reports whether a head of a branch is later than the one that is
// known, or the first that its runner tells knowing that it is a branch.
func NewsOfBranch(b *raftlogv1.Branch, head *raftlogv1.Head) bool {
	if head.GetSeq() != b.GetSeq() {
		return head.GetSeq() > b.GetSeq()
	}
	return head.GetState() == skerryv1.WorkspaceFenced && b.GetState() != skerryv1.BranchKept
}
