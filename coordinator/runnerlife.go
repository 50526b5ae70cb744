package coordinator

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	defaultDrain = time.Hour
	maxDrain     = 7 * 24 * time.Hour
	maxReason    = 256
)

// CordonRunner implements RunnerServiceHandler.
func (s runnerService) CordonRunner(ctx context.Context, req *connect.Request[skerryv1.CordonRunnerRequest]) (*connect.Response[skerryv1.CordonRunnerResponse], error) {
	r, err := s.schedule(ctx, &raftlogv1.ScheduleRunner{Name: req.Msg.GetRunner(), Schedule: skerryv1.RunnerCordoned, Reason: req.Msg.GetReason()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.CordonRunnerResponse{Runner: r}), nil
}

// UncordonRunner implements RunnerServiceHandler.
func (s runnerService) UncordonRunner(ctx context.Context, req *connect.Request[skerryv1.UncordonRunnerRequest]) (*connect.Response[skerryv1.UncordonRunnerResponse], error) {
	r, err := s.schedule(ctx, &raftlogv1.ScheduleRunner{Name: req.Msg.GetRunner()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.UncordonRunnerResponse{Runner: r}), nil
}

// DrainRunner implements RunnerServiceHandler.
func (s runnerService) DrainRunner(ctx context.Context, req *connect.Request[skerryv1.DrainRunnerRequest]) (*connect.Response[skerryv1.DrainRunnerResponse], error) {
	if req.Msg.GetWaitMs() > maxWaitMS {
		return nil, problem.Limit("waitMs", "30000 ms", "call again, or look at the runner's record")
	}
	drain, err := s.newDrain(req.Msg)
	if err != nil {
		return nil, err
	}
	r, err := s.schedule(ctx, &raftlogv1.ScheduleRunner{Name: req.Msg.GetRunner(), Schedule: skerryv1.RunnerDraining, Reason: req.Msg.GetReason(), Drain: drain})
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, time.Duration(req.Msg.GetWaitMs())*time.Millisecond)
	defer cancel()
	for r.GetSchedule() == skerryv1.RunnerDraining {
		changed := s.c.state.ChangedIn(state.Fleet)
		r = s.c.apiRunner(s.c.state.Read().Runner(req.Msg.GetRunner()))
		if r.GetSchedule() == skerryv1.RunnerDraining && !awaitChange(wait, changed, inboxMoment) {
			break
		}
	}
	return connect.NewResponse(&skerryv1.DrainRunnerResponse{Runner: r}), ctx.Err()
}

func (s runnerService) newDrain(req *skerryv1.DrainRunnerRequest) (*raftlogv1.Drain, error) {
	now, deadline := time.Now(), defaultDrain
	if req.DeadlineS != nil {
		deadline = time.Duration(req.GetDeadlineS()) * time.Second
	}
	if deadline > maxDrain {
		return nil, problem.Limit("deadlineS", "604800 seconds", "drain with a nearer deadline, or cordon the runner")
	}
	drain := &raftlogv1.Drain{Id: ids.New(ids.Drain, 0, now).String(), Started: timestamppb.New(now),
		Deadline: timestamppb.New(now.Add(deadline)), LeaveRunning: req.GetLeaveRunning()}
	if known := s.c.state.Read().Runner(req.GetRunner()); known.GetSchedule() == skerryv1.RunnerDraining {
		drain.Started = known.GetDrain().GetStarted()
	}
	return drain, nil
}

func (s runnerService) schedule(ctx context.Context, op *raftlogv1.ScheduleRunner) (*skerryv1.Runner, error) {
	if len(op.GetReason()) > maxReason {
		return nil, problem.Limit("reason", "256 bytes", "shorten it")
	}
	if view := s.c.state.Read(); view.Runner(op.GetName()) == nil {
		return nil, unknownRunner(view, caller(ctx), op.GetName(), "runner")
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_ScheduleRunner{ScheduleRunner: op}})
	if err != nil {
		return nil, err
	}
	return s.c.apiRunner(answer.GetRunner()), nil
}

// RemoveRunner implements RunnerServiceHandler. The runner's tokens and
// certificate are void with it, so that it does not come back by itself.
func (s runnerService) RemoveRunner(ctx context.Context, req *connect.Request[skerryv1.RemoveRunnerRequest]) (*connect.Response[skerryv1.RemoveRunnerResponse], error) {
	name, view := req.Msg.GetRunner(), s.c.state.Read()
	if view.Runner(name) == nil {
		return nil, unknownRunner(view, caller(ctx), name, "runner")
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_RemoveRunner{RemoveRunner: &raftlogv1.RemoveRunner{Name: name, Force: req.Msg.GetForce()}}})
	if err != nil {
		return nil, removalRefused(err)
	}
	if view.Holder(pki.RoleRunner, name) != nil {
		_, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_DenyMember{DenyMember: &raftlogv1.DenyMember{Role: pki.RoleRunner, Name: name}}})
		if err != nil {
			return nil, err
		}
	}
	out := &skerryv1.RemoveRunnerResponse{Runner: s.c.apiRunner(answer.GetRunner())}
	for _, ws := range s.c.state.Read().WorkspacesOfRunner(name) {
		out.LostWorkspaces = append(out.LostWorkspaces, ws.GetId())
	}
	if l := s.c.links.get(name); l != nil {
		_ = l.conn.Close()
	}
	return connect.NewResponse(out), nil
}

func removalRefused(err error) error {
	e := asProblem(err)
	if e.Reason == problem.RunnerInUse {
		e.Remedy = "drain it and replicate its workspaces first (skerry runner drain), or use --force and lose what is only there"
	}
	return e
}

const (
	// drainPoll is how often a runner that is being drained is asked what runs.
	drainPoll    = time.Second
	drainMoment  = 100 * time.Millisecond
	drainAsk     = 5 * time.Second
	cancelledFor = time.Minute
)

// drainRunners is a leader task: it brings every drain to its end. What it has
// come to is in the state, so that the next leader goes on.
func (c *Coordinator) drainRunners(ctx context.Context) {
	for {
		changed := c.state.ChangedIn(state.Fleet)
		busy := c.advanceDrains(ctx)
		if busy {
			if !pause(ctx, drainPoll) {
				return
			}
			continue
		}
		if !awaitChange(ctx, changed, drainMoment) {
			return
		}
	}
}

func (c *Coordinator) advanceDrains(ctx context.Context) (busy bool) {
	done := make(chan struct{})
	asked := 0
	for _, r := range c.state.Read().Runners() {
		if r.GetSchedule() != skerryv1.RunnerDraining {
			continue
		}
		asked++
		go func() {
			defer func() { done <- struct{}{} }()
			c.advanceDrain(ctx, r, time.Now())
		}()
	}
	for range asked {
		<-done
	}
	return asked > 0
}

// advanceDrain looks at one drain and takes its next step.
func (c *Coordinator) advanceDrain(ctx context.Context, r *raftlogv1.Runner, now time.Time) {
	drain := proto.CloneOf(r.GetDrain())
	deadline := drain.GetDeadline().AsTime()
	past := !now.Before(deadline)
	cancel := past && !drain.GetLeaveRunning()
	left, err := c.countLive(ctx, r.GetName(), cancel)
	switch {
	case err == nil && left == 0:
		drain.Detail = "nothing runs there"
		if drain.GetCancelled() > 0 {
			drain.Detail = fmt.Sprintf("the deadline cancelled %d executions; nothing runs there", drain.GetCancelled())
		}
	case err != nil && past:
		drain.Detail = "the runner could not be asked at the deadline; what runs there is not known"
	case err != nil:
		return
	case past && drain.GetLeaveRunning():
		drain.Left, drain.Detail = left, fmt.Sprintf("the deadline passed; %d executions go on", left)
	case past && drain.GetCancelled() == 0:
		drain.Cancelled = left
		c.commitDrain(ctx, r, skerryv1.RunnerDraining, drain)
		return
	case past && now.After(deadline.Add(cancelledFor)):
		drain.Left, drain.Detail = left, fmt.Sprintf("the deadline cancelled %d executions; %d have not ended", drain.GetCancelled(), left)
	default:
		return
	}
	drain.Ended = timestamppb.New(now)
	c.commitDrain(ctx, r, skerryv1.RunnerDrained, drain)
}

func (c *Coordinator) commitDrain(ctx context.Context, r *raftlogv1.Runner, schedule string, drain *raftlogv1.Drain) {
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_ScheduleRunner{ScheduleRunner: &raftlogv1.ScheduleRunner{
		Name: r.GetName(), Schedule: schedule, Reason: r.GetScheduleReason(), Drain: drain, DrainId: drain.GetId()}}})
	if err != nil && ctx.Err() == nil {
		c.logger.WarnContext(ctx, "commit drain", "runner", r.GetName(), "error", err)
		return
	}
	c.logger.InfoContext(ctx, "drain", "runner", r.GetName(), "schedule", schedule, "cancelled", drain.GetCancelled(), "left", drain.GetLeft(), "detail", drain.GetDetail())
}

// countLive asks a runner how many executions have not ended, and counts with
// them those calls that may still start one.
func (c *Coordinator) countLive(ctx context.Context, name string, cancel bool) (uint32, error) {
	l := c.links.get(name)
	if l == nil {
		return 0, unreachable(name)
	}
	// First: a call counted here is either over when the runner is asked, and its
	// execution counted there, or it is refused.
	starting := l.starting.Load()
	ctx, stop := context.WithTimeout(ctx, drainAsk)
	defer stop()
	res, err := l.control.CountLive(ctx, connect.NewRequest(&skerryv1.CountLiveRequest{Cancel: cancel, Reason: "the runner is drained"}))
	if err != nil {
		return 0, err
	}
	live := res.Msg.GetLive()
	if live == 0 {
		live = uint32(starting)
	}
	l.live.Store(live)
	return live, nil
}

// beginStart counts a call that may start an execution on the runner of to. While
// that is being drained it is refused, or, with an idempotency key, passed on so
// that the runner answers what the key has started before.
func (c *Coordinator) beginStart(to *target, keyed bool) (end func(), err error) {
	name := to.workspace.GetRunner()
	to.link.starting.Add(1)
	end = func() { to.link.starting.Add(-1) }
	switch s := c.state.Read().Runner(name).GetSchedule(); s {
	case skerryv1.RunnerDraining, skerryv1.RunnerDrained:
		end()
		if !keyed {
			return nil, problem.Draining(name, s)
		}
		to.onlyKnown = s
		return func() {}, nil
	}
	return end, nil
}
