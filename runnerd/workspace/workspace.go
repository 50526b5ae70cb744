// Package workspace keeps the directories of agents on a runner: one writer at
// a time in the order of asking, every change committed to the content store,
// writes by the daemon held beneath the directory by the kernel.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Workspace is one persistent directory, with its queue of writers.
type Workspace struct {
	// ID, Agent, UID and GID never change. UID is -1 where the daemon is an
	// ordinary user: files then belong to that user.
	ID    string
	Agent string
	UID   int
	GID   int

	dir     string // holds "tree" and "tmp"
	manager *Manager
	lane    lane
	// repair hands a Repair over to a writer whose commit failed.
	repair chan struct{}

	mu     sync.Mutex
	tried  chan struct{} // closed and renewed at the end of each Commit
	epoch  uint64
	head   cas.Head
	state  string
	detail string
}

// Tree is the host path of the directory that sandboxes see as /workspace.
func (w *Workspace) Tree() string { return w.dir + "/tree" }

// Queue takes a place among the writers without waiting.
func (w *Workspace) Queue() (*Ticket, error) {
	t, err := w.lane.take(false)
	if errors.Is(err, ErrQueueFull) {
		return nil, problem.New(connect.CodeResourceExhausted, problem.WorkspaceQueueFull, "wait for some to end, or cancel them",
			"%d executions and writes wait for this workspace already (limit workspace_queue)", w.lane.most).Retry()
	}
	return t, err
}

// Requeue takes a place for what was accepted before a restart, also when the
// bound has been lowered since.
func (w *Workspace) Requeue() (*Ticket, error) { return w.lane.take(true) }

// Head gives the latest committed snapshot; zero before the first.
func (w *Workspace) Head() cas.Head {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.head
}

// Epoch gives the epoch under which this runner holds the workspace.
func (w *Workspace) Epoch() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch
}

// Writable says whether a writer may start: not after a commit failed.
func (w *Workspace) Writable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == skerryv1.WorkspaceReady {
		return nil
	}
	return problem.New(connect.CodeFailedPrecondition, problem.WorkspaceNeedsRepair,
		"mend the cause, then call RepairWorkspace (skerry workspace repair); no file is lost",
		"the last commit of this workspace failed: %s", w.detail)
}

// Status is the workspace as the API shows it.
func (w *Workspace) Status() *skerryv1.Workspace {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &skerryv1.Workspace{Id: w.ID, Agent: w.Agent, Epoch: w.epoch, State: w.state, Detail: w.detail}
	s.Head = headProto(w.head)
	return s
}

// HeadSnapshot is the latest committed snapshot; nil before the first.
func (w *Workspace) HeadSnapshot() *skerryv1.Snapshot { return headProto(w.Head()) }

func headProto(h cas.Head) *skerryv1.Snapshot {
	if h.Seq == 0 {
		return nil
	}
	return &skerryv1.Snapshot{Digest: h.Tree.String(), Commit: h.Commit.String(), Seq: h.Seq}
}

// Committed is what a commit did.
type Committed struct {
	Snapshot *skerryv1.Snapshot
	Changes  *skerryv1.Changes
}

// Commit snapshots the directory, makes the snapshot durable as the head and
// tells what changed. The caller holds the lane and no process writes any more.
// Committing the same source again, after a crash, gives the first result's
// snapshot. A failure leaves the files as they are and the workspace refusing
// writers until Repair.
func (w *Workspace) Commit(ctx context.Context, source string) (Committed, error) {
	defer w.noteTried()
	c, err := w.commit(ctx, source)
	if err != nil {
		w.manager.log.Error("commit failed", "workspace", w.ID, "source", source, "err", err)
		w.setState(ctx, skerryv1.WorkspaceNeedsRepair, CommitCause(err))
		return Committed{}, fmt.Errorf("commit workspace %s: %w", w.ID, err)
	}
	if w.Writable() != nil {
		w.setState(ctx, skerryv1.WorkspaceReady, "")
	}
	w.manager.publish(w)
	return c, nil
}

func (w *Workspace) commit(ctx context.Context, source string) (Committed, error) {
	began := time.Now()
	before, epoch := w.Head(), w.Epoch()
	dir, err := w.openTree()
	if err != nil {
		return Committed{}, err
	}
	defer func() { _ = dir.Close() }()
	store := w.manager.store
	shot, err := store.Snapshot(ctx, dir, cas.SnapshotOptions{CacheKey: w.ID})
	if err != nil {
		return Committed{}, err
	}
	if shot.UnstableTotal > 0 {
		return Committed{}, &unstableError{shot.UnstableTotal, shot.Unstable}
	}
	head, err := store.Commit(ctx, cas.CommitRequest{Head: w.ID, Expect: before.Commit, Epoch: epoch, Tree: shot.Tree, Source: source,
		Time: began, Stats: shot.TreeStats})
	if err != nil {
		return Committed{}, err
	}
	parent, err := w.parentTree(ctx, before, head)
	if err != nil {
		return Committed{}, err
	}
	changes, err := Changes(ctx, store, parent, head.Tree, w.manager.cfg.MaxChangedPaths)
	if err != nil {
		return Committed{}, err
	}
	w.mu.Lock()
	w.head = head
	w.mu.Unlock()
	w.manager.metrics.commits.Observe(time.Since(began).Seconds())
	return Committed{Snapshot: snapshotProto(head, parent, shot), Changes: changes}, nil
}

// openTree opens the directory, which belongs to the agent: where the daemon is
// an ordinary user, a chmod by the agent could lock it out.
func (w *Workspace) openTree() (*os.File, error) {
	const owner = 0o700
	if w.UID < 0 {
		info, err := os.Lstat(w.Tree())
		if err != nil {
			return nil, err
		}
		if mode := info.Mode().Perm(); info.IsDir() && mode&owner != owner {
			if err := os.Chmod(w.Tree(), mode|owner); err != nil {
				return nil, err
			}
		}
	}
	return os.Open(w.Tree())
}

func (w *Workspace) noteTried() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.tried)
	w.tried = make(chan struct{})
}

// parentTree is what to compare with: the head before, or, when this commit
// had been made already before a crash, the parent that it recorded.
func (w *Workspace) parentTree(ctx context.Context, before, head cas.Head) (cas.Digest, error) {
	if before.Commit != head.Commit {
		return before.Tree, nil
	}
	c, err := w.manager.store.ReadCommit(ctx, head.Commit)
	return c.ParentTree, err
}

func (w *Workspace) setState(ctx context.Context, state, detail string) {
	w.mu.Lock()
	w.state, w.detail = state, detail
	w.mu.Unlock()
	// The record outlives a restart; if it cannot be written, recovery finds the
	// uncommitted execution itself, so that the failure is only logged.
	if err := w.manager.journal.SetWorkspaceState(context.WithoutCancel(ctx), w.ID, state, detail); err != nil {
		w.manager.log.Error("workspace state not recorded", "workspace", w.ID, "state", state, "err", err)
	}
	w.manager.publish(w)
}

func snapshotProto(head cas.Head, parent cas.Digest, shot cas.SnapshotResult) *skerryv1.Snapshot {
	const mostSkipped = 50
	s := &skerryv1.Snapshot{Digest: head.Tree.String(), Commit: head.Commit.String(), Seq: head.Seq,
		Parent: parent.String(), Files: uint64(shot.TreeStats.Files), Bytes: uint64(shot.TreeStats.Bytes), SkippedCount: uint32(shot.TreeStats.Skipped)}
	for i, skipped := range shot.Skipped {
		if i == mostSkipped {
			break
		}
		s.Skipped = append(s.Skipped, &skerryv1.Skipped{Path: Display(skipped.Path), Kind: skipped.Kind.String(), Reason: skipped.Reason.String()})
	}
	return s
}
