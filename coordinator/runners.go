package coordinator

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	attachTimeout = 10 * time.Second
	// A runner that stops in order ends its watch first and its calls after.
	drainTimeout = 6 * time.Second
	// Bounds of what a runner may tell of itself.
	maxLabels    = 64
	maxLabelText = 256
)

// serveLink takes a runner's connection and lives as long as it does.
func (c *Coordinator) serveLink(refuse func(http.ResponseWriter, *http.Request, *problem.Error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := caller(r.Context())
		number, err := c.admitRunner(r, id)
		if err != nil {
			refuse(w, r, asProblem(err))
			return
		}
		if !c.links.begin() {
			refuse(w, r, shuttingDown())
			return
		}
		defer c.links.work.Done()
		endpoints := c.endpoints()
		conn, err := link.Accept(w, r, link.Welcome{Coordinators: endpoints})
		if err != nil {
			c.logger.WarnContext(r.Context(), "accept link", "runner", id.subject, "error", err)
			return
		}
		ctx, cancel := untilExpiry(r.Context(), id)
		defer cancel()
		client, err := link.NewClientConn(ctx, conn)
		if err == nil {
			l := newRunnerLink(id.subject, number, id.tokenID, client)
			l.coordinators.Store(&endpoints)
			if id.certificate {
				l.peer, _ = peerOf(r)
			}
			err = c.runLink(ctx, l)
		}
		c.logger.InfoContext(r.Context(), "link ended", "runner", id.subject, "reason", err)
	})
}

// endpoints are those of all coordinators that runners may dial; none where each
// is reached at the address that it was told.
func (c *Coordinator) endpoints() (out []string) {
	for _, m := range c.state.Read().Members() {
		if m.GetEndpoint() != "" {
			out = append(out, m.GetEndpoint())
		}
	}
	return out
}

// untilExpiry ends a link with the token that opened it.
func untilExpiry(ctx context.Context, id identity) (context.Context, context.CancelFunc) {
	if id.expires.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, id.expires)
}

// admitRunner checks the request for a link and gives the runner its number.
func (c *Coordinator) admitRunner(r *http.Request, id identity) (uint32, error) {
	if err := link.CheckUpgrade(r); err != nil {
		return 0, problem.Invalid("", "links are opened by runnerd", "%v", err)
	}
	if name := r.Header.Get(link.HeaderRunner); name != id.subject {
		return 0, problem.New(connect.CodePermissionDenied, problem.PermissionDenied,
			"set the runner's name to the subject of its token", "the token is for runner %q, not %.64q", id.subject, name)
	}
	if known := c.state.Read().Runner(id.subject); known != nil {
		return known.GetNumber(), nil
	}
	answer, err := c.node.apply(r.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{
		RegisterRunner: &raftlogv1.RegisterRunner{Name: id.subject}}})
	if err != nil {
		return 0, err
	}
	return answer.GetRunner().GetNumber(), nil
}

// runLink attaches the runner, routes calls to it and follows its workspaces
// until the link ends; it gives the reason.
func (c *Coordinator) runLink(ctx context.Context, l *runnerLink) error {
	defer func() { _ = l.conn.Close() }()
	if err := c.attach(ctx, l); err != nil {
		return err
	}
	if err := c.introduce(ctx, l); err != nil {
		return err
	}
	if !c.links.add(l) {
		return shuttingDown()
	}
	defer c.links.remove(l, c.cfg.RunnerGrace.D(), func() { c.markDown(l.name) })
	if err := c.commitRunnerState(ctx, l.name, skerryv1.RunnerUp); err != nil {
		return fmt.Errorf("mark runner up: %w", err)
	}
	c.logger.InfoContext(ctx, "runner up", "runner", l.name, "number", l.number)
	err := c.follow(ctx, l)
	c.links.remove(l, c.cfg.RunnerGrace.D(), func() { c.markDown(l.name) })
	// The runner may be stopping in order: its running calls may still answer.
	draining, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	l.conn.Drain(draining)
	return err
}

// follow takes in what the runner tells until its stream of workspaces ends.
func (c *Coordinator) follow(ctx context.Context, l *runnerLink) error {
	ctx, cancel := context.WithCancel(ctx)
	var ends sync.WaitGroup
	ends.Go(func() { c.followEnds(ctx, l) })
	defer ends.Wait()
	defer cancel()
	return c.followHeads(ctx, l)
}

// attach tells the runner its number and commits what it tells of itself.
func (c *Coordinator) attach(ctx context.Context, l *runnerLink) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	res, err := l.control.Attach(ctx, connect.NewRequest(&skerryv1.AttachRequest{
		ClusterId: c.ClusterID(), RunnerNumber: l.number}))
	if err != nil {
		return fmt.Errorf("attach runner: %w", err)
	}
	told := res.Msg.GetRunner()
	if err := checkRunner(l.name, told); err != nil {
		return fmt.Errorf("attach runner: %w", err)
	}
	if err := c.refuseVersion(told.GetVersion()); err != nil {
		return fmt.Errorf("attach runner: %w", err)
	}
	l.running.Store(told.GetRunning())
	l.queued.Store(told.GetQueued())
	l.take(told.GetDevices(), told.GetEnvironments())
	if known := c.state.Read().Runner(l.name); sameRunner(known, told) {
		return nil
	}
	_, err = c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{
		RegisterRunner: &raftlogv1.RegisterRunner{Name: l.name, Version: told.GetVersion(), Tier: told.GetTier(),
			Labels: told.GetLabels(), Slots: told.GetSlots()}}})
	return err
}

// checkRunner bounds what goes into the replicated state.
func checkRunner(name string, told *skerryv1.Runner) error {
	if told.GetName() != "" && told.GetName() != name {
		return problem.Invalid("runner.name", "set the runner's name to the subject of its token", "is %.64q, not %q", told.GetName(), name)
	}
	if len(told.GetLabels()) > maxLabels {
		return problem.Limit("runner.labels", "64 labels", "use fewer")
	}
	for key, value := range told.GetLabels() {
		if len(key) > maxLabelText || len(value) > maxLabelText {
			return problem.Limit("runner.labels", "256 bytes a key or value", "shorten them")
		}
	}
	if len(told.GetVersion()) > maxLabelText || len(told.GetTier()) > maxLabelText {
		return problem.Limit("runner", "256 bytes of version or tier", "shorten them")
	}
	return nil
}

func sameRunner(known *raftlogv1.Runner, told *skerryv1.Runner) bool {
	return known.GetVersion() == told.GetVersion() && known.GetTier() == told.GetTier() &&
		known.GetSlots() == told.GetSlots() && maps.Equal(known.GetLabels(), told.GetLabels())
}

// commitRunnerState commits a change of state only, never a heartbeat.
func (c *Coordinator) commitRunnerState(ctx context.Context, name, state string) error {
	if known := c.state.Read().Runner(name); known == nil || known.GetState() == state {
		return nil // removed meanwhile, or no change
	}
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_SetRunnerState{
		SetRunnerState: &raftlogv1.SetRunnerState{Name: name, State: state}}})
	return err
}

// markDown commits that a runner stayed away.
func (c *Coordinator) markDown(name string) {
	if c.links.get(name) != nil || !c.leads() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), attachTimeout)
	defer cancel()
	if err := c.commitRunnerState(ctx, name, skerryv1.RunnerDown); err != nil {
		c.logger.WarnContext(ctx, "mark runner down", "runner", name, "error", err)
		return
	}
	c.logger.WarnContext(ctx, "runner down", "runner", name)
}

// attachEach is what taking one of very many links may need that come at once.
const attachEach = 5 * time.Millisecond

// expectRunners gives runners that were up before this start time to dial again,
// the more of them there are the longer: none counts as down because the leader
// was busy with the others.
func (c *Coordinator) expectRunners() {
	all := c.state.Read().Runners()
	grace := returnGrace(c.cfg.RunnerGrace.D(), len(all))
	for _, r := range all {
		if r.GetState() == skerryv1.RunnerUp {
			c.links.expect(r.GetName(), grace, func() { c.markDown(r.GetName()) })
		}
	}
}

func returnGrace(configured time.Duration, runners int) time.Duration {
	return max(configured, attachTimeout) + time.Duration(runners)*attachEach
}

// runnerService is RunnerService.
type runnerService struct{ c *Coordinator }

// ListRunners implements RunnerServiceHandler: the replicated state with the
// live links' load.
func (s runnerService) ListRunners(ctx context.Context, _ *connect.Request[skerryv1.ListRunnersRequest]) (*connect.Response[skerryv1.ListRunnersResponse], error) {
	out := &skerryv1.ListRunnersResponse{}
	for _, r := range s.c.state.Read().Runners() {
		if caller(ctx).allows(r.GetName()) {
			out.Runners = append(out.Runners, s.c.apiRunner(r))
		}
	}
	return connect.NewResponse(out), nil
}

func (c *Coordinator) apiRunner(r *raftlogv1.Runner) *skerryv1.Runner {
	live := c.links.get(r.GetName())
	out := &skerryv1.Runner{Name: r.GetName(), Number: r.GetNumber(), State: skerryv1.RunnerDown, Tier: r.GetTier(),
		Labels: r.GetLabels(), Version: r.GetVersion(), Slots: r.GetSlots(), LastSeen: r.GetChanged(), Schedule: r.GetSchedule(), ScheduleReason: r.GetScheduleReason(),
		Drain: apiDrain(r, live), VersionSkew: versionSkew(c.version, r.GetVersion())}
	if live != nil {
		told := live.inventory()
		out.Devices, out.Environments = told.devices, told.environments
		out.State, out.LastSeen = skerryv1.RunnerUp, timestamppb.New(live.conn.LastSeen())
		out.Running, out.Queued = live.running.Load(), live.queued.Load()
	}
	return out
}

func apiDrain(r *raftlogv1.Runner, live *runnerLink) *skerryv1.RunnerDrain {
	d := r.GetDrain()
	if d == nil {
		return nil
	}
	out := &skerryv1.RunnerDrain{Started: d.GetStarted(), Deadline: d.GetDeadline(), LeaveRunning: d.GetLeaveRunning(), Ended: d.GetEnded(),
		Cancelled: d.GetCancelled(), Left: d.GetLeft(), Detail: d.GetDetail()}
	if live != nil && d.GetEnded() == nil {
		out.Remaining = live.live.Load()
	}
	return out
}
