package rpc

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
)

type control struct{ *Services }

// Attach implements RunnerControlService.
func (s control) Attach(ctx context.Context, req *connect.Request[skerryv1.AttachRequest]) (*connect.Response[skerryv1.AttachResponse], error) {
	if err := s.cfg.Attached(ctx, req.Msg.ClusterId, req.Msg.RunnerNumber); err != nil {
		// The operator of this host must know: the coordinator just ends the link.
		s.log.Error("coordinator refused", "cluster", req.Msg.ClusterId, "err", err)
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
	told := &loadTeller{services: s.Services, stream: stream}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	defer telling.Wait()
	defer cancel()
	telling.Go(func() { told.run(ctx) })
	return s.workspaces.Watch(ctx, func(changed []*workspace.Workspace) error {
		out := &skerryv1.WatchWorkspacesResponse{}
		for _, w := range changed {
			out.Workspaces = append(out.Workspaces, s.status(w))
		}
		return told.send(out, true)
	})
}

// loadEvery is how soon a coordinator learns of a load that came without a
// change of a workspace.
const loadEvery = time.Second

// loadTeller sends the load with each change of a workspace, and when it has
// changed alone.
type loadTeller struct {
	services *Services
	stream   *connect.ServerStream[skerryv1.WatchWorkspacesResponse]

	mu              sync.Mutex
	running, queued uint32
}

// send sends out, unless it would tell nothing new.
func (t *loadTeller) send(out *skerryv1.WatchWorkspacesResponse, always bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	running, queued := t.services.engine.Load()
	out.Running, out.Queued = uint32(running), uint32(queued)
	if !always && out.GetRunning() == t.running && out.GetQueued() == t.queued {
		return nil
	}
	t.running, t.queued = out.GetRunning(), out.GetQueued()
	return t.stream.Send(out)
}

func (t *loadTeller) run(ctx context.Context) {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if t.send(&skerryv1.WatchWorkspacesResponse{}, false) != nil {
			return // the watch itself finds that the stream has ended
		}
	}
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
