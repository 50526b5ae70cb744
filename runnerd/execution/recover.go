package execution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"skerry.internal/proto/ids"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox/supervisor"
)

// Recover takes up what had not ended when the daemon stopped: running
// executions are waited for again, ended ones are committed, those that never
// started are queued in their old order, and those whose supervisor is gone
// without a verdict become unknown. Nothing is run twice (I2, I3).
func (e *Engine) Recover(ctx context.Context, workspaces map[string]*workspace.Workspace) error {
	open, err := e.journal.Unfinished(ctx)
	if err != nil {
		return fmt.Errorf("recover executions: %w", err)
	}
	if err := e.resumeIDs(ctx); err != nil {
		return err
	}
	rebooted, err := e.noteBoot(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, o := range open {
		ws := o.Record.Workspace
		first := !seen[ws]
		seen[ws] = true
		lost := first && rebooted
		if first && !lost {
			if lost, err = e.abandoned(o.Record.Id); err != nil {
				return fmt.Errorf("recover execution %s: %w", o.Record.Id, err)
			}
		}
		if err := e.recoverOne(ctx, o, workspaces[ws], first, lost); err != nil {
			return fmt.Errorf("recover execution %s: %w", o.Record.Id, err)
		}
	}
	for id, w := range workspaces {
		if !seen[id] {
			if err := e.settle(w); err != nil {
				return fmt.Errorf("recover workspace %s: %w", id, err)
			}
		}
	}
	return nil
}

// settle lets the next in the queue be a commit of what a crash may have left
// in the directory, so that it is not taken for the work of who comes next.
func (e *Engine) settle(w *workspace.Workspace) error {
	ticket, err := w.Requeue()
	if err != nil {
		return err
	}
	e.wg.Go(func() {
		defer ticket.Release()
		select {
		case <-ticket.Admitted():
		case <-e.ctx.Done():
			return
		}
		select {
		case e.slots <- struct{}{}:
		case <-e.ctx.Done():
			return
		}
		defer func() { <-e.slots }()
		if err := w.Settle(e.ctx); err != nil && e.ctx.Err() == nil {
			e.log.Error("workspace not settled", "workspace", w.ID, "err", err)
		}
	})
	return nil
}

// noteBoot tells whether the host was restarted since the last Recover. What
// was not committed may then be lost in part, whatever files say: the first
// open execution of each workspace may have run, and its outcome is unknown.
// Those behind it cannot have started.
func (e *Engine) noteBoot(ctx context.Context) (rebooted bool, err error) {
	const key = "boot_id"
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false, fmt.Errorf("recover executions: %w", err)
	}
	before, err := e.journal.Meta(ctx, key)
	if err != nil {
		return false, err
	}
	current := strings.TrimSpace(string(now))
	if before == current {
		return false, nil
	}
	return before != "", e.journal.SetMeta(ctx, map[string]string{key: current})
}

// resumeIDs keeps new ids behind old ones though the clock went back.
func (e *Engine) resumeIDs(ctx context.Context) error {
	last, err := e.journal.LastExecution(ctx)
	if err != nil || last == "" {
		return err
	}
	id, err := ids.Parse(ids.Execution, last)
	if err != nil {
		return fmt.Errorf("recover executions: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastMS = id.Time().UnixMilli()
	return nil
}

func (e *Engine) recoverOne(ctx context.Context, o journal.Unfinished, w *workspace.Workspace, first, lost bool) error {
	if w == nil {
		return fmt.Errorf("its workspace %s has no record", o.Record.Workspace)
	}
	var l Launch
	if err := json.Unmarshal(o.Launch, &l); err != nil {
		return fmt.Errorf("read launch: %w", err)
	}
	if lost {
		e.log.Warn("execution lost: the host was restarted or its directory removed", "execution", o.Record.Id)
		return e.resume(w, o.Record, l, e.runLost)
	}
	h, state, err := e.attach(ctx, o.Record.Id)
	if err != nil {
		return err
	}
	if first && state == supervisor.StateNeverStarted {
		if err := e.settle(w); err != nil {
			return err
		}
	}
	if state == supervisor.StateNeverStarted {
		e.log.Info("execution queued again", "execution", o.Record.Id)
		return e.resume(w, o.Record, l, func(x *live) { e.run(x, nil) })
	}
	e.log.Info("execution found again", "execution", o.Record.Id, "state", state)
	if err := e.launcher.Resume(o.Record.Id, w, l); err != nil {
		e.log.Error("execution goes on without its network", "execution", o.Record.Id, "err", err)
	}
	o.Record.State = skerryv1.StateRunning
	return e.resume(w, o.Record, l, func(x *live) {
		x.found(h)
		e.run(x, h)
	})
}

// resume puts an execution back into its queue and goes on with it.
func (e *Engine) resume(w *workspace.Workspace, record *skerryv1.Execution, l Launch, run func(*live)) error {
	ticket, err := w.Requeue()
	if err != nil {
		return err
	}
	x := newLive(w, ticket, record, l)
	e.mu.Lock()
	e.live[record.Id] = x
	e.mu.Unlock()
	e.wg.Go(func() { run(x) })
	return nil
}

// runLost ends an execution of before a restart of the host.
func (e *Engine) runLost(x *live) {
	defer x.ticket.Release()
	select {
	case <-x.ticket.Admitted():
	case <-e.ctx.Done():
		return
	}
	exit := supervisor.Exit{Kind: supervisor.KindLost, Ended: e.cfg.Now(),
		Detail: "the host was restarted, or the execution's records removed, before the end was committed; how far it came is not known"}
	if committed, ok := e.commit(x, exit, func() {}); ok {
		e.finish(x, exit, committed)
	}
}

// abandoned ends the sandbox of an execution whose directory somebody removed.
// Without a look it would count as never started, and run twice at once (I3, I6).
func (e *Engine) abandoned(id string) (bool, error) {
	dir := e.dir(id)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return supervisor.EndAbandoned(dir)
}

func (e *Engine) attach(ctx context.Context, id string) (*supervisor.Handle, supervisor.State, error) {
	dir := e.dir(id)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, supervisor.StateNeverStarted, nil
	}
	return supervisor.Attach(ctx, dir)
}
