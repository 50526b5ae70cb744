package rpc

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
)

type control struct{ *Services }

// Attach implements RunnerControlService.
func (s control) Attach(ctx context.Context, req *connect.Request[skerryv1.AttachRequest]) (*connect.Response[skerryv1.AttachResponse], error) {
	if err := s.cfg.Attached(ctx, req.Msg.ClusterId, req.Msg.RunnerNumber); err != nil {
		return nil, err
	}
	running, queued := s.engine.Load()
	return connect.NewResponse(&skerryv1.AttachResponse{Runner: &skerryv1.Runner{
		Name: s.cfg.Name, Number: req.Msg.RunnerNumber, State: skerryv1.RunnerUp, Tier: s.cfg.Tier, Labels: s.cfg.Labels,
		Version: s.cfg.Version, Slots: uint32(s.cfg.Slots), Running: uint32(running), Queued: uint32(queued),
	}}), nil
}

// WatchWorkspaces implements RunnerControlService.
func (s control) WatchWorkspaces(ctx context.Context, _ *connect.Request[skerryv1.WatchWorkspacesRequest], stream *connect.ServerStream[skerryv1.WatchWorkspacesResponse]) error {
	s.cfg.Watched()
	return s.workspaces.Watch(ctx, func(changed []*workspace.Workspace) error {
		running, queued := s.engine.Load()
		out := &skerryv1.WatchWorkspacesResponse{Running: uint32(running), Queued: uint32(queued)}
		for _, w := range changed {
			out.Workspaces = append(out.Workspaces, s.status(w))
		}
		return stream.Send(out)
	})
}

// WatchEnds implements RunnerControlService.
func (s control) WatchEnds(ctx context.Context, req *connect.Request[skerryv1.WatchEndsRequest], stream *connect.ServerStream[skerryv1.WatchEndsResponse]) error {
	return s.engine.WatchEnds(ctx, req.Msg.Log, req.Msg.After, func(log string, ends []*skerryv1.ExecutionEnd) error {
		return stream.Send(&skerryv1.WatchEndsResponse{Log: log, Ends: ends})
	})
}

// FindExecution implements RunnerControlService.
func (s control) FindExecution(ctx context.Context, req *connect.Request[skerryv1.FindExecutionRequest]) (*connect.Response[skerryv1.FindExecutionResponse], error) {
	agent, workspace, err := s.engine.Owner(ctx, req.Msg.ExecutionId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.FindExecutionResponse{Agent: agent, Workspace: workspace}), nil
}

// CountLive implements RunnerControlService.
func (s control) CountLive(_ context.Context, req *connect.Request[skerryv1.CountLiveRequest]) (*connect.Response[skerryv1.CountLiveResponse], error) {
	if req.Msg.Cancel {
		s.engine.CancelAll(req.Msg.Reason)
	}
	running, queued := s.engine.Load()
	return connect.NewResponse(&skerryv1.CountLiveResponse{Live: uint32(running + queued)}), nil
}

// RefreshCertificate implements RunnerControlService.
func (s control) RefreshCertificate(context.Context, *connect.Request[skerryv1.RefreshCertificateRequest]) (*connect.Response[skerryv1.RefreshCertificateResponse], error) {
	s.cfg.Refresh()
	return connect.NewResponse(&skerryv1.RefreshCertificateResponse{}), nil
}

// TellCoordinators implements RunnerControlService.
func (s control) TellCoordinators(_ context.Context, req *connect.Request[skerryv1.TellCoordinatorsRequest]) (*connect.Response[skerryv1.TellCoordinatorsResponse], error) {
	s.cfg.Coordinators(link.Endpoints(req.Msg.Endpoints))
	return connect.NewResponse(&skerryv1.TellCoordinatorsResponse{}), nil
}
