package rpc

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/skerry/v1/skerryv1connect"
	"skerry.internal/runnerd/workspace"
)

type workspaces struct {
	*Services
	// Branches and assignments are the coordinator's affair.
	skerryv1connect.UnimplementedWorkspaceServiceHandler
}

// ListWorkspaces implements WorkspaceService: the one that the call is routed to.
func (s workspaces) ListWorkspaces(ctx context.Context, req *connect.Request[skerryv1.ListWorkspacesRequest]) (*connect.Response[skerryv1.ListWorkspacesResponse], error) {
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.ListWorkspacesResponse{Workspaces: []*skerryv1.Workspace{s.status(w)}}), nil
}

func (s *Services) status(w *workspace.Workspace) *skerryv1.Workspace {
	status := w.Status()
	status.Runner = s.cfg.Name
	return status
}

// Diff implements WorkspaceService.
func (s workspaces) Diff(ctx context.Context, req *connect.Request[skerryv1.DiffRequest]) (*connect.Response[skerryv1.DiffResponse], error) {
	limit, err := limited("limit", req.Msg.Limit, 1000, 10000)
	if err != nil {
		return nil, err
	}
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	to, err := w.View(ctx, req.Msg.To)
	if err != nil {
		return nil, named(err, "to")
	}
	from, err := s.from(ctx, w, req.Msg.From, to.Tree)
	if err != nil {
		return nil, named(err, "from")
	}
	changes, err := workspace.Changes(ctx, s.store, from, to.Tree, limit)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.DiffResponse{From: from.String(), To: to.Digest(), Changes: changes}), nil
}

// from finds what to compare with: the named snapshot, or the parent of `to`.
func (s workspaces) from(ctx context.Context, w *workspace.Workspace, digest string, to cas.Digest) (cas.Digest, error) {
	if digest != "" {
		v, err := w.View(ctx, digest)
		if err != nil {
			return cas.Digest{}, err
		}
		return v.Tree, nil
	}
	c, err := w.CommitOf(ctx, to)
	return c.ParentTree, err
}

// named puts the request's own field name into an error about a snapshot.
func named(err error, field string) error {
	if e, ok := err.(*problem.Error); ok && e.Field == "snapshot" { //nolint:errorlint // made by View, not wrapped
		e.Field = field
	}
	return err
}

// History implements WorkspaceService.
func (s workspaces) History(ctx context.Context, req *connect.Request[skerryv1.HistoryRequest]) (*connect.Response[skerryv1.HistoryResponse], error) {
	limit, err := limited("limit", req.Msg.Limit, 50, 1000)
	if err != nil {
		return nil, err
	}
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	log, next, err := w.History(ctx, req.Msg.PageToken, limit)
	if err != nil {
		return nil, err
	}
	out := &skerryv1.HistoryResponse{NextPageToken: next}
	for _, c := range log {
		out.Revisions = append(out.Revisions, workspace.RevisionOf(c))
	}
	return connect.NewResponse(out), nil
}

// RepairWorkspace implements WorkspaceService.
func (s workspaces) RepairWorkspace(ctx context.Context, req *connect.Request[skerryv1.RepairWorkspaceRequest]) (*connect.Response[skerryv1.RepairWorkspaceResponse], error) {
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	if err := w.Repair(ctx); err != nil {
		return nil, problem.New(connect.CodeFailedPrecondition, problem.WorkspaceNeedsRepair, "mend the cause and repair again",
			"the workspace still cannot be committed: %s", w.Status().Detail).Because(err)
	}
	return connect.NewResponse(&skerryv1.RepairWorkspaceResponse{Workspace: s.status(w)}), nil
}

// RestoreWorkspace implements WorkspaceService.
func (s workspaces) RestoreWorkspace(ctx context.Context, req *connect.Request[skerryv1.RestoreWorkspaceRequest]) (*connect.Response[skerryv1.RestoreWorkspaceResponse], error) {
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	release, err := lease(ctx, w)
	if err != nil {
		return nil, err
	}
	defer release()
	committed, err := w.Restore(ctx, req.Msg.Snapshot, req.Msg.Path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RestoreWorkspaceResponse{Snapshot: committed.Snapshot, Changes: committed.Changes}), nil
}
