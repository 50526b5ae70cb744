package coordinator

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// stateTasks are the leader tasks that act on the replicated state alone and on
// the runners' links. Each returns when its context ends.
func (c *Coordinator) stateTasks() []leaderTask {
	return []leaderTask{c.endCalls, c.pruneTokens, c.fireTimers, c.recheckLinked, c.drainRunners}
}

func (c *Coordinator) commitPrune(ctx context.Context, before *timestamppb.Timestamp) (uint32, error) {
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_PruneTokens{PruneTokens: &raftlogv1.PruneTokens{Before: before, Limit: pruneBatch}}})
	return answer.GetCounted().GetChanged(), err
}
