package coordinator

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

const versionsPoll = time.Second

// checkVersion refuses a command that some voter could not apply: it would stop
// there for ever.
func (n *raftNode) checkVersion(cmd *raftlogv1.Command) error {
	needs, active := state.CommandVersion(cmd), n.state.Read().ActiveVersion()
	if needs <= active {
		return nil
	}
	return problem.New(connect.CodeFailedPrecondition, problem.UpgradePending, "upgrade all coordinators first (skerry cluster members)",
		"the change needs command version %d, the cluster is at %d", needs, active).Retry()
}

// raiseVersion lets newer commands in once all members know them.
func (c *Coordinator) raiseVersion(ctx context.Context) error {
	view := c.state.Read()
	lowest := c.hooks.highestCommand()
	for _, s := range c.node.servers() {
		if s.Suffrage == raft.Voter || view.Member(string(s.ID)) != nil {
			lowest = min(lowest, view.Member(string(s.ID)).GetCommandVersion())
		}
	}
	if lowest <= view.ActiveVersion() {
		return nil
	}
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_RaiseVersion{RaiseVersion: &raftlogv1.RaiseVersion{Version: lowest}}})
	if err == nil {
		c.logger.InfoContext(ctx, "command version raised", "version", lowest)
	}
	return err
}

// watchVersions is a leader task.
func (c *Coordinator) watchVersions(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.raiseVersion(ctx); err != nil && ctx.Err() == nil {
			c.logger.WarnContext(ctx, "raise command version", "error", err)
		}
		pause(ctx, versionsPoll)
	}
}
