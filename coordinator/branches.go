package coordinator

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	leastReplicaInterval = 10
	mostReplicaInterval  = 7 * 24 * 3600
)

// routeBranch finds the runner that keeps a branch. The runner refuses writes.
func (c *Coordinator) routeBranch(ctx context.Context, sel *skerryv1.WorkspaceSelector) (target, error) {
	view := c.state.Read()
	b := view.Branch(sel.GetBranch())
	if b == nil || !c.mayUse(caller(ctx), view.Workspace(b.GetWorkspace())) || !caller(ctx).allows(b.GetRunner()) {
		return target{}, problem.Missing("workspace.branch", "no such branch")
	}
	if (sel.GetId() != "" && sel.GetId() != b.GetWorkspace()) || (sel.GetRunner() != "" && sel.GetRunner() != b.GetRunner()) {
		return target{}, problem.Invalid("workspace.branch", "name the branch alone", "it is of another workspace or runner")
	}
	return c.reach(asWorkspace(b))
}

// asWorkspace is a branch as the workspace that it was.
func asWorkspace(b *raftlogv1.Branch) *raftlogv1.Workspace {
	return &raftlogv1.Workspace{Id: b.GetWorkspace(), Agent: b.GetAgent(), Runner: b.GetRunner(), Epoch: b.GetEpoch()}
}

// workspaceAt finds the workspace of an agent on a runner, or what the runner
// kept of one that went on elsewhere, whose executions stay addressable.
func workspaceAt(view state.Reader, agent, runner string) *raftlogv1.Workspace {
	if ws := view.WorkspaceOf(agent, runner); ws != nil {
		return ws
	}
	if b := view.BranchOf(agent, runner); b != nil {
		return asWorkspace(b)
	}
	return nil
}

// formerWorkspaces are what linked runners kept of an agent's workspaces that
// went on elsewhere, where it has no other; runners that are away are not counted
// on to come back.
func (c *Coordinator) formerWorkspaces(view state.Reader, agent string) []*raftlogv1.Workspace {
	var out []*raftlogv1.Workspace
	seen := map[string]bool{}
	for _, b := range view.BranchesOfAgent(agent) {
		if !seen[b.GetRunner()] && view.WorkspaceOf(agent, b.GetRunner()) == nil && c.links.get(b.GetRunner()) != nil {
			seen[b.GetRunner()] = true
			out = append(out, asWorkspace(b))
		}
	}
	return out
}

// ListBranches implements WorkspaceServiceHandler.
func (s workspaceService) ListBranches(ctx context.Context, req *connect.Request[skerryv1.ListBranchesRequest]) (*connect.Response[skerryv1.ListBranchesResponse], error) {
	view, id := s.c.state.Read(), caller(ctx)
	list := s.c.usableWorkspaces(id)
	if name := req.Msg.GetWorkspace(); name != "" {
		ws := view.Workspace(name)
		if !s.c.mayUse(id, ws) && (id.role != skerryv1.RoleAdmin || ws == nil) {
			return nil, problem.Missing("workspace", "no such workspace")
		}
		list = []*raftlogv1.Workspace{ws}
	}
	out := &skerryv1.ListBranchesResponse{}
	for _, ws := range list {
		for _, b := range view.BranchesOfWorkspace(ws.GetId()) {
			if !id.allows(b.GetRunner()) {
				continue
			}
			out.Branches = append(out.Branches, apiBranch(b))
		}
	}
	return connect.NewResponse(out), nil
}

func apiBranch(b *raftlogv1.Branch) *skerryv1.Branch {
	out := &skerryv1.Branch{Id: b.GetId(), Workspace: b.GetWorkspace(), Agent: b.GetAgent(), Runner: b.GetRunner(), Epoch: b.GetEpoch(),
		State: b.GetState(), Created: b.GetCreated()}
	if b.GetSeq() > 0 {
		out.Head = &skerryv1.Snapshot{Digest: b.GetDigest(), Commit: b.GetCommit(), Seq: b.GetSeq()}
	}
	return out
}

// SetReplication implements WorkspaceServiceHandler.
func (s workspaceService) SetReplication(ctx context.Context, req *connect.Request[skerryv1.SetReplicationRequest]) (*connect.Response[skerryv1.SetReplicationResponse], error) {
	view, id := s.c.state.Read(), caller(ctx)
	ws := view.Workspace(req.Msg.GetWorkspace())
	if ws == nil || (!s.c.mayUse(id, ws) && id.role != skerryv1.RoleAdmin) {
		return nil, problem.Missing("workspace", "no such workspace")
	}
	interval := req.Msg.GetIntervalS()
	switch req.Msg.GetPolicy() {
	case skerryv1.ReplicateInterval:
		if interval < leastReplicaInterval || interval > mostReplicaInterval {
			return nil, problem.Invalid("intervalS", "use 10 to 604800", "is %d", interval)
		}
	case "", skerryv1.ReplicateNone, skerryv1.ReplicateOnCommit:
		if interval != 0 {
			return nil, problem.Invalid("intervalS", "leave it out, or set policy to interval", "goes with policy interval alone")
		}
	default:
		return nil, problem.Invalid("policy", "use none, on_commit, interval, or nothing for the configured one", "unknown policy")
	}
	if to := req.Msg.GetTarget(); to != "" {
		if !id.allows(to) {
			return nil, id.outOfScope(to, "target")
		}
		if view.Runner(to) == nil {
			return nil, unknownRunner(view, id, to, "target")
		}
		if to == ws.GetRunner() {
			return nil, problem.Invalid("target", "name another runner", "the workspace itself is on runner %q", to)
		}
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_SetReplication{SetReplication: &raftlogv1.SetReplication{
		Workspace: ws.GetId(), Policy: req.Msg.GetPolicy(), IntervalS: interval, Target: req.Msg.GetTarget()}}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.SetReplicationResponse{Workspace: s.c.apiWorkspace(answer.GetWorkspace())}), nil
}

// ReassignWorkspace implements WorkspaceServiceHandler.
func (s workspaceService) ReassignWorkspace(ctx context.Context, req *connect.Request[skerryv1.ReassignWorkspaceRequest]) (*connect.Response[skerryv1.ReassignWorkspaceResponse], error) {
	ws, branch, err := s.c.ReassignWorkspace(ctx, req.Msg.GetWorkspace(), req.Msg.GetTo(), req.Msg.GetAcceptLoss())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.ReassignWorkspaceResponse{Workspace: s.c.apiWorkspace(ws), Branch: apiBranch(branch)}), nil
}
