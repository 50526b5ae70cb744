// Package workspace keeps the directories of agents on a runner: one writer at
// a time in the order of asking, every change committed to the content store,
// writes by the daemon held beneath the directory by the kernel.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/diskquota"
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
	// tally of what the directory takes of the disk.
	tally diskquota.Tally

	mu     sync.Mutex
	tried  chan struct{} // closed and renewed at the end of each Commit
	epoch  uint64
	head   cas.Head
	last   cas.Commit // that head names
	over   *Over      // by what the directory took of the disk at the last measure
	state  string
	detail string
	from   cas.Commit // what an adopted workspace's first commit goes on from
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
	switch w.state {
	case skerryv1.WorkspaceReady:
		return nil
	case skerryv1.WorkspaceFenced:
		return fencedError(w.ID)
	case skerryv1.WorkspaceRestoring:
		return problem.New(connect.CodeUnavailable, problem.WorkspaceMoving, "repeat the call a little later", "the workspace is being restored on this runner").Retry()
	}
	return problem.New(connect.CodeFailedPrecondition, problem.WorkspaceNeedsRepair,
		"mend the cause, then call RepairWorkspace (skerry workspace repair); no file is lost",
		"the last commit of this workspace failed: %s", w.detail)
}

// Admit says whether new work may be accepted: the workspace is Writable and
// the host has room.
func (w *Workspace) Admit(ctx context.Context) error {
	if err := w.Writable(); err != nil {
		return err
	}
	if admit := w.manager.cfg.Admit; admit != nil {
		return admit(ctx)
	}
	return nil
}

// Status is the workspace as the API shows it.
func (w *Workspace) Status() *skerryv1.Workspace {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &skerryv1.Workspace{Id: w.ID, Agent: w.Agent, Epoch: w.epoch, State: w.state, Detail: w.detail}
	s.Head = headProto(w.last)
	s.Usage = w.manager.cfg.Quota.usage(w.last.Stats, w.over)
	return s
}

// HeadSnapshot is the latest committed snapshot; nil before the first.
func (w *Workspace) HeadSnapshot() *skerryv1.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return headProto(w.last)
}

func headProto(c cas.Commit) *skerryv1.Snapshot {
	if c.Seq == 0 {
		return nil
	}
	return &skerryv1.Snapshot{Digest: c.Tree.String(), Parent: c.ParentTree.String(), Commit: c.Digest.String(), Seq: c.Seq,
		Files: uint64(c.Stats.Files), Bytes: uint64(c.Stats.Bytes), SkippedCount: uint32(c.Stats.Skipped)}
}

// Committed is what a commit did.
type Committed struct {
	Snapshot *skerryv1.Snapshot
	Changes  *skerryv1.Changes
	// Over is the quota that the snapshot passes; nil when it passes none.
	Over *Over
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
	if w.Writable() != nil && !w.Fenced() {
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
	shot, head, err := w.record(ctx, dir, cas.CommitRequest{Head: w.ID, Expect: before.Commit, Epoch: epoch, Source: source, Time: began, From: w.origin()})
	if err != nil {
		return Committed{}, err
	}
	w.manager.cfg.step("head moved")
	last, err := store.ReadCommit(ctx, head.Commit)
	if err != nil {
		return Committed{}, err
	}
	// What this commit recorded as its parent, also when it was made already
	// before a crash.
	changes, err := Changes(ctx, store, last.ParentTree, head.Tree, w.manager.cfg.MaxChangedPaths)
	if err != nil {
		return Committed{}, err
	}
	w.mu.Lock()
	w.head, w.last = head, last
	w.mu.Unlock()
	w.manager.metrics.commits.Observe(time.Since(began).Seconds())
	over := w.manager.cfg.Quota.over(last.Stats)
	_, taken, err := w.measure(dir)
	if err != nil { // no reason to refuse writers
		w.manager.log.Warn("workspace not measured", "workspace", w.ID, "err", err)
	}
	if over == nil {
		over = taken
	}
	return Committed{Snapshot: snapshotProto(last, shot), Changes: changes, Over: over}, nil
}

// record snapshots the directory and commits the snapshot. One that is not
// committed while two collections go by may be collected: it is then taken anew.
func (w *Workspace) record(ctx context.Context, dir *os.File, req cas.CommitRequest) (cas.SnapshotResult, cas.Head, error) {
	const most = 3
	for try := 1; ; try++ {
		shot, err := w.manager.store.Snapshot(ctx, dir, cas.SnapshotOptions{CacheKey: w.ID})
		if err != nil {
			return shot, cas.Head{}, err
		}
		w.manager.metrics.mismatches.Add(float64(shot.CacheMismatches))
		if shot.UnstableTotal > 0 {
			return shot, cas.Head{}, &unstableError{shot.UnstableTotal, shot.Unstable}
		}
		w.manager.cfg.step("snapshot taken")
		req.Tree, req.Stats = shot.Tree, shot.TreeStats
		head, err := w.manager.store.Commit(ctx, req)
		if !errors.Is(err, cas.ErrNotFound) || try == most {
			return shot, head, err
		}
		w.manager.log.Warn("snapshot was collected before it was committed, taken anew", "workspace", w.ID)
	}
}

// Settle commits what a crash left between a write and its commit, as a
// revision of its own; it does nothing when the directory is as the head has it.
// The caller holds the lane. A workspace that waits for a repair is left to it.
func (w *Workspace) Settle(ctx context.Context) error {
	if w.Writable() != nil {
		return nil //nolint:nilerr // left to Repair
	}
	dir, err := w.openTree()
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	shot, err := w.manager.store.Snapshot(ctx, dir, cas.SnapshotOptions{CacheKey: w.ID})
	if err != nil {
		return err
	}
	if head := w.Head(); shot.Tree == head.Tree || (head.Seq == 0 && shot.TreeStats == cas.TreeStats{}) {
		return nil
	}
	_, err = w.Commit(ctx, "recovery:")
	return err
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

func (w *Workspace) setState(ctx context.Context, state, detail string) {
	w.mu.Lock()
	if w.state == skerryv1.WorkspaceFenced {
		state = w.state // it stays a branch, whatever becomes of its last commit
	}
	w.state, w.detail = state, detail
	w.mu.Unlock()
	// The record outlives a restart; if it cannot be written, recovery finds the
	// uncommitted execution itself, so that the failure is only logged.
	if err := w.manager.journal.SetWorkspaceState(context.WithoutCancel(ctx), w.ID, state, detail); err != nil {
		w.manager.log.Error("workspace state not recorded", "workspace", w.ID, "state", state, "err", err)
	}
	w.manager.publish(w)
}

func snapshotProto(c cas.Commit, shot cas.SnapshotResult) *skerryv1.Snapshot {
	s := headProto(c)
	for _, skipped := range shot.Skipped[:min(len(shot.Skipped), mostReported)] {
		s.Skipped = append(s.Skipped, &skerryv1.Skipped{Path: Display(skipped.Path), Kind: skipped.Kind.String(), Reason: skipped.Reason.String()})
	}
	for _, d := range shot.Dropped[:min(len(shot.Dropped), mostReported)] {
		s.Dropped = append(s.Dropped, &skerryv1.Dropped{Path: Display(d.Path), What: "set-id or sticky bits"})
	}
	for _, d := range shot.DroppedXattrs[:min(len(shot.DroppedXattrs), mostReported)] {
		s.Dropped = append(s.Dropped, &skerryv1.Dropped{Path: Display(d.Path), What: d.Reason.String()})
	}
	s.DroppedCount = uint32(min(shot.DroppedTotal+shot.DroppedXattrsTotal, math.MaxUint32))
	return s
}

// mostReported bounds each list of what a snapshot could not keep.
const mostReported = 50
