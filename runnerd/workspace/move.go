package workspace

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func fencedError(id string) *problem.Error {
	return problem.New(connect.CodeAborted, problem.Fenced, "ask the coordinator again; what this runner has of it is a branch, to be read and transferred from",
		"workspace %s was assigned to another runner", id)
}

// Fenced reports whether the workspace went on elsewhere, so that what is here
// is a branch: it is read, and what still ran when it was fenced commits its end,
// but nothing new is written.
func (w *Workspace) Fenced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state == skerryv1.WorkspaceFenced
}

// Open gives a workspace that this runner has, nil for one that it never had.
func (m *Manager) Open(id string) *Workspace {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[id]
}

// Fence makes the workspace a branch, since it goes on under epoch elsewhere. It
// reports false when this runner has it under that epoch or a later one itself.
// The fence is durable when it returns.
func (w *Workspace) Fence(ctx context.Context, epoch uint64) (bool, error) {
	w.mu.Lock()
	if w.epoch >= epoch {
		w.mu.Unlock()
		return false, nil
	}
	was := w.state
	w.state, w.detail = skerryv1.WorkspaceFenced, fmt.Sprintf("the workspace went on under epoch %d on another runner", epoch)
	detail := w.detail
	w.mu.Unlock()
	if was == skerryv1.WorkspaceFenced {
		return true, nil
	}
	if err := w.manager.journal.SetWorkspaceState(context.WithoutCancel(ctx), w.ID, skerryv1.WorkspaceFenced, detail); err != nil {
		return true, fmt.Errorf("fence workspace %s: %w", w.ID, err)
	}
	w.manager.log.Warn("workspace fenced: it went on elsewhere, and is kept here as a branch", "workspace", w.ID, "epoch", w.Epoch(), "fence", epoch)
	w.manager.publish(w)
	return true, nil
}

// origin is what the first commit goes on from.
func (w *Workspace) origin() cas.Commit {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from
}

// Adopt makes an empty workspace what another runner's commit has, whose tree
// lies in the store, and goes on with its history. A zero commit makes it begin
// empty. The caller holds the lane. Adopting again does nothing.
func (w *Workspace) Adopt(ctx context.Context, from cas.Commit) error {
	if w.Head().Seq > 0 {
		return nil
	}
	if from.Tree.IsZero() {
		if w.Writable() != nil {
			w.setState(ctx, skerryv1.WorkspaceReady, "")
		}
		return nil
	}
	// Until it is committed nobody takes what lies there for the workspace.
	w.setState(ctx, skerryv1.WorkspaceRestoring, "it is being restored from a replica")
	if err := w.restoreAll(ctx, from.Tree); err != nil {
		return noRoom(err)
	}
	w.mu.Lock()
	w.from = from
	w.mu.Unlock()
	_, err := w.Commit(context.WithoutCancel(ctx), "adoption:"+from.Digest.String())
	return err
}
