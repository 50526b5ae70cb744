package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// errLeadershipLost is the cause of every context that ends with a tenure.
var errLeadershipLost = errors.New("this coordinator does not lead any more")

const (
	// How long a new leader waits before it tries again what must be done first.
	prepareRetry = 100 * time.Millisecond
	// How long an orderly stop tries to hand leadership over.
	handOverWait = 2 * time.Second
)

// leaderTask is background work that the leader alone does. It returns when its
// context ends, which is when this coordinator leads no more.
type leaderTask func(context.Context)

// tenure is one time of leadership: from the moment on when all that was
// committed before is applied here, until leadership is lost.
type tenure struct {
	term uint64
	gate *readGate
	// until gives a context that ends with ctx or with the tenure.
	until func(ctx context.Context) (context.Context, context.CancelFunc)
}

func newTenure(ctx context.Context, node *raftNode, term uint64) *tenure {
	verify := newConfirmer(node, term).verify
	if node.lone {
		// Nobody else could lead.
		verify = func() error { return nil }
	}
	return &tenure{term: term, gate: newReadGate(verify), until: func(call context.Context) (context.Context, context.CancelFunc) {
		call, cancel := context.WithCancelCause(call)
		stop := context.AfterFunc(ctx, func() { cancel(errLeadershipLost) })
		return call, func() { stop(); cancel(nil) }
	}}
}

// leads reports whether this coordinator answers calls itself.
func (c *Coordinator) leads() bool { return c.tenure.Load() != nil }

// followLeadership begins and ends tenures until ctx ends. Raft waits until each
// change was taken from it, so that nothing here may wait for Raft for long.
func (c *Coordinator) followLeadership(ctx context.Context) {
	elected := false
	end := func() {}
	defer func() { end() }()
	for {
		select {
		case <-ctx.Done():
			return
		case elected = <-c.node.changes:
		case <-c.node.stall.changed:
			if c.node.lone {
				continue // nobody else could lead meanwhile
			}
		case <-c.restart:
		}
		end()
		end = func() {}
		if elected && (c.node.lone || !c.node.stall.stalled.Load()) {
			end = c.beginTenure(ctx)
		}
	}
}

// beginTenure gets ready to lead in the background. The result ends the tenure,
// and waits until all that it started has ended.
func (c *Coordinator) beginTenure(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() { c.serveTenure(ctx) })
	return func() {
		c.tenure.Store(nil)
		cancel(errLeadershipLost)
		c.links.drop()
		work.Wait()
		c.tenure.Store(nil)
	}
}

func (c *Coordinator) serveTenure(ctx context.Context) {
	term := c.node.raft.CurrentTerm()
	for {
		err := c.takeOffice(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		c.logger.WarnContext(ctx, "leader is not ready yet", "term", term, "error", err)
		pause(ctx, prepareRetry)
		term = c.node.raft.CurrentTerm()
	}
	c.expectRunners()
	c.tenure.Store(newTenure(ctx, c.node, term))
	if ctx.Err() != nil {
		c.tenure.Store(nil)
		return
	}
	c.logger.InfoContext(ctx, "leading", "term", term)
	var work sync.WaitGroup
	for _, task := range c.leaderTasks() {
		work.Go(func() { task(ctx) })
	}
	work.Wait()
	<-ctx.Done()
}

// takeOffice applies what was committed before, so that reads see every
// acknowledged change (I9), and puts the cluster's records right.
func (c *Coordinator) takeOffice(ctx context.Context) error {
	if err := wait(ctx, c.node.raft.Barrier(recoveryTimeout)); err != nil {
		return fmt.Errorf("apply what was committed: %w", err)
	}
	for _, step := range []func(context.Context) error{c.initCluster, c.recordSelf, c.reconcileMembers, c.raiseVersion, c.initAuthority} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return c.firstAdmin(ctx)
}

// wait gives a Raft future's end or that of ctx, whichever is first: some futures
// are never answered.
func wait(ctx context.Context, future raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- future.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leaderTasks lists what runs on the leader.
func (c *Coordinator) leaderTasks() []leaderTask {
	return append(c.stateTasks(), c.watchVersions, c.runAutopilot, c.keepAuthority, c.keepGrantKeys, c.directTransfers, c.replicate, c.moveWorkspaces)
}

// handOver lets another coordinator lead before this one stops, so that nobody
// has to notice its absence.
func (c *Coordinator) handOver(ctx context.Context) {
	if c.node.lone || c.node.raft.State() != raft.Leader || len(c.node.servers()) < 2 || c.handedOver.Swap(true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverWait)
	defer cancel()
	if err := wait(ctx, c.node.raft.LeadershipTransfer()); err != nil {
		c.logger.WarnContext(ctx, "hand leadership over", "error", err)
	}
}

// giveWay asks for another leader when this one's disk is stalled. Raft takes it
// up when the disk answers; until then only the silence of this one helps.
func (c *Coordinator) giveWay() {
	if !c.node.lone && c.node.raft.State() == raft.Leader {
		c.node.raft.LeadershipTransfer()
	}
}
