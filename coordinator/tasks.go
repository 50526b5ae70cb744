package coordinator

import (
	"context"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// stateTasks are the leader tasks that act on the replicated state alone and on
// the runners' links. Each returns when its context ends.
func (c *Coordinator) stateTasks() []func(context.Context) {
	return []func(context.Context){c.endCalls, c.pruneTokens, c.fireTimers, c.drainRunners}
}

func (c *Coordinator) commitPrune(ctx context.Context, before *timestamppb.Timestamp) (uint32, error) {
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_PruneTokens{PruneTokens: &raftlogv1.PruneTokens{Before: before, Limit: pruneBatch}}})
	return answer.GetCounted().GetChanged(), err
}

// startTasks runs the leader tasks until stopTasks, which waits for them.
func (c *Coordinator) startTasks() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, task := range c.stateTasks() {
		running.Go(func() { task(ctx) })
	}
	c.stopTasks = func() { cancel(); running.Wait() }
}
