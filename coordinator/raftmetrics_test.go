package coordinator

import (
	"testing"
	"time"
)

// All see one leader; the leader alone tells of the others and of runners, so
// that sums over coordinators are right.
func TestMetricsOfACluster(t *testing.T) {
	f := startFleet(t, 3)
	f.until("three healthy voters", func() bool { return f.sum("raft_members_healthy") == 3 })
	for name, want := range map[string]float64{"raft_leader": 1, "raft_has_leader": 3, "raft_members voter": 9, "raft_members non_voter": 0,
		"raft_stalled": 0, "coordinator_runners up": 0, "coordinator_replicas_behind": 0} {
		if got := f.sum(name); got != want {
			t.Errorf("sum of %s is %v, want %v", name, got, want)
		}
	}
	now := float64(time.Now().Unix())
	for _, n := range f.running() {
		got := series(t, n.registry)
		if left := got["certificate_expires_timestamp_seconds coordinator"] - now; left < 23*3600 || left > 24*3600 {
			t.Errorf("%s: its certificate ends in %v s", n.name, left)
		}
		if left := got["certificate_expires_timestamp_seconds authority"] - now; left < 9*365*86400 {
			t.Errorf("%s: the authority ends in %v s", n.name, left)
		}
		if _, there := got["certificate_expires_timestamp_seconds api"]; there {
			t.Errorf("%s tells of a certificate that it has not", n.name)
		}
	}
	f.followers()[0].kill()
	f.until("an unhealthy voter", func() bool { return f.sum("raft_members_healthy") == 2 })
	f.leader().kill()
	f.until("no leader, nobody healthy", func() bool { return f.sum("raft_leader") == 0 && f.sum("raft_members_healthy") == 0 })
}

// sum of a series over all coordinators that run.
func (f *fleet) sum(name string) (sum float64) {
	f.t.Helper()
	for _, n := range f.running() {
		sum += series(f.t, n.registry)[name]
	}
	return sum
}
