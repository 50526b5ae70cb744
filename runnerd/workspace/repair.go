package workspace

import "context"

// AwaitRepair is called by a writer that holds the lane and whose commit
// failed. It returns true when Repair asks to try again, false when ctx ends.
// The writer's next Commit answers the Repair.
func (w *Workspace) AwaitRepair(ctx context.Context) bool {
	select {
	case w.repair <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Repair commits what is in the directory and opens the workspace for writers
// again. A writer that is stuck on its commit is told to try it once more;
// otherwise Repair waits for its turn and commits itself.
func (w *Workspace) Repair(ctx context.Context) error {
	if w.Writable() == nil {
		return nil
	}
	ticket, err := w.Requeue()
	if err != nil {
		return err
	}
	defer ticket.Release()
	tried := w.commitTried()
	select {
	case <-w.repair:
		return w.afterRetry(ctx, tried)
	case <-ticket.admitted:
		_, err := w.Commit(ctx, "repair:")
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// afterRetry waits for the stuck writer's commit and tells how it went.
func (w *Workspace) afterRetry(ctx context.Context, tried <-chan struct{}) error {
	select {
	case <-tried:
		return w.Writable()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// commitTried gives a channel that is closed at the end of the next Commit.
func (w *Workspace) commitTried() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tried
}
