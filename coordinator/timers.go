package coordinator

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	maxAhead   = 366 * 24 * time.Hour
	maxMessage = 4000
	// fireBatch is how many timers one command may fire.
	fireBatch = 256
	// clockCheck bounds how long a jump of the clock can go unnoticed.
	clockCheck = 2 * time.Second
)

// timerService is TimerService.
type timerService struct{ c *Coordinator }

// CreateTimer implements TimerServiceHandler.
func (s timerService) CreateTimer(ctx context.Context, req *connect.Request[skerryv1.CreateTimerRequest]) (*connect.Response[skerryv1.CreateTimerResponse], error) {
	now := time.Now()
	timer, err := newTimer(req.Msg, now)
	if err != nil {
		return nil, err
	}
	timer.Agent = caller(ctx).subject
	if err := s.checkExecution(ctx, timer.GetExecutionId()); err != nil {
		return nil, err
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_CreateTimer{CreateTimer: &raftlogv1.CreateTimer{Timer: timer}}})
	if err != nil {
		return nil, err
	}
	// Its end may have been told between the look and the commit.
	if err := s.checkExecution(ctx, timer.GetExecutionId()); err != nil {
		if _, cancelErr := s.cancel(ctx, timer.GetAgent(), timer.GetId()); cancelErr != nil {
			return nil, cancelErr
		}
		return nil, err
	}
	return connect.NewResponse(&skerryv1.CreateTimerResponse{Timer: apiTimer(answer.GetTimer())}), nil
}

// checkExecution: it is the caller's and has not ended.
func (s timerService) checkExecution(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	to, err := s.c.routeOwnExecution(ctx, id)
	if err != nil {
		return err
	}
	res, err := forward(ctx, to, &skerryv1.GetExecutionRequest{ExecutionId: id}, to.link.executions.GetExecution, reads)
	if err != nil {
		return err
	}
	if state := res.Msg.GetExecution().GetState(); skerryv1.Terminal(state) {
		e := problem.New(connect.CodeFailedPrecondition, problem.NotRunning, "leave executionId out, or name one that goes on", "the execution has ended (%s)", state)
		e.Field = "executionId"
		return e
	}
	return nil
}

func newTimer(req *skerryv1.CreateTimerRequest, now time.Time) (*raftlogv1.Timer, error) {
	due, err := dueTime(req, now)
	switch {
	case err != nil:
		return nil, err
	case req.GetMessage() == "":
		return nil, problem.Invalid("message", "say what to be reminded of", "is empty")
	case utf8.RuneCountInString(req.GetMessage()) > maxMessage:
		return nil, problem.Limit("message", "4000 characters", "shorten it, or write a file and name it")
	}
	return &raftlogv1.Timer{Id: ids.New(ids.Timer, 0, now).String(), Due: timestamppb.New(due), Message: req.GetMessage(),
		ExecutionId: req.GetExecutionId()}, nil
}

func dueTime(req *skerryv1.CreateTimerRequest, now time.Time) (time.Time, error) {
	if (req.GetAfterMs() == 0) == (req.GetAt() == "") {
		return time.Time{}, problem.Invalid("afterMs", "give exactly one of afterMs and at", "is neither alone nor replaced by at")
	}
	if ms := req.GetAfterMs(); ms != 0 {
		if ms > uint64(maxAhead/time.Millisecond) {
			return time.Time{}, problem.Limit("afterMs", "31622400000 ms (366 days)", "use a nearer time")
		}
		return now.Add(time.Duration(ms) * time.Millisecond), nil
	}
	due, err := time.Parse(time.RFC3339, req.GetAt())
	switch {
	case err != nil:
		return due, problem.Invalid("at", "write it as 2030-01-31T08:00:00+01:00, with the zone", "%.40q is no time with a zone", req.GetAt())
	case due.Before(now):
		return due, problem.Invalid("at", "use a time to come, or afterMs", "is in the past: it is %s", now.UTC().Format(time.RFC3339))
	case due.After(now.Add(maxAhead)):
		return due, problem.Limit("at", "366 days ahead", "use a nearer time")
	}
	return due, nil
}

// ListTimers implements TimerServiceHandler.
func (s timerService) ListTimers(ctx context.Context, _ *connect.Request[skerryv1.ListTimersRequest]) (*connect.Response[skerryv1.ListTimersResponse], error) {
	out := &skerryv1.ListTimersResponse{}
	for _, t := range s.c.state.Read().TimersOf(caller(ctx).subject) {
		out.Timers = append(out.Timers, apiTimer(t))
	}
	slices.SortStableFunc(out.Timers, func(a, b *skerryv1.Timer) int {
		return cmp.Compare(a.GetDue().AsTime().UnixNano(), b.GetDue().AsTime().UnixNano())
	})
	return connect.NewResponse(out), nil
}

// CancelTimer implements TimerServiceHandler.
func (s timerService) CancelTimer(ctx context.Context, req *connect.Request[skerryv1.CancelTimerRequest]) (*connect.Response[skerryv1.CancelTimerResponse], error) {
	if _, err := ids.Parse(ids.Timer, req.Msg.GetTimerId()); err != nil {
		return nil, problem.Missing("timerId", "no such timer is pending")
	}
	timer, err := s.cancel(ctx, caller(ctx).subject, req.Msg.GetTimerId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.CancelTimerResponse{Timer: apiTimer(timer)}), nil
}

func (s timerService) cancel(ctx context.Context, agent, id string) (*raftlogv1.Timer, error) {
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_CancelTimer{CancelTimer: &raftlogv1.CancelTimer{Agent: agent, Id: id}}})
	return answer.GetTimer(), err
}

func apiTimer(t *raftlogv1.Timer) *skerryv1.Timer {
	return &skerryv1.Timer{Id: t.GetId(), Due: t.GetDue(), Message: t.GetMessage(), ExecutionId: t.GetExecutionId(), Created: t.GetCreated()}
}

// fireTimers is a leader task: it sleeps until the first timer is due by this
// coordinator's clock and moves what is due into inboxes.
func (c *Coordinator) fireTimers(ctx context.Context) {
	for ctx.Err() == nil {
		changed := c.state.Changed()
		due, wait := dueTimers(c.state.Read().NextTimers(fireBatch), time.Now())
		if len(due) == 0 {
			c.awaitTimer(ctx, changed, wait)
			continue
		}
		_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_FireTimers{FireTimers: &raftlogv1.FireTimers{Ids: due}}})
		if err != nil && ctx.Err() == nil {
			c.logger.WarnContext(ctx, "fire timers", "timers", len(due), "error", err)
			pause(ctx, time.Second)
		}
	}
}

// dueTimers splits what comes next into what is due and the wait for the rest;
// a wait of 0 is for ever.
func dueTimers(next []*raftlogv1.Timer, now time.Time) (due []string, wait time.Duration) {
	for _, t := range next {
		if at := t.GetDue().AsTime(); at.After(now) {
			return due, min(at.Sub(now), clockCheck)
		}
		due = append(due, t.GetId())
	}
	return due, 0
}

func (c *Coordinator) awaitTimer(ctx context.Context, changed <-chan struct{}, wait time.Duration) {
	var alarm <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-alarm:
	}
}

// How far back the leader before may have made timers without looking again
// whether their execution goes on, and how long their runner may take to come.
const (
	linkedWindow = time.Minute
	linkedWait   = time.Minute
)

// recheckLinked is a leader task: the leader before may have died between
// committing a timer and looking again whether the execution, whose end cancels
// it, had ended meanwhile.
func (c *Coordinator) recheckLinked(ctx context.Context) {
	from := ids.New(ids.Timer, 0, time.Now().Add(-linkedWindow)).String()
	var all sync.WaitGroup
	defer all.Wait()
	turns := make(chan struct{}, 16)
	for _, t := range c.state.Read().TimersFrom(from) {
		if t.GetExecutionId() == "" {
			continue
		}
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			c.recheck(ctx, t)
		})
	}
}

func (c *Coordinator) recheck(ctx context.Context, t *raftlogv1.Timer) {
	ctx, cancel := context.WithTimeout(withIdentity(ctx, identity{role: skerryv1.RoleAgent, subject: t.GetAgent()}), linkedWait)
	defer cancel()
	s := timerService{c}
	for {
		err := s.checkExecution(ctx, t.GetExecutionId())
		if problem.Of(err).GetReason() == problem.NotRunning {
			_, err = s.cancel(ctx, t.GetAgent(), t.GetId())
		}
		if err == nil || !runnerGone(err) || !pause(ctx, time.Second) {
			return
		}
	}
}
