package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// An admin's move waits so long for the last commits to be copied.
	lastReplicaTimeout = time.Minute
	restoreRetry       = 2 * time.Second
	moveTimeout        = 6 * time.Hour
	// Workspaces that are restored at once.
	restoresAtOnce = 16
)

func moving(ws *raftlogv1.Workspace) *problem.Error {
	return problem.New(connect.CodeUnavailable, problem.WorkspaceMoving, "repeat the call a little later",
		"workspace %s was assigned to runner %q, which is restoring it", ws.GetId(), ws.GetRunner()).Retry()
}

// ReassignWorkspace gives a workspace to another runner, which restores it from
// the last replica. Where the old runner is linked, its last commits are copied first.
func (c *Coordinator) ReassignWorkspace(ctx context.Context, id, to string, acceptLoss bool) (*raftlogv1.Workspace, *raftlogv1.Branch, error) {
	ws := c.state.Read().Workspace(id)
	if ws == nil {
		return nil, nil, problem.Missing("workspace", "no such workspace")
	}
	to, err := c.newHome(ws, to)
	if err != nil {
		return nil, nil, err
	}
	if ws, err = c.latest(ctx, ws); err != nil {
		return nil, nil, err
	}
	if ws.GetHead().GetCommit() != ws.GetReplica().GetCommit() && c.links.get(ws.GetRunner()) != nil && ws.GetRestore() == nil {
		ctx, cancel := context.WithTimeout(ctx, lastReplicaTimeout)
		err := c.replicateTo(ctx, ws, to)
		cancel()
		if err != nil {
			c.logger.WarnContext(ctx, "last commits not copied before a move", "workspace", id, "error", err)
		}
	}
	branch := ids.New(ids.Branch, c.state.Read().Runner(ws.GetRunner()).GetNumber(), time.Now()).String()
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_ReassignWorkspace{ReassignWorkspace: &raftlogv1.ReassignWorkspace{
		Workspace: id, Epoch: ws.GetEpoch(), To: to, BranchId: branch, AcceptLoss: acceptLoss}}})
	if err != nil {
		return nil, nil, explainLoss(err)
	}
	c.logger.WarnContext(ctx, "workspace assigned anew", "workspace", id, "from", ws.GetRunner(), "to", to, "epoch", answer.GetWorkspace().GetEpoch())
	return answer.GetWorkspace(), c.state.Read().Branch(branch), nil
}

// latest asks the runner of a workspace, where it is linked, for the head, and
// records it: the replicated one may be a moment behind.
func (c *Coordinator) latest(ctx context.Context, ws *raftlogv1.Workspace) (*raftlogv1.Workspace, error) {
	to, err := c.reach(ws)
	if err != nil {
		return ws, nil //nolint:nilerr // what is known is what there is
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := forward(ctx, to, &skerryv1.ListWorkspacesRequest{}, to.link.workspaces.ListWorkspaces, reads)
	if err != nil || len(res.Msg.GetWorkspaces()) != 1 {
		return ws, nil //nolint:nilerr // likewise
	}
	head := raftHead(res.Msg.GetWorkspaces()[0])
	if !newsworthy(ws, head) {
		return ws, nil
	}
	if _, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_UpdateHeads{UpdateHeads: &raftlogv1.UpdateHeads{
		Runner: ws.GetRunner(), Heads: []*raftlogv1.Head{head}}}}); err != nil {
		return nil, err
	}
	return c.state.Read().Workspace(ws.GetId()), nil
}

func explainLoss(err error) error {
	var e *problem.Error
	if errors.As(err, &e) && e.Reason == problem.ReplicaBehind {
		e.Remedy = "bring the old runner back, or set acceptLoss (--accept-loss)"
	}
	return err
}

// newHome checks the runner that was asked for, or chooses one: the one that has
// the replica, else the one that placement prefers.
func (c *Coordinator) newHome(ws *raftlogv1.Workspace, to string) (string, error) {
	view := c.state.Read()
	fits := func(runner string) bool { return mayTake(view, ws, runner) }
	switch has := ws.GetReplica().GetRunner(); {
	case to != "" && view.Runner(to) == nil:
		return "", unknownRunner(view, identity{role: skerryv1.RoleAdmin}, to, "to")
	case to != "" && c.links.get(to) == nil:
		return "", unreachable(to)
	case to != "":
		return to, nil
	case has != "" && fits(has) && c.links.get(has) != nil:
		return has, nil
	}
	if to = c.choose(ws, fits); to == "" {
		return "", problem.New(connect.CodeUnavailable, problem.NoRunner, "start a runner where the agent has no workspace and no branch of this one",
			"no runner is up that could take the workspace").Retry()
	}
	return to, nil
}

// mover has moved workspaces restored and old runners fenced.
type mover struct {
	c  *Coordinator
	wg sync.WaitGroup

	mu   sync.Mutex
	busy map[string]bool
}

// moveWorkspaces is a leader's task.
func (c *Coordinator) moveWorkspaces(ctx context.Context) {
	m := &mover{c: c, busy: map[string]bool{}}
	defer m.wg.Wait()
	for {
		changed := c.state.ChangedIn(state.Fleet)
		for _, ws := range c.state.Read().Restoring() {
			m.begin(ctx, ws.GetId())
		}
		away := c.state.Read().RunnersWithBranches()
		for _, l := range c.links.all() {
			if !away[l.name] {
				continue
			}
			if err := c.fenceRunner(ctx, l); err != nil && ctx.Err() == nil {
				c.logger.WarnContext(ctx, "workspaces not fenced", "runner", l.name, "error", err)
			}
		}
		c.reassignLost(ctx, time.Now())
		if !waitChange(ctx, changed) {
			return
		}
	}
}

func (m *mover) begin(ctx context.Context, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[id] || len(m.busy) >= restoresAtOnce {
		return
	}
	m.busy[id] = true
	m.wg.Go(func() {
		for ctx.Err() == nil {
			done, err := m.c.restoreMoved(ctx, id)
			if done {
				break
			}
			m.c.logger.InfoContext(ctx, "workspace not restored yet", "workspace", id, "error", err)
			pauseFor(ctx, restoreRetry)
		}
		m.mu.Lock()
		delete(m.busy, id)
		m.mu.Unlock()
	})
}

// restoreMoved has the new runner make the workspace what the replica has.
func (c *Coordinator) restoreMoved(ctx context.Context, id string) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	ws := c.state.Read().Workspace(id)
	from := ws.GetRestore()
	if ws == nil || from == nil {
		return true, nil
	}
	l := c.links.get(ws.GetRunner())
	if l == nil {
		return false, unreachable(ws.GetRunner())
	}
	req := &skerryv1.AdoptWorkspaceRequest{Workspace: id, Agent: ws.GetAgent(), Epoch: ws.GetEpoch(), Tree: from.GetDigest(), Commit: from.GetCommit(), Seq: from.GetSeq()}
	if from.GetRunner() != "" && from.GetRunner() != ws.GetRunner() {
		source := c.links.get(from.GetRunner())
		if source == nil {
			return false, unreachable(from.GetRunner())
		}
		req.Source, err = c.offer(ctx, source, ws.GetRunner(), &skerryv1.OfferReplicaRequest{Workspace: id, Tree: from.GetDigest(), Replica: true})
		if err != nil {
			return false, err
		}
	}
	res, err := l.transfers.AdoptWorkspace(ctx, connect.NewRequest(req))
	if err != nil {
		return false, fmt.Errorf("restore at %s: %w", l.name, err)
	}
	_, err = c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_EndRestore{EndRestore: &raftlogv1.EndRestore{
		Workspace: id, Epoch: ws.GetEpoch(), Head: raftHead(res.Msg.GetWorkspace())}}})
	return err == nil, err
}

// fenceRunner tells a runner which workspaces went on elsewhere, and records
// what it has of them.
func (c *Coordinator) fenceRunner(ctx context.Context, l *runnerLink) error {
	req := &skerryv1.FenceWorkspacesRequest{}
	var told []string
	for _, b := range c.state.Read().BranchesOfRunner(l.name) {
		if _, done := l.fenced.Load(b.GetId()); !done && b.GetState() == skerryv1.BranchAway {
			req.Fences = append(req.Fences, &skerryv1.Fence{Workspace: b.GetWorkspace(), Epoch: b.GetFence()})
			told = append(told, b.GetId())
		}
	}
	if len(req.GetFences()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	res, err := l.transfers.FenceWorkspaces(ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	for _, id := range told {
		l.fenced.Store(id, true)
	}
	update := &raftlogv1.UpdateBranches{Runner: l.name}
	for _, ws := range res.Msg.GetWorkspaces() {
		update.Heads = append(update.Heads, raftHead(ws))
	}
	if len(update.GetHeads()) == 0 { // it never had any of them
		return nil
	}
	_, err = c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_UpdateBranches{UpdateBranches: update}})
	return err
}

// reassignLost moves the workspaces of runners that have been down for too long,
// where the operator wants that and there is a replica. Commits after it come
// back as a branch, should the runner.
func (c *Coordinator) reassignLost(ctx context.Context, now time.Time) {
	after := c.cfg.Replication.ReassignAfter.D()
	if after <= 0 {
		return
	}
	view := c.state.Read()
	for _, r := range view.Runners() {
		if r.GetState() != skerryv1.RunnerDown || c.links.get(r.GetName()) != nil || now.Sub(r.GetChanged().AsTime()) < after {
			continue
		}
		for _, ws := range view.WorkspacesOfRunner(r.GetName()) {
			if ws.GetReplica() == nil {
				continue
			}
			if _, _, err := c.ReassignWorkspace(ctx, ws.GetId(), "", true); err != nil && ctx.Err() == nil {
				c.logger.WarnContext(ctx, "workspace of a lost runner not moved", "workspace", ws.GetId(), "runner", r.GetName(), "error", err)
			}
		}
	}
}
