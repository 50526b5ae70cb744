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
	first := map[string]bool{}
	for _, o := range open {
		ws := o.Record.Workspace
		lost := rebooted && !first[ws]
		if !first[ws] && !lost {
			if lost, err = e.abandoned(o.Record.Id); err != nil {
				return fmt.Errorf("recover execution %s: %w", o.Record.Id, err)
			}
		}
		first[ws] = true
		if err := e.recoverOne(ctx, o, workspaces[ws], lost); err != nil {
			return fmt.Errorf("recover execution %s: %w", o.Record.Id, err)
		}
	}
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

func (e *Engine) recoverOne(ctx context.Context, o journal.Unfinished, w *workspace.Workspace, lost bool) error {
	if w == nil {
		return fmt.Errorf("its workspace %s has no record", o.Record.Workspace)
	}
	var l Launch
	if err := json.Unmarshal(o.Launch, &l); err != nil {
		return fmt.Errorf("read launch: %w", err)
	}
	ticket, err := w.Requeue()
	if err != nil {
		return err
	}
	x := newLive(w, ticket, o.Record, l)
	if lost {
		e.log.Warn("execution lost: the host was restarted or its directory removed", "execution", o.Record.Id)
		e.register(x)
		e.wg.Go(func() { e.runLost(x) })
		return nil
	}
	h, state, err := e.attach(ctx, o.Record.Id)
	if err != nil {
		ticket.Release()
		return err
	}
	e.register(x)
	if state == supervisor.StateNeverStarted {
		e.log.Info("execution queued again", "execution", o.Record.Id)
		e.start(x, nil)
		return nil
	}
	e.log.Info("execution found again", "execution", o.Record.Id, "state", state)
	x.found(h)
	e.start(x, h)
	return nil
}

func (e *Engine) register(x *live) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[x.record.Id] = x
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
