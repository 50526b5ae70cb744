package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// A joiner within so many entries of the leader's log may get a vote.
	promoteLag = 500
	// Few enough voters that a dead one must stay: two can't agree without both.
	minQuorum = 3
)

// runAutopilot is a leader task: it gives coordinators that joined a vote once
// they have been healthy for Stabilization, and where configured removes dead
// ones.
func (c *Coordinator) runAutopilot(ctx context.Context) {
	if c.node.lone {
		return
	}
	stable := max(c.cfg.Cluster.Stabilization.D(), 100*time.Millisecond)
	pilot := &pilot{c: c, tenure: ctx, since: time.Now(), heard: make(map[string]time.Time)}
	ap := autopilot.New(c.node.raft, pilot, autopilot.WithLogger(raftLogger(c.logger)),
		autopilot.WithUpdateInterval(min(max(stable/4, 50*time.Millisecond), 2*time.Second)),
		autopilot.WithReconcileInterval(min(max(stable/4, 50*time.Millisecond), 10*time.Second)))
	ap.Start(ctx)
	<-ctx.Done()
	<-ap.Stop()
	pilot.removals.Wait()
}

// pilot tells autopilot of the cluster. It lives for one tenure.
type pilot struct {
	c        *Coordinator
	tenure   context.Context
	since    time.Time
	removals sync.WaitGroup

	mu sync.Mutex
	// When each member last answered.
	heard    map[string]time.Time
	removing bool
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	cfg := p.c.cfg
	return &autopilot.Config{
		CleanupDeadServers:      cfg.Cluster.RemoveDeadAfter > 0,
		LastContactThreshold:    max(time.Second, 2*cfg.Raft.HeartbeatTimeout.D()),
		MaxTrailingLogs:         promoteLag,
		MinQuorum:               minQuorum,
		ServerStabilizationTime: cfg.Cluster.Stabilization.D(),
	}
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *pilot) NotifyState(*autopilot.State) {}

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p *pilot) FetchServerStats(ctx context.Context, _ map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	out := make(map[raft.ServerID]*autopilot.ServerStats)
	now, stats := time.Now(), p.c.memberStats(ctx)
	p.c.metrics.healthy.Store(p.c.countHealthy(stats))
	for name, s := range stats {
		p.mu.Lock()
		p.heard[name] = now
		p.mu.Unlock()
		out[raft.ServerID(name)] = serverStats(s)
	}
	return out
}

// countHealthy counts the voters that are healthy by what they told. Autopilot's
// own opinion of one that does not answer stays what it was.
func (c *Coordinator) countHealthy(stats map[string]*skerryv1.GetMemberStatsResponse) (n int64) {
	last := c.node.raft.LastIndex()
	for _, s := range c.node.servers() {
		if s.Suffrage == raft.Voter && healthyMember(stats[string(s.ID)], last) {
			n++
		}
	}
	return n
}

func serverStats(s *skerryv1.GetMemberStatsResponse) *autopilot.ServerStats {
	out := &autopilot.ServerStats{LastContact: time.Duration(s.GetLastContactMs()) * time.Millisecond, LastTerm: s.GetLastTerm(), LastIndex: s.GetLastIndex()}
	if s.GetNoLeader() {
		out.LastContact = -1
	}
	return out
}

// KnownServers implements autopilot.ApplicationIntegration.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	out := make(map[raft.ServerID]*autopilot.Server)
	for _, m := range p.c.state.Read().Members() {
		id := raft.ServerID(m.GetName())
		out[id] = &autopilot.Server{ID: id, Name: m.GetName(), Address: raft.ServerAddress(m.GetAddress()), NodeStatus: p.status(m.GetName()),
			Version: m.GetVersion(), RaftVersion: int(raft.ProtocolVersionMax), IsLeader: id == p.c.node.id, NodeType: autopilot.NodeVoter}
	}
	return out
}

// status is "failed" only where a dead coordinator is to be removed: whether one
// is healthy its statistics tell.
func (p *pilot) status(name string) autopilot.NodeStatus {
	after := p.c.cfg.Cluster.RemoveDeadAfter.D()
	p.mu.Lock()
	defer p.mu.Unlock()
	heard := p.heard[name]
	if heard.IsZero() {
		heard = p.since
	}
	if after > 0 && time.Since(heard) > after {
		return autopilot.NodeFailed
	}
	return autopilot.NodeAlive
}

// RemoveFailedServer implements autopilot.ApplicationIntegration; it must not wait.
func (p *pilot) RemoveFailedServer(s *autopilot.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removing {
		return
	}
	p.removing = true
	p.removals.Go(func() {
		err := p.c.removeMember(p.tenure, s.Name)
		p.c.logger.WarnContext(p.tenure, "remove dead coordinator", "name", s.Name, "error", err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.removing = false
	})
}
