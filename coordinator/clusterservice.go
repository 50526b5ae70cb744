package coordinator

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/types/known/timestamppb"

	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

const (
	// How long the others get to tell how they are.
	statsTimeout = time.Second
	// Entries that a healthy coordinator may be behind.
	healthyLag = 1000
	maxAddress = 255
)

// Roles of a coordinator in its cluster.
const (
	memberLeader       = "leader"
	memberVoter        = "voter"
	memberNonVoter     = "non_voter"
	memberUnconfigured = "unconfigured"
)

// clusterService is ClusterService.
type clusterService struct{ c *Coordinator }

// memberService is MemberService.
type memberService struct{ c *Coordinator }

// GetMemberStats implements MemberServiceHandler.
func (s memberService) GetMemberStats(context.Context, *connect.Request[skerryv1.GetMemberStatsRequest]) (*connect.Response[skerryv1.GetMemberStatsResponse], error) {
	return connect.NewResponse(s.c.ownStats()), nil
}

func (c *Coordinator) ownStats() *skerryv1.GetMemberStatsResponse {
	_, leader := c.node.raft.LeaderWithID()
	// The term of the last entry, which is not the present term.
	term, err := strconv.ParseUint(c.node.raft.Stats()["last_log_term"], 10, 64)
	if err != nil {
		c.logger.Warn("term of the log", "error", err)
	}
	out := &skerryv1.GetMemberStatsResponse{Name: c.cfg.Name, LastTerm: term, LastIndex: c.node.raft.LastIndex(), NoLeader: leader == ""}
	if at := c.node.raft.LastContact(); !at.IsZero() && c.node.raft.State() != raft.Leader {
		out.LastContactMs = uint64(max(0, time.Since(at)).Milliseconds())
	}
	return out
}

// memberStats asks all coordinators at once; who does not answer in time is
// missing.
func (c *Coordinator) memberStats(ctx context.Context) map[string]*skerryv1.GetMemberStatsResponse {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	out := map[string]*skerryv1.GetMemberStatsResponse{c.cfg.Name: c.ownStats()}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, m := range c.state.Read().Members() {
		if m.GetName() == c.cfg.Name {
			continue
		}
		asking.Go(func() {
			res, err := c.memberAt(m.GetEndpoint()).GetMemberStats(ctx, connect.NewRequest(&skerryv1.GetMemberStatsRequest{}))
			if err != nil || res.Msg.GetName() != m.GetName() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[m.GetName()] = res.Msg
		})
	}
	asking.Wait()
	return out
}

func (c *Coordinator) clusterAt(endpoint string) rpc.ClusterServiceClient {
	return rpc.NewClusterServiceClient(httpDoer{c.peers}, endpoint)
}

func (c *Coordinator) memberAt(endpoint string) rpc.MemberServiceClient {
	return rpc.NewMemberServiceClient(httpDoer{c.peers}, endpoint)
}

// members lists the coordinators with how they are.
func (c *Coordinator) members(ctx context.Context) []*skerryv1.ClusterMember {
	stats, last := c.memberStats(ctx), c.node.raft.LastIndex()
	configured := make(map[string]raft.Server)
	for _, s := range c.node.servers() {
		configured[string(s.ID)] = s
	}
	known := c.state.Read().Members()
	for _, m := range known {
		delete(configured, m.GetName())
	}
	for id, s := range configured { // configured before it ever announced itself
		known = append(known, &raftlogv1.Member{Name: id, Address: string(s.Address)})
	}
	var out []*skerryv1.ClusterMember
	for _, m := range known {
		out = append(out, c.member(m, stats[m.GetName()], last))
	}
	return out
}

func (c *Coordinator) member(m *raftlogv1.Member, stats *skerryv1.GetMemberStatsResponse, last uint64) *skerryv1.ClusterMember {
	out := &skerryv1.ClusterMember{Name: m.GetName(), Address: m.GetAddress(), Endpoint: m.GetEndpoint(), Version: m.GetVersion(),
		CommandVersion: m.GetCommandVersion(), Role: c.roleOf(m.GetName()), LastIndex: stats.GetLastIndex()}
	if stats != nil {
		contact := stats.GetLastContactMs()
		out.LastContactMs = &contact
		out.Healthy = healthyMember(stats, last)
	}
	return out
}

// healthyMember judges what a member told; nil: it did not answer.
func healthyMember(stats *skerryv1.GetMemberStatsResponse, last uint64) bool {
	return stats != nil && !stats.GetNoLeader() && stats.GetLastIndex()+healthyLag >= last
}

func (c *Coordinator) roleOf(name string) string {
	s, found := c.node.server(raft.ServerID(name))
	switch {
	case !found:
		return memberUnconfigured
	case name == c.cfg.Name && c.node.raft.State() == raft.Leader:
		return memberLeader
	case s.Suffrage == raft.Voter:
		return memberVoter
	}
	return memberNonVoter
}

func votes(m *skerryv1.ClusterMember) bool {
	return m.GetRole() == memberLeader || m.GetRole() == memberVoter
}

// countVoters gives the voters but one, and how many of them are healthy.
func countVoters(members []*skerryv1.ClusterMember, without string) (voters, healthy int) {
	for _, m := range members {
		if !votes(m) || m.GetName() == without {
			continue
		}
		voters++
		if m.GetHealthy() {
			healthy++
		}
	}
	return voters, healthy
}

// GetClusterStatus implements ClusterServiceHandler.
func (s clusterService) GetClusterStatus(ctx context.Context, _ *connect.Request[skerryv1.GetClusterStatusRequest]) (*connect.Response[skerryv1.GetClusterStatusResponse], error) {
	r, members := s.c.node.raft, s.c.members(ctx)
	voters, healthy := countVoters(members, "")
	return connect.NewResponse(&skerryv1.GetClusterStatusResponse{
		ClusterId: s.c.ClusterID(), Leader: s.c.cfg.Name, Term: r.CurrentTerm(), AppliedIndex: r.AppliedIndex(), CommitIndex: r.CommitIndex(),
		CommandVersion: s.c.state.Read().ActiveVersion(), FailureTolerance: uint32(max(0, healthy-voters/2-1)), Healthy: healthy == voters, Members: members,
	}), nil
}

// ListMembers implements ClusterServiceHandler.
func (s clusterService) ListMembers(ctx context.Context, _ *connect.Request[skerryv1.ListMembersRequest]) (*connect.Response[skerryv1.ListMembersResponse], error) {
	return connect.NewResponse(&skerryv1.ListMembersResponse{Members: s.c.members(ctx)}), nil
}

// RemoveMember implements ClusterServiceHandler.
func (s clusterService) RemoveMember(ctx context.Context, req *connect.Request[skerryv1.RemoveMemberRequest]) (*connect.Response[skerryv1.RemoveMemberResponse], error) {
	if err := s.c.removeMember(ctx, req.Msg.GetName()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RemoveMemberResponse{}), nil
}

// TransferLeadership implements ClusterServiceHandler.
func (s clusterService) TransferLeadership(ctx context.Context, req *connect.Request[skerryv1.TransferLeadershipRequest]) (*connect.Response[skerryv1.TransferLeadershipResponse], error) {
	leader, err := s.c.transfer(context.WithoutCancel(ctx), req.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.TransferLeadershipResponse{Leader: leader}), nil
}

// AnnounceMember implements ClusterServiceHandler.
func (s clusterService) AnnounceMember(ctx context.Context, req *connect.Request[skerryv1.AnnounceMemberRequest]) (*connect.Response[skerryv1.AnnounceMemberResponse], error) {
	m := req.Msg
	if refusal := s.c.refuseAnnouncement(ctx, m); refusal != nil {
		return nil, refusal
	}
	err := s.c.admitMember(ctx, &raftlogv1.Member{Name: m.GetName(), Address: m.GetAddress(), Endpoint: m.GetEndpoint(),
		Version: m.GetVersion(), CommandVersion: m.GetCommandVersion(), Incarnation: m.GetIncarnation()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.AnnounceMemberResponse{ClusterId: s.c.ClusterID(), Leader: s.c.cfg.Name}), nil
}

// refuseAnnouncement checks who announces. One that was removed, whose certificate
// is worth nothing since, is told so: it must stop.
func (c *Coordinator) refuseAnnouncement(ctx context.Context, m *skerryv1.AnnounceMemberRequest) *problem.Error {
	r, _ := ctx.Value(requestKey{}).(*http.Request)
	if r == nil {
		return unauthenticated("no client certificate")
	}
	peer, ok := peerOf(r)
	known := c.state.Read().Member(m.GetName())
	switch {
	case !ok || peer.Role != pki.RoleCoordinator:
		return unauthenticated("no certificate of a coordinator")
	case m.GetName() != peer.Name:
		return problem.New(connect.CodePermissionDenied, problem.PermissionDenied, "announce the name that the certificate has",
			"the certificate is of coordinator %q", peer.Name)
	case c.node.lone:
		return problem.New(connect.CodeFailedPrecondition, problem.Unsupported, "set cluster.listen of the coordinator that is there",
			"this coordinator is a lone one")
	case known.GetRemoved() != nil && known.GetIncarnation() == m.GetIncarnation():
		return problem.New(connect.CodeFailedPrecondition, problem.MemberRemoved, "empty its data_dir and let it join anew",
			"coordinator %q was removed from the cluster", m.GetName())
	}
	if refusal := c.refusePeer(peer, time.Now()); refusal != nil {
		return refusal
	}
	return checkAnnouncement(m)
}

func checkAnnouncement(m *skerryv1.AnnounceMemberRequest) *problem.Error {
	for _, f := range []struct {
		name, text string
		may        bool
	}{{"address", m.GetAddress(), false}, {"endpoint", m.GetEndpoint(), false}, {"incarnation", m.GetIncarnation(), false}, {"version", m.GetVersion(), true}} {
		if f.text == "" && !f.may {
			return problem.Invalid(f.name, "send it", "is empty")
		}
		if len(f.text) > maxAddress {
			return problem.Limit(f.name, "255 bytes", "shorten it")
		}
	}
	return nil
}

func stampOf(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
