package coordinator

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// removeMember takes a coordinator out of the cluster for ever: its record says
// so, which it reads where it still runs, its certificate is denied, and Raft
// forgets it.
func (c *Coordinator) removeMember(ctx context.Context, name string) error {
	unlock, err := c.membership.lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.mayRemove(ctx, name); err != nil {
		return err
	}
	if name == c.cfg.Name {
		if _, err := c.transfer(context.WithoutCancel(ctx), ""); err != nil {
			return err
		}
		return notLeader("the coordinator to be removed led, and has handed that over")
	}
	if c.state.Read().Member(name) != nil {
		if _, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_RemoveMember{RemoveMember: &raftlogv1.RemoveMember{Name: name}}}); err != nil {
			return err
		}
	}
	if err := raftFailure(wait(ctx, c.node.raft.RemoveServer(raft.ServerID(name), 0, configTimeout))); err != nil {
		return err
	}
	_, err = c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_DenyMember{DenyMember: &raftlogv1.DenyMember{Role: pki.RoleCoordinator, Name: name}}})
	if e := (*problem.Error)(nil); errors.As(err, &e) && e.Reason == problem.NotFound {
		err = nil // it never had a certificate of this authority
	}
	c.logger.InfoContext(ctx, "coordinator removed", "name", name)
	return err
}

// mayRemove refuses what would leave too few healthy voters to go on.
func (c *Coordinator) mayRemove(ctx context.Context, name string) error {
	if s, found := c.node.server(raft.ServerID(name)); !found {
		if m := c.state.Read().Member(name); m == nil || m.GetRemoved() != nil {
			return problem.Missing("name", "no coordinator %.64q; see skerry cluster members", name)
		}
		return nil
	} else if s.Suffrage != raft.Voter {
		return nil
	}
	voters, healthy := countVoters(c.members(ctx), name)
	if voters == 0 || healthy < voters/2+1 {
		return problem.New(connect.CodeFailedPrecondition, problem.QuorumAtRisk, "start or add other coordinators first",
			"without %q %d voters would stay, of whom %d are healthy; %d must be", name, voters, healthy, voters/2+1)
	}
	return nil
}

// transfer makes another coordinator lead, the named one or whichever is the
// most up to date, and waits until one does.
func (c *Coordinator) transfer(ctx context.Context, name string) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.hooks.leaderWait())
	defer cancel()
	if name == c.cfg.Name {
		return name, nil
	}
	var future raft.Future
	switch s, found := c.node.server(raft.ServerID(name)); {
	case name == "" && len(c.node.servers()) < 2:
		return "", problem.New(connect.CodeFailedPrecondition, problem.QuorumAtRisk, "add other coordinators first", "there is no other coordinator")
	case name == "":
		future = c.node.raft.LeadershipTransfer()
	case !found || s.Suffrage != raft.Voter:
		return "", problem.Missing("name", "no coordinator %.64q with a vote; see skerry cluster members", name)
	default:
		future = c.node.raft.LeadershipTransferToServer(s.ID, s.Address)
	}
	if err := wait(ctx, future); err != nil {
		return "", notLeader("leadership was not handed over").Because(err)
	}
	for ctx.Err() == nil {
		if _, id := c.node.raft.LeaderWithID(); id != "" && id != c.node.id {
			return string(id), nil
		}
		pause(ctx, leaderPoll)
	}
	return "", notLeader("no other coordinator leads yet")
}
