package coordinator

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// watchRaft registers gauges of this coordinator's part in the cluster.
func (m *metrics) watchRaft(c *Coordinator) {
	f := promauto.With(prometheus.WrapRegistererWithPrefix("skerry_raft_", m.registerer))
	r := c.node.raft
	for _, g := range []struct {
		name, help string
		read       func() float64
	}{
		{"leader", "1 where this coordinator answers calls itself.", func() float64 { return number(c.leads()) }},
		{"has_leader", "1 where this coordinator knows who leads.", func() float64 { return number(c.Ready()) }},
		{"term", "Term of the log.", func() float64 { return float64(r.CurrentTerm()) }},
		{"applied_index", "Index of the last applied log entry.", func() float64 { return float64(r.AppliedIndex()) }},
		{"commit_index", "Index of the last committed log entry.", func() float64 { return float64(r.CommitIndex()) }},
		{"last_index", "Index of the last log entry.", func() float64 { return float64(r.LastIndex()) }},
		{"last_contact_seconds", "Time since a follower last heard of the leader; 0 on the leader.", func() float64 { return lastContact(r) }},
		{"stalled", "1 while a write to the log takes longer than raft.stall_timeout.", func() float64 { return number(c.node.stall.stalled.Load()) }},
		{"members_healthy", "Coordinators with a vote that the leader finds healthy; the others say 0.", func() float64 { return c.healthyVoters() }},
		{"command_version", "The highest version of commands that the cluster takes.", func() float64 { return float64(c.state.Read().ActiveVersion()) }},
	} {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, g.read)
	}
	for _, state := range []string{memberVoter, memberNonVoter} {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: "members", Help: "Coordinators in the configuration.",
			ConstLabels: prometheus.Labels{"state": state}}, func() float64 { return countServers(c.node.servers(), state == memberVoter) })
	}
}

func (c *Coordinator) healthyVoters() float64 {
	switch {
	case !c.leads():
		return 0
	case c.node.lone:
		return 1
	}
	return float64(c.metrics.healthy.Load())
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func lastContact(r *raft.Raft) float64 {
	at := r.LastContact()
	if r.State() == raft.Leader || at.IsZero() {
		return 0
	}
	return time.Since(at).Seconds()
}

func countServers(servers []raft.Server, voters bool) (n float64) {
	for _, s := range servers {
		if (s.Suffrage == raft.Voter) == voters {
			n++
		}
	}
	return n
}
