package coordinator

import (
	"context"
	"time"

	"connectrpc.com/connect"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// workspaceService is WorkspaceService.
type workspaceService struct{ c *Coordinator }

// ListWorkspaces implements WorkspaceServiceHandler. A runner that is linked
// tells its workspace's state itself, since the replicated one may be a moment
// behind; of others it is as they last reported.
func (s workspaceService) ListWorkspaces(ctx context.Context, req *connect.Request[skerryv1.ListWorkspacesRequest]) (*connect.Response[skerryv1.ListWorkspacesResponse], error) {
	out := &skerryv1.ListWorkspacesResponse{}
	id := caller(ctx)
	for _, ws := range s.c.usableWorkspaces(id) {
		if ws.GetAgent() == id.subject || req.Msg.GetDescendants() {
			out.Workspaces = append(out.Workspaces, s.current(ctx, ws))
		}
	}
	return connect.NewResponse(out), nil
}

func (s workspaceService) current(ctx context.Context, ws *raftlogv1.Workspace) *skerryv1.Workspace {
	known := s.c.apiWorkspace(ws)
	to, err := s.c.routeSelector(ctx, &skerryv1.WorkspaceSelector{Id: ws.GetId()})
	if err != nil {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, currentTimeout)
	defer cancel()
	res, err := forward(ctx, to, &skerryv1.ListWorkspacesRequest{}, to.link.workspaces.ListWorkspaces, reads)
	if err != nil || len(res.Msg.GetWorkspaces()) != 1 || res.Msg.Workspaces[0].GetId() != ws.GetId() {
		return known
	}
	res.Msg.Workspaces[0].Replication = known.GetReplication()
	return res.Msg.Workspaces[0]
}

// currentTimeout bounds the wait for a runner that is linked but does not answer.
const currentTimeout = 2 * time.Second

func (c *Coordinator) apiWorkspace(ws *raftlogv1.Workspace) *skerryv1.Workspace {
	out := &skerryv1.Workspace{Id: ws.GetId(), Agent: ws.GetAgent(), Runner: ws.GetRunner(), Epoch: ws.GetEpoch(),
		State: skerryv1.WorkspaceReady}
	out.Replication = c.replicationOf(ws)
	head := ws.GetHead()
	if head == nil {
		return out
	}
	out.State, out.Detail = head.GetState(), head.GetDetail()
	if head.GetSeq() > 0 {
		out.Head = &skerryv1.Snapshot{Digest: head.GetDigest(), Parent: head.GetParent(), Commit: head.GetCommit(), Seq: head.GetSeq()}
	}
	return out
}

// Diff implements WorkspaceServiceHandler.
func (s workspaceService) Diff(ctx context.Context, req *connect.Request[skerryv1.DiffRequest]) (*connect.Response[skerryv1.DiffResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.workspaces.Diff, reads)
}

// History implements WorkspaceServiceHandler.
func (s workspaceService) History(ctx context.Context, req *connect.Request[skerryv1.HistoryRequest]) (*connect.Response[skerryv1.HistoryResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.workspaces.History, reads)
}

// RestoreWorkspace implements WorkspaceServiceHandler.
func (s workspaceService) RestoreWorkspace(ctx context.Context, req *connect.Request[skerryv1.RestoreWorkspaceRequest]) (*connect.Response[skerryv1.RestoreWorkspaceResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.workspaces.RestoreWorkspace, repeatable)
}

// RepairWorkspace implements WorkspaceServiceHandler.
func (s workspaceService) RepairWorkspace(ctx context.Context, req *connect.Request[skerryv1.RepairWorkspaceRequest]) (*connect.Response[skerryv1.RepairWorkspaceResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.workspaces.RepairWorkspace, repeatable)
}
