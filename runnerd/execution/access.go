package execution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
)

// Get gives the agent's execution as it is now. Another agent's is not found.
func (e *Engine) Get(ctx context.Context, agent, id string) (*skerryv1.Execution, error) {
	if x := e.find(id); x != nil {
		r := x.snapshot()
		if r.Agent != agent {
			return nil, missing(id)
		}
		if r.State == skerryv1.StateRunning {
			r.Stdout, r.Stderr = e.output(id)
			r.InputAccepted = inputBytes(ctx, x)
		}
		return r, nil
	}
	r, err := e.journal.Execution(ctx, id)
	if errors.Is(err, journal.ErrNotFound) || (err == nil && r.Agent != agent) {
		return nil, missing(id)
	}
	return r, err
}

// inputBytes asks the supervisor of an interactive execution how much input it
// had; without an answer a writer begins at 0 and is told better.
func inputBytes(ctx context.Context, x *live) uint64 {
	h := x.supervisor()
	if x.launch.Input == nil || h == nil {
		return 0
	}
	status, err := h.Status(ctx)
	if err != nil {
		return 0
	}
	return status.InputBytes
}

func missing(id string) error {
	const most = 40
	return problem.Missing("executionId", "no execution %.*s", most, id)
}

// Await waits until the execution is terminal, at most for d, and gives it.
func (e *Engine) Await(ctx context.Context, agent, id string, d time.Duration) (*skerryv1.Execution, error) {
	x := e.find(id)
	if x == nil || d <= 0 {
		return e.Get(ctx, agent, id)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-x.done:
	case <-timer.C:
	case <-e.ctx.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return e.Get(ctx, agent, id)
}

// AwaitEnd waits until the execution is terminal and gives it.
func (e *Engine) AwaitEnd(ctx context.Context, agent, id string) (*skerryv1.Execution, error) {
	if x := e.find(id); x != nil {
		select {
		case <-x.done:
		case <-e.ctx.Done():
			return nil, shuttingDown()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return e.Get(ctx, agent, id)
}

func shuttingDown() error {
	return problem.New(connect.CodeUnavailable, problem.ShuttingDown, "try again", "the runner is shutting down").Retry()
}

// List gives the agent's executions, newest first, without their output text.
func (e *Engine) List(ctx context.Context, agent, state, before string, limit int) ([]*skerryv1.Execution, error) {
	// Running is not durable while it lasts: the journal has such records as queued.
	stored := state
	if state == skerryv1.StateRunning {
		stored = skerryv1.StateQueued
	}
	var all []*skerryv1.Execution
	for len(all) < limit {
		page, err := e.journal.List(ctx, agent, stored, before, limit)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			before = r.Id
			if x := e.find(r.Id); x != nil {
				r = x.snapshot()
			}
			if (state == "" || r.State == state) && len(all) < limit {
				all = append(all, withoutText(r))
			}
		}
		if len(page) < limit {
			break
		}
	}
	return all, nil
}

func withoutText(r *skerryv1.Execution) *skerryv1.Execution {
	for _, o := range []*skerryv1.Output{r.Stdout, r.Stderr} {
		if o != nil {
			o.Text, o.OmittedBytes = "", o.TotalBytes
		}
	}
	return r
}

// Cancel asks for the end of an execution; Await tells when it has come.
// Cancelling one that has ended does nothing.
func (e *Engine) Cancel(ctx context.Context, agent, id, reason string) error {
	if _, err := e.Get(ctx, agent, id); err != nil {
		return err
	}
	x := e.find(id)
	if x == nil {
		return nil
	}
	h := x.requestCancel(reason)
	if h == nil {
		return nil
	}
	if err := h.Cancel(ctx, reason); err != nil {
		return fmt.Errorf("cancel %s: %w", id, err)
	}
	return nil
}

// CancelWorkspace asks for the end of all that runs or waits in a workspace.
func (e *Engine) CancelWorkspace(ctx context.Context, workspace, reason string) error {
	e.mu.Lock()
	var ids, agents []string
	for id, x := range e.live {
		if x.w.ID == workspace {
			ids, agents = append(ids, id), append(agents, x.w.Agent)
		}
	}
	e.mu.Unlock()
	var errs []error
	for i, id := range ids {
		errs = append(errs, e.Cancel(ctx, agents[i], id, reason))
	}
	return errors.Join(errs...)
}
