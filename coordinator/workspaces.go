package coordinator

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
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
	if req.Msg.GetAll() {
		return s.listAll(s.c.state.Read(), id, req.Msg)
	}
	for _, ws := range s.c.usableWorkspaces(id) {
		wanted := req.Msg.GetRunner() == "" || req.Msg.GetRunner() == ws.GetRunner()
		if wanted && (ws.GetAgent() == id.subject || req.Msg.GetDescendants()) {
			out.Workspaces = append(out.Workspaces, s.current(ctx, ws))
		}
	}
	return connect.NewResponse(out), nil
}

const (
	defaultWorkspaces = 200
	maxWorkspaces     = 1000
)

// listAll lists the workspaces of all agents as the state has them: an admin
// must know what lies on a runner that is down.
func (s workspaceService) listAll(view state.Reader, id identity, req *skerryv1.ListWorkspacesRequest) (*connect.Response[skerryv1.ListWorkspacesResponse], error) {
	limit := int(req.GetLimit())
	switch {
	case id.role != skerryv1.RoleAdmin:
		return nil, problem.New(connect.CodePermissionDenied, problem.PermissionDenied, "use an admin's token, or leave all out", "an agent's token lists the agent's own workspaces")
	case limit > maxWorkspaces:
		return nil, problem.Limit("limit", "1000 workspaces", "ask for less and use nextPageToken")
	case limit == 0:
		limit = defaultWorkspaces
	}
	out := &skerryv1.ListWorkspacesResponse{}
	for _, ws := range view.WorkspacesAfter(req.GetPageToken(), req.GetRunner(), limit+1) {
		if len(out.Workspaces) == limit {
			out.NextPageToken = out.Workspaces[limit-1].GetId()
			break
		}
		out.Workspaces = append(out.Workspaces, s.c.apiWorkspace(ws))
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
