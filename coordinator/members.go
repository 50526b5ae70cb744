package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// How often a coordinator looks whether the cluster knows it as it is.
	announcePoll = 500 * time.Millisecond
	// How long one attempt to tell it may take.
	announceTimeout = 15 * time.Second
	// How long a change of the Raft configuration may wait to be taken up.
	configTimeout = 10 * time.Second
)

// ErrRemoved is returned by Serve when this coordinator was removed from its
// cluster.
var ErrRemoved = errors.New("this coordinator was removed from the cluster; to let it join again, empty data_dir and give it a new join token")

// self is what this coordinator tells the others of itself.
func (c *Coordinator) self() *raftlogv1.Member {
	return &raftlogv1.Member{Name: c.cfg.Name, Address: string(c.node.address), Endpoint: c.cfg.Advertise,
		Version: c.version, CommandVersion: c.hooks.highestCommand(), Incarnation: c.node.incarnation}
}

// sameMember compares what members tell.
func sameMember(a, b *raftlogv1.Member) bool {
	return a.GetName() == b.GetName() && a.GetAddress() == b.GetAddress() && a.GetEndpoint() == b.GetEndpoint() &&
		a.GetVersion() == b.GetVersion() && a.GetCommandVersion() == b.GetCommandVersion() && a.GetIncarnation() == b.GetIncarnation()
}

// initCluster names the cluster on its first start.
func (c *Coordinator) initCluster(ctx context.Context) error {
	if c.state.Read().Cluster().GetClusterId() != "" {
		return nil
	}
	id := c.identity.Leaf().Cluster
	if id == "" {
		id = ids.New(ids.Cluster, 0, time.Now()).String()
	}
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_InitCluster{
		InitCluster: &raftlogv1.InitCluster{ClusterId: id}}})
	if err != nil {
		return fmt.Errorf("name the cluster: %w", err)
	}
	return nil
}

// recordSelf puts the leader's own record right.
func (c *Coordinator) recordSelf(ctx context.Context) error { return c.putMember(ctx, c.self()) }

func (c *Coordinator) putMember(ctx context.Context, m *raftlogv1.Member) error {
	if known := c.state.Read().Member(m.GetName()); known.GetRemoved() == nil && sameMember(known, m) {
		return nil
	}
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_PutMember{PutMember: &raftlogv1.PutMember{Member: m}}})
	if err != nil {
		return fmt.Errorf("record coordinator %s: %w", m.GetName(), err)
	}
	return nil
}

// reconcileMembers carries changes of members into Raft's configuration, in case
// a leader ended between the two.
func (c *Coordinator) reconcileMembers(ctx context.Context) error {
	if c.node.lone {
		return nil
	}
	view := c.state.Read()
	for _, m := range view.Members() {
		if err := c.configure(ctx, m); err != nil {
			return err
		}
	}
	for _, s := range c.node.servers() {
		if view.Member(string(s.ID)).GetRemoved() != nil {
			if err := wait(ctx, c.node.raft.RemoveServer(s.ID, 0, configTimeout)); err != nil {
				return fmt.Errorf("remove coordinator %s: %w", s.ID, err)
			}
		}
	}
	return nil
}

// configure sees to it that Raft's configuration has a member at its address. A
// new one gets no vote yet.
func (c *Coordinator) configure(ctx context.Context, m *raftlogv1.Member) error {
	id, address := raft.ServerID(m.GetName()), raft.ServerAddress(m.GetAddress())
	known, found := c.node.server(id)
	var change raft.Future
	switch {
	case found && known.Address == address:
		return nil
	case found && known.Suffrage == raft.Voter:
		change = c.node.raft.AddVoter(id, address, 0, configTimeout)
	default:
		change = c.node.raft.AddNonvoter(id, address, 0, configTimeout)
	}
	if err := wait(ctx, change); err != nil {
		return fmt.Errorf("configure coordinator %s: %w", id, err)
	}
	c.logger.InfoContext(ctx, "coordinator configured", "name", id, "address", address)
	return nil
}

// admitMember takes in what a coordinator told of itself.
func (c *Coordinator) admitMember(ctx context.Context, m *raftlogv1.Member) error {
	if active := c.state.Read().ActiveVersion(); m.GetCommandVersion() < active {
		return problem.New(connect.CodeFailedPrecondition, problem.UpgradePending, "upgrade the program of this coordinator",
			"the cluster takes commands of version %d, coordinator %s knows up to %d", active, m.GetName(), m.GetCommandVersion())
	}
	unlock, err := c.membership.lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.putMember(ctx, m); err != nil {
		return err
	}
	return raftFailure(c.configure(ctx, m))
}

// raftFailure types errors of Raft's own changes.
func raftFailure(err error) error {
	var known *problem.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return raftProblem(err)
}

// announceSelf tells the cluster of this coordinator whenever the state does not
// have it as it is, and notices its removal. It ends with ctx.
func (c *Coordinator) announceSelf(ctx context.Context) {
	for ctx.Err() == nil {
		known := c.state.Read().Member(c.cfg.Name)
		switch {
		case known.GetRemoved() != nil && known.GetIncarnation() == c.node.incarnation:
			c.leave()
			return
		case !sameMember(known, c.self()):
			if err := c.announce(ctx); removedByCluster(err) {
				c.leave()
				return
			} else if err != nil {
				c.logger.InfoContext(ctx, "announce this coordinator", "error", err)
			}
		}
		pause(ctx, announcePoll)
	}
}

func removedByCluster(err error) bool { return problem.Of(err).GetReason() == problem.MemberRemoved }

// leave ends Serve for good.
func (c *Coordinator) leave() {
	c.gone.Do(func() {
		c.logger.Error("this coordinator was removed from the cluster and stops", "name", c.cfg.Name)
		close(c.removed)
	})
}

// announce tells the leader, through whichever coordinator answers.
func (c *Coordinator) announce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	if c.leads() {
		return c.admitMember(ctx, c.self())
	}
	m := c.self()
	req := &skerryv1.AnnounceMemberRequest{Name: m.GetName(), Address: m.GetAddress(), Endpoint: m.GetEndpoint(),
		Version: m.GetVersion(), CommandVersion: m.GetCommandVersion(), Incarnation: m.GetIncarnation()}
	err := errors.New("no other coordinator is known; set cluster.join")
	for _, endpoint := range c.otherEndpoints() {
		if _, err = c.clusterAt(endpoint).AnnounceMember(ctx, connect.NewRequest(req)); err == nil || removedByCluster(err) {
			return err
		}
	}
	return err
}

// otherEndpoints are those of the other coordinators, the leader first.
func (c *Coordinator) otherEndpoints() []string {
	var out []string
	seen := map[string]bool{c.cfg.Advertise: true, "": true}
	add := func(endpoint string) {
		if !seen[endpoint] {
			seen[endpoint] = true
			out = append(out, endpoint)
		}
	}
	add(c.leaderEndpoint())
	for _, endpoint := range c.otherMembers() {
		add(endpoint)
	}
	for _, endpoint := range c.cfg.Cluster.Join {
		add(endpoint)
	}
	return out
}

// otherMembers are the endpoints of the other coordinators by name.
func (c *Coordinator) otherMembers() []string {
	var out []string
	for _, m := range c.state.Read().Members() {
		if m.GetName() != c.cfg.Name && m.GetEndpoint() != "" {
			out = append(out, m.GetEndpoint())
		}
	}
	return out
}

// admitRaft decides whether a coordinator with a good certificate may speak Raft
// with this one. One that has no state yet knows of nobody.
func (c *Coordinator) admitRaft(peer pki.Peer) error {
	view := c.state.Read()
	if holder := view.Holder(peer.Role, peer.Name); holder != nil && state.Denied(holder, stampOf(peer.Issued)) {
		return fmt.Errorf("the certificate of coordinator %s was denied", peer.Name)
	}
	return nil
}
