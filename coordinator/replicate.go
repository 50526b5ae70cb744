package coordinator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/placement"
	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// Heads that are replicated at once; a runner takes two at a time.
	replicasAtOnce = 16
	// Heads of a policy that are looked at in one round.
	replicaScan = 1024
	// Pause before a head whose replication failed is tried again.
	replicaRetry = 10 * time.Second
	// A replica that takes longer than this is tried again; what has arrived stays.
	replicaTimeout = 6 * time.Hour
)

// replicator copies committed heads to other runners.
type replicator struct {
	c  *Coordinator
	wg sync.WaitGroup

	mu     sync.Mutex
	busy   map[string]bool
	failed map[string]time.Time
	// Where the next round goes on, by policy.
	after map[string]string
}

// replicate is a leader's task.
func (c *Coordinator) replicate(ctx context.Context) {
	r := &replicator{c: c, busy: map[string]bool{}, failed: map[string]time.Time{}, after: map[string]string{}}
	defer r.wg.Wait()
	defer c.metrics.replicas(0, 0)      // the next leader tells how it is
	tick := time.NewTicker(time.Second) // intervals come due without a change
	defer tick.Stop()
	for {
		r.round(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round begins what is due.
func (r *replicator) round(ctx context.Context, now time.Time) {
	view := r.c.state.Read()
	behind, oldest := 0, time.Duration(0)
	for _, policy := range []string{"", skerryv1.ReplicateOnCommit, skerryv1.ReplicateInterval} {
		if policy == "" && r.c.cfg.Replication.Policy == skerryv1.ReplicateNone {
			continue
		}
		list := view.Unreplicated(policy, r.after[policy], replicaScan)
		r.after[policy] = ""
		if len(list) == replicaScan {
			r.after[policy] = list[len(list)-1].GetId()
		}
		for _, ws := range list {
			behind++
			if t := ws.GetReplica().GetTime(); t != nil {
				oldest = max(oldest, now.Sub(t.AsTime()))
			}
			if r.due(ws, now) && !r.begin(ctx, ws) {
				r.after[policy] = "" // full: from the first again
			}
		}
	}
	r.c.metrics.replicas(behind, oldest)
}

func (r *replicator) due(ws *raftlogv1.Workspace, now time.Time) bool {
	policy, interval := r.c.policyOf(ws)
	since := ws.GetReplica().GetTime()
	switch {
	case policy == skerryv1.ReplicateNone:
		return false
	case policy == skerryv1.ReplicateInterval && since != nil && now.Sub(since.AsTime()) < interval:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	failed, ok := r.failed[ws.GetId()]
	if ok && now.Sub(failed) < replicaRetry {
		return false
	}
	delete(r.failed, ws.GetId())
	return !r.busy[ws.GetId()]
}

// policyOf is how a workspace is replicated.
func (c *Coordinator) policyOf(ws *raftlogv1.Workspace) (policy string, interval time.Duration) {
	if ws.GetReplicationPolicy() == "" {
		return c.cfg.Replication.Policy, c.cfg.Replication.Interval.D()
	}
	return ws.GetReplicationPolicy(), time.Duration(ws.GetReplicationIntervalS()) * time.Second
}

// begin reports false when as many as may be are under way.
func (r *replicator) begin(ctx context.Context, ws *raftlogv1.Workspace) bool {
	if r.c.links.get(ws.GetRunner()) == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.busy) >= replicasAtOnce {
		return false
	}
	r.busy[ws.GetId()] = true
	r.wg.Go(func() {
		err := r.c.replicateTo(ctx, ws, "")
		if ctx.Err() == nil {
			r.c.metrics.replicated(err)
		}
		if err != nil && ctx.Err() == nil {
			r.c.logger.InfoContext(ctx, "head not replicated", "workspace", ws.GetId(), "error", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, ws.GetId())
		if err != nil {
			r.failed[ws.GetId()] = time.Now()
		}
	})
	return true
}

// replicateTo copies the head of a workspace to a runner, "" for the one that
// should have it, and records that.
func (c *Coordinator) replicateTo(ctx context.Context, ws *raftlogv1.Workspace, to string) error {
	ctx, cancel := context.WithTimeout(ctx, replicaTimeout)
	defer cancel()
	if to == "" {
		to = c.replicaRunner(ws)
	}
	source, target := c.links.get(ws.GetRunner()), c.links.get(to)
	if source == nil || target == nil {
		return problem.New(connect.CodeUnavailable, problem.NoRunner, "start another runner", "no runner is up to take a replica").Retry()
	}
	head := ws.GetHead()
	from, err := c.offer(ctx, source, to, &skerryv1.OfferReplicaRequest{Workspace: ws.GetId(), Agent: ws.GetAgent(), Epoch: ws.GetEpoch(), Tree: head.GetDigest()})
	if err != nil {
		return err
	}
	if _, err := target.transfers.PullReplica(ctx, connect.NewRequest(&skerryv1.PullReplicaRequest{Workspace: ws.GetId(), Tree: head.GetDigest(), Source: from})); err != nil {
		return fmt.Errorf("pull replica to %s: %w", to, err)
	}
	replica := &raftlogv1.Replica{Runner: to, Epoch: ws.GetEpoch(), Seq: head.GetSeq(), Digest: head.GetDigest(), Commit: head.GetCommit()}
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_SetReplica{SetReplica: &raftlogv1.SetReplica{Workspace: ws.GetId(), Replica: replica}}})
	if err != nil {
		return err
	}
	if old := ws.GetReplica().GetRunner(); superseded(answer.GetWorkspace(), old, replica) {
		c.dropReplica(ctx, ws.GetId(), old, to)
	}
	return nil
}

// superseded reports whether a recorded replica leaves the one that old has
// without use. One that was not recorded, since the workspace moved meanwhile,
// does not: the old one may be what it is being restored from.
func superseded(now *raftlogv1.Workspace, old string, replica *raftlogv1.Replica) bool {
	at := now.GetReplica()
	return old != "" && now.GetRestore().GetRunner() != old && now.GetRunner() != old &&
		at.GetRunner() == replica.GetRunner() && at.GetEpoch() == replica.GetEpoch()
}

// offer asks a runner whether it has a tree, and allows another to read it.
func (c *Coordinator) offer(ctx context.Context, source *runnerLink, to string, req *skerryv1.OfferReplicaRequest) (*skerryv1.PullSource, error) {
	res, err := source.transfers.OfferReplica(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", source.name, err)
	}
	token, err := c.signGrant(req.GetTree(), source.name, to)
	return &skerryv1.PullSource{Runner: source.name, Peer: res.Msg.GetPeer(), Grant: token}, err
}

// dropReplica lets the runner that had the replica before forget it.
func (c *Coordinator) dropReplica(ctx context.Context, workspace, old, now string) {
	l := c.links.get(old)
	if old == "" || old == now || l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := l.transfers.DropReplica(ctx, connect.NewRequest(&skerryv1.DropReplicaRequest{Workspace: workspace})); err != nil {
		c.logger.WarnContext(ctx, "old replica is kept", "workspace", workspace, "runner", old, "error", err)
	}
}

// replicaRunner chooses who gets the replica: the runner that was asked for, the
// one that has the last one, else the least busy one that could also take the
// workspace over. "": none is up.
func (c *Coordinator) replicaRunner(ws *raftlogv1.Workspace) string {
	if want := ws.GetReplicationTarget(); want != "" && want != ws.GetRunner() {
		return want
	}
	if has := ws.GetReplica().GetRunner(); has != "" && has != ws.GetRunner() && c.links.get(has) != nil {
		return has
	}
	view := c.state.Read()
	if name := c.choose(ws, func(runner string) bool { return mayTake(view, ws, runner) }); name != "" {
		return name
	}
	return c.choose(ws, func(runner string) bool { return runner != ws.GetRunner() })
}

// mayTake reports whether a workspace could be assigned to a runner.
func mayTake(view state.Reader, ws *raftlogv1.Workspace, runner string) bool {
	if runner == ws.GetRunner() || view.WorkspaceOf(ws.GetAgent(), runner) != nil {
		return false
	}
	for _, b := range view.BranchesOfWorkspace(ws.GetId()) {
		if b.GetRunner() == runner {
			return false
		}
	}
	return true
}

// choose takes, of the runners that fit, the one that placement prefers; "":
// none. Whether the agent has a workspace there is for fits to say.
func (c *Coordinator) choose(ws *raftlogv1.Workspace, fits func(runner string) bool) string {
	runners := c.runnersFor(c.state.Read(), ws.GetAgent())
	runners = slices.DeleteFunc(runners, func(r placement.Runner) bool { return !fits(r.Name) })
	for i := range runners {
		runners[i].Occupied = false
	}
	return placement.Best(runners, placement.Request{Policy: c.cfg.Placement.Policy})
}

// replicationOf shows how a workspace is replicated.
func (c *Coordinator) replicationOf(ws *raftlogv1.Workspace) *skerryv1.Replication {
	policy, interval := c.policyOf(ws)
	r := ws.GetReplica()
	out := &skerryv1.Replication{Policy: policy, Target: ws.GetReplicationTarget(), Runner: r.GetRunner(), Digest: r.GetDigest(), Seq: r.GetSeq(), Time: r.GetTime()}
	if policy == skerryv1.ReplicateInterval {
		out.IntervalS = uint32(interval / time.Second)
	}
	return out
}
