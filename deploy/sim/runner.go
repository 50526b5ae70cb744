package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"

	"skerry.internal/proto/link"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// fleet is all simulated runners: each has a real link and answers what the
// coordinator asks of a runner that has nothing to do.
type fleet struct {
	world     *world
	tokens    map[string]string
	trust     *tls.Config
	endpoints []string
	handler   http.Handler

	runners  []*runner
	attached atomic.Int64
	work     sync.WaitGroup
}

// runner is one simulated runner.
type runner struct {
	fleet  *fleet
	number int
	// Told of each further number of commits that its workspaces have.
	seq  atomic.Uint64
	more chan []*skerryv1.Workspace
}

func newFleet(w *world, tokens map[string]string, trust *tls.Config, endpoints []string) *fleet {
	f := &fleet{world: w, tokens: tokens, trust: trust, endpoints: endpoints}
	mux := http.NewServeMux()
	mux.Handle(rpc.NewRunnerControlServiceHandler(control{}))
	mux.Handle(rpc.NewFileServiceHandler(files{}))
	f.handler = mux
	for n := range w.runners {
		f.runners = append(f.runners, &runner{fleet: f, number: n, more: make(chan []*skerryv1.Workspace, 16)})
	}
	return f
}

type runnerKey struct{}

// run keeps every runner's link until ctx ends.
func (f *fleet) run(ctx context.Context) {
	for _, r := range f.runners {
		name := runnerName(r.number)
		token := f.tokens[name]
		f.work.Go(func() {
			cfg := link.RunConfig{Endpoints: f.endpoints, Token: func() (string, error) { return token, nil }, TLS: f.trust, Name: name}
			_ = link.Run(context.WithValue(ctx, runnerKey{}, r), cfg, f.handler, slog.New(slog.DiscardHandler))
		})
	}
}

// heads are the runner's workspaces from one on, at most n, as they stand.
func (r *runner) heads(from, n int) []*skerryv1.Workspace {
	list := r.fleet.world.workspaces[r.number]
	out := make([]*skerryv1.Workspace, 0, n)
	seq := r.seq.Load() + 1
	for i := range min(n, len(list)) {
		id := list[(from+i)%len(list)]
		out = append(out, &skerryv1.Workspace{Id: id, Epoch: 1, State: skerryv1.WorkspaceReady, Head: &skerryv1.Snapshot{
			Seq: seq, Digest: digestOf(id, i, seq), Commit: digestOf(id, -i, seq)}})
	}
	return out
}

// report tells of n new heads.
func (r *runner) report(round, n int) bool {
	r.seq.Add(1)
	select {
	case r.more <- r.heads(round*n, n):
		return true
	default:
		return false
	}
}

// control is RunnerControlService of all runners; the link's context says which.
type control struct {
	rpc.UnimplementedRunnerControlServiceHandler
}

func runnerOf(ctx context.Context) *runner {
	r, _ := ctx.Value(runnerKey{}).(*runner)
	return r
}

// Attach implements RunnerControlServiceHandler.
func (control) Attach(ctx context.Context, _ *connect.Request[skerryv1.AttachRequest]) (*connect.Response[skerryv1.AttachResponse], error) {
	r := runnerOf(ctx)
	r.fleet.attached.Add(1)
	return connect.NewResponse(&skerryv1.AttachResponse{Runner: &skerryv1.Runner{Name: runnerName(r.number), Version: "sim", Tier: "bubblewrap",
		Slots: 8, Labels: labels(r.number)}}), nil
}

// WatchWorkspaces implements RunnerControlServiceHandler. As a real runner does
// it tells of every workspace first; here they have no news.
func (control) WatchWorkspaces(ctx context.Context, _ *connect.Request[skerryv1.WatchWorkspacesRequest], out *connect.ServerStream[skerryv1.WatchWorkspacesResponse]) error {
	r := runnerOf(ctx)
	first := r.heads(0, len(r.fleet.world.workspaces[r.number]))
	for _, ws := range first {
		ws.Head.Seq = min(ws.Head.Seq, 1)
	}
	if err := out.Send(&skerryv1.WatchWorkspacesResponse{Workspaces: first}); err != nil {
		return err
	}
	for {
		select {
		case list := <-r.more:
			if err := out.Send(&skerryv1.WatchWorkspacesResponse{Workspaces: list, Running: 1}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WatchEnds implements RunnerControlServiceHandler: nothing ends here.
func (control) WatchEnds(ctx context.Context, _ *connect.Request[skerryv1.WatchEndsRequest], out *connect.ServerStream[skerryv1.WatchEndsResponse]) error {
	if err := out.Send(&skerryv1.WatchEndsResponse{Log: "sim"}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// files is FileService: every workspace is empty.
type files struct {
	rpc.UnimplementedFileServiceHandler
}

// ListFiles implements FileServiceHandler.
func (files) ListFiles(context.Context, *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error) {
	return connect.NewResponse(&skerryv1.ListFilesResponse{}), nil
}
