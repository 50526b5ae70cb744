package coordinator

import (
	"context"

	"connectrpc.com/connect"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// workspaceService is WorkspaceService.
type workspaceService struct{ c *Coordinator }

// ListWorkspaces implements WorkspaceServiceHandler. It answers from the
// replicated state, which has each head as its runner last reported it, so it
// works while runners are down.
func (s workspaceService) ListWorkspaces(ctx context.Context, _ *connect.Request[skerryv1.ListWorkspacesRequest]) (*connect.Response[skerryv1.ListWorkspacesResponse], error) {
	out := &skerryv1.ListWorkspacesResponse{}
	for _, ws := range s.c.state.Read().WorkspacesOfAgent(caller(ctx).subject) {
		out.Workspaces = append(out.Workspaces, apiWorkspace(ws))
	}
	return connect.NewResponse(out), nil
}

func apiWorkspace(ws *raftlogv1.Workspace) *skerryv1.Workspace {
	out := &skerryv1.Workspace{Id: ws.GetId(), Agent: ws.GetAgent(), Runner: ws.GetRunner(), Epoch: ws.GetEpoch(),
		State: skerryv1.WorkspaceReady}
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

// RepairWorkspace implements WorkspaceServiceHandler.
func (s workspaceService) RepairWorkspace(ctx context.Context, req *connect.Request[skerryv1.RepairWorkspaceRequest]) (*connect.Response[skerryv1.RepairWorkspaceResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.workspaces.RepairWorkspace, repeatable)
}
