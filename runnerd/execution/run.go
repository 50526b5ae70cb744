package execution

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox/supervisor"
)

// run takes an execution from its place in the queue to its end. found is its
// supervisor when it was started before. It returns early, leaving the
// execution to a later Recover, only when the engine closes.
func (e *Engine) run(x *live, found *supervisor.Handle) {
	defer x.ticket.Release()
	switch e.turn(x, found != nil) {
	case turnCancelled:
		e.finish(x, cancelledBeforeStart(x), workspace.Committed{Snapshot: x.w.HeadSnapshot(), Changes: &skerryv1.Changes{}})
	case turnHeld:
		free := sync.OnceFunc(func() { <-e.slots })
		defer free()
		e.cfg.step("turn")
		exit, ok := e.supervise(x, found)
		if !ok {
			return
		}
		e.cfg.step("ended")
		e.launcher.Release(x.record.Id)
		e.cfg.step("released")
		if committed, ok := e.commit(x, exit, free); ok {
			e.cfg.step("committed")
			e.finish(x, overQuota(exit, committed), committed)
		}
	case turnClosed:
	}
}

type turn int

const (
	turnHeld      turn = iota // it holds the workspace and a slot
	turnCancelled             // cancelled before; it holds nothing
	turnClosed                // the engine closes; it holds nothing
)

// turn waits for the workspace and then for a slot. What was started before
// cannot be cancelled by not starting it.
func (e *Engine) turn(x *live, started bool) turn {
	cancelled := x.cancelled
	if started {
		cancelled = nil
	}
	select {
	case <-x.ticket.Admitted():
	case <-cancelled:
		return turnCancelled
	case <-e.ctx.Done():
		return turnClosed
	}
	select {
	case e.slots <- struct{}{}:
		return turnHeld
	case <-cancelled:
		return turnCancelled
	case <-e.ctx.Done():
		return turnClosed
	}
}

// overQuota is the verdict of a command that ended by itself and left its
// workspace over a quota. What it left is committed all the same, and commands
// may go on, or else nothing could be removed.
func overQuota(exit supervisor.Exit, c workspace.Committed) supervisor.Exit {
	if c.Over != nil && exit.Kind == supervisor.KindExited {
		exit.Kind, exit.Limit, exit.Detail = supervisor.KindQuotaExceeded, c.Over.Limit, c.Over.Detail()
	}
	return exit
}

func cancelledBeforeStart(x *live) supervisor.Exit {
	reason, _ := x.cancelReason()
	detail := "cancelled before it started"
	if reason != "" {
		detail += ": " + reason
	}
	return supervisor.Exit{Kind: supervisor.KindCancelled, Detail: detail}
}

// supervise starts the supervisor, unless it was found, and waits for the
// verdict. ok is false when the engine closes first.
func (e *Engine) supervise(x *live, h *supervisor.Handle) (exit supervisor.Exit, ok bool) {
	id, found := x.record.Id, h != nil
	if !found {
		if _, cancelled := x.cancelReason(); cancelled {
			return cancelledBeforeStart(x), true
		}
		began := time.Now()
		var err error
		if h, err = e.launch(x); err != nil {
			e.log.Error("execution not started", "execution", id, "err", err)
			return supervisor.Exit{Kind: supervisor.KindStartFailed, Detail: startProblem(err), Ended: e.cfg.Now()}, true
		}
		e.cfg.step("started")
		e.metrics.launch.Observe(time.Since(began).Seconds())
	}
	x.running(h, e.cfg.Now())
	if reason, cancelled := x.cancelReason(); cancelled {
		e.tell(x, h, reason)
	}
	if err := e.launcher.Begin(e.ctx, id, x.w, x.launch, h, found); err != nil {
		if e.ctx.Err() != nil {
			return exit, false
		}
		e.log.Error("sandbox not made", "execution", id, "err", err)
	}
	if h.Connects() {
		e.cfg.step("begun")
	}
	exit, err := h.Wait(e.ctx)
	if err != nil && e.ctx.Err() != nil {
		return exit, false
	}
	if errors.Is(err, supervisor.ErrNeverStarted) {
		e.log.Error("execution not started", "execution", id, "err", err)
		return supervisor.Exit{Kind: supervisor.KindStartFailed, Detail: "the supervisor could not start; the runner's log says why", Ended: e.cfg.Now()}, true
	}
	if err != nil {
		e.log.Error("execution lost", "execution", id, "err", err)
		exit = supervisor.Exit{Kind: supervisor.KindLost, Detail: "its supervisor ended without a verdict", Ended: e.cfg.Now()}
	}
	return exit, true
}

// startProblem is what an agent learns of a launch that failed.
func startProblem(err error) string {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Detail
	}
	return "the runner could not start the supervisor"
}

func (e *Engine) launch(x *live) (*supervisor.Handle, error) {
	id := x.record.Id
	spec, err := e.launcher.Spec(e.ctx, id, x.w, x.launch)
	if err != nil {
		return nil, fmt.Errorf("build sandbox: %w", err)
	}
	e.cfg.step("sandbox made")
	dir := e.dir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	e.cfg.step("directory made")
	if len(x.launch.Stdin) > 0 {
		if err := os.WriteFile(dir+"/"+stdinFile, x.launch.Stdin, 0o600); err != nil {
			return nil, err
		}
		spec.Stdin = stdinFile
	}
	spec.Input = x.launch.Input
	return e.shims.Start(e.ctx, dir, spec)
}

const stdinFile = "stdin"

func (e *Engine) tell(x *live, h *supervisor.Handle, reason string) {
	if err := h.Cancel(e.ctx, reason); err != nil {
		e.log.Warn("cancel not delivered", "execution", x.record.Id, "err", err)
	}
}

// finish records the end and only then lets waiters and the next writer go on:
// what the execution left in its workspace is committed already (I1).
func (e *Engine) finish(x *live, exit supervisor.Exit, committed workspace.Committed) {
	stdout, stderr := e.output(x.record.Id)
	record := x.update(func(r *skerryv1.Execution) {
		r.State, r.Verdict = outcome(exit)
		r.Stdout, r.Stderr = stdout, stderr
		r.Snapshot, r.Changes = committed.Snapshot, committed.Changes
		r.Usage = usage(exit)
		r.InputAccepted = exit.InputBytes
		r.Problem = ""
		setTimes(r.Times, exit, e.cfg.Now())
	})
	if !e.record(x, record) {
		return
	}
	e.cfg.step("recorded")
	e.mu.Lock()
	delete(e.live, record.Id)
	e.mu.Unlock()
	x.w.Announce() // the commit was told while this one was still counted
	x.ticket.Release()
	close(x.done)
	e.forgetInputs(x)
	e.cfg.step("forgotten")
	e.metrics.ended(record)
	e.log.Info("execution ended", "execution", record.Id, "agent", record.Agent, "state", record.State, "verdict", record.Verdict.Kind, "detail", exit.Detail)
}

// forgetInputs empties what was needed to start the command: it may hold
// secrets, and nothing reads it again. Emptying is cheaper than removing.
func (e *Engine) forgetInputs(x *live) {
	names := []string{"spec.json"}
	if len(x.launch.Stdin) > 0 {
		names = append(names, stdinFile)
	}
	dir := e.dir(x.record.Id)
	for _, name := range names {
		if err := os.Truncate(dir+"/"+name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.log.Warn("input not removed", "execution", x.record.Id, "file", name, "err", err)
		}
	}
}

// commit retries until it succeeds or the engine closes. Between tries the
// workspace waits for a repair; that may take long, so that it gives the slot
// back first: a few such workspaces must not keep all others waiting.
func (e *Engine) commit(x *live, exit supervisor.Exit, freeSlot func()) (workspace.Committed, bool) {
	for {
		c, err := x.w.Commit(e.ctx, "execution:"+x.record.Id)
		if err == nil {
			return c, true
		}
		if e.ctx.Err() != nil {
			return c, false
		}
		e.metrics.commitFailures.Inc()
		x.update(func(r *skerryv1.Execution) {
			r.Problem = "the command ended (" + string(exit.Kind) + ") but its workspace could not be committed: " + workspace.CommitCause(err) +
				"; mend the cause, then run: skerry workspace repair"
		})
		freeSlot()
		if !x.w.AwaitRepair(e.ctx) {
			return c, false
		}
	}
}

// record retries: an execution must not be terminal before that is durable.
func (e *Engine) record(x *live, r *skerryv1.Execution) bool {
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
		err := e.journal.Finish(context.WithoutCancel(e.ctx), r)
		if err == nil {
			return true
		}
		e.log.Error("end of execution not recorded", "execution", r.Id, "err", err)
		select {
		case <-e.ctx.Done():
			return false
		case <-time.After(delay):
		}
	}
}

func setTimes(t *skerryv1.Times, exit supervisor.Exit, now time.Time) {
	if !exit.Started.IsZero() {
		t.Started = timestamppb.New(exit.Started)
	}
	t.Ended = timestamppb.New(now)
	if !exit.Ended.IsZero() {
		t.Ended = timestamppb.New(exit.Ended)
	}
	t.Committed = timestamppb.New(now)
}
