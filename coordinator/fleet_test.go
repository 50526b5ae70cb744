package coordinator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (n *node) list(ctx context.Context, secret string) error {
	_, err := n.at(secret).workspaces.ListWorkspaces(ctx, connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
	return err
}

// I9 for three: whatever was acknowledged is there after the leader is gone, and
// after each other one is; callers of any coordinator go on.
func TestI9AcknowledgedSurvivesAnyMinority(t *testing.T) {
	f := startFleet(t, 3)
	var secrets []string
	for round := range 3 {
		for i, n := range f.running() {
			secret, err := n.token("agent", fmt.Sprintf("a%d-%d", round, i))
			if err != nil {
				t.Fatalf("through %s: %v", n.name, err)
			}
			secrets = append(secrets, secret)
		}
		gone := f.leader()
		began := time.Now()
		f.isolate(gone.name)
		f.until("another leads", func() bool { return f.leader() != gone })
		secrets = append(secrets, f.mustToken("agent", fmt.Sprintf("after%d", round)))
		t.Logf("fail-over took %v", time.Since(began))
		gone.kill()
		for _, n := range f.running() {
			for _, secret := range secrets {
				if err := n.list(t.Context(), secret); err != nil {
					t.Errorf("without %s, an acknowledged token through %s: %v", gone.name, n.name, err)
				}
			}
		}
		gone.start()
		f.awaitVoters(3)
	}
	for _, n := range f.running() {
		f.until(n.name+" has caught up", func() bool { return n.node.raft.AppliedIndex() >= f.leader().node.raft.CommitIndex() })
		if got := len(n.state.Read().Tokens()); got != len(secrets)+1 {
			t.Errorf("%s has %d tokens, want %d", n.name, got, len(secrets)+1)
		}
	}
}

// F46: a leader that was cut off answers no reads, not even before it notices
// that another leads; so a token that was revoked is worth nothing there.
func TestF46DeposedLeaderRefusesReads(t *testing.T) {
	for _, way := range []string{"both", "in", "out"} {
		t.Run(way, func(t *testing.T) {
			f := startFleet(t, 3)
			old := f.leader()
			secret := f.mustToken("agent", "ann")
			id := old.state.Read().Tokens()[1].GetId()
			if err := old.list(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			// Calls knock at the old leader without a pause; none may pass once the
			// revocation is acknowledged elsewhere.
			var mu sync.Mutex
			var revoked time.Time
			stop, knocking := context.WithCancel(t.Context())
			var work sync.WaitGroup
			for range 4 {
				work.Go(func() {
					for stop.Err() == nil {
						began := time.Now()
						ctx, cancel := context.WithTimeout(stop, 3*time.Second)
						err := old.list(ctx, secret)
						cancel()
						mu.Lock()
						late := !revoked.IsZero() && began.After(revoked)
						mu.Unlock()
						if err == nil && late {
							t.Error("a revoked token passed at the deposed leader")
						}
					}
				})
			}
			f.cutOff(old.name, way)
			f.until("the revocation is acknowledged", func() bool {
				for _, n := range f.running() {
					if n == old || !n.leads() {
						continue
					}
					_, err := n.at(f.admin).tokens.RevokeToken(t.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: id}))
					return err == nil
				}
				return false
			})
			mu.Lock()
			revoked = time.Now()
			mu.Unlock()
			time.Sleep(500 * time.Millisecond) // knocking goes on
			if way == "both" {
				ctx, cancel := context.WithTimeout(t.Context(), fleetWait+5*time.Second)
				defer cancel()
				if p := problem.Of(old.list(ctx, secret)); p.GetReason() != problem.NotLeader || !p.GetRetryable() {
					t.Errorf("cut off: %v", p)
				}
			}
			knocking()
			work.Wait()
			f.heal()
			f.until("the old leader follows", func() bool {
				return problem.Of(old.list(t.Context(), secret)).GetReason() == problem.Unauthenticated
			})
		})
	}
}

// cutOff cuts a node from all others: "both" ways, or only what comes "in" or
// goes "out".
func (f *fleet) cutOff(name, way string) {
	for _, other := range f.order {
		if other == name {
			continue
		}
		if way != "out" {
			f.cutWay(other, name)
		}
		if way != "in" {
			f.cutWay(name, other)
		}
	}
}

// F44: the leader's disk hangs; the others go on within seconds, and the old
// leader follows when its disk answers.
func TestF44LeaderWithStalledDiskGivesWay(t *testing.T) {
	f := startFleet(t, 3)
	old := f.leader()
	secret := f.mustToken("agent", "ann")
	old.disk.hang()
	hung := make(chan error, 1)
	go func() {
		_, err := old.token("agent", "lost")
		hung <- err
	}()
	began := time.Now()
	f.until("another leads", func() bool {
		for _, n := range f.running() {
			if n != old && n.leads() {
				return true
			}
		}
		return false
	})
	t.Logf("another leads after %v", time.Since(began))
	for _, n := range f.running() {
		if n == old {
			continue
		}
		if _, err := n.token("agent", "b-"+n.name); err != nil {
			t.Errorf("through %s: %v", n.name, err)
		}
	}
	select {
	case err := <-hung:
		if p := problem.Of(err); p.GetReason() != problem.OutcomeUnknown {
			t.Errorf("the call that met the stall: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the call that met the stall hangs")
	}
	// The stalled one does not answer by itself; it may pass calls on.
	if old.leads() {
		t.Error("the stalled leader answers calls")
	}
	old.disk.release()
	f.until("the old leader follows", func() bool { return !old.node.stall.stalled.Load() && old.list(t.Context(), secret) == nil })
	f.until("the old leader has all", func() bool { return old.node.raft.AppliedIndex() >= f.leader().node.raft.CommitIndex() })
}

// A stall that the others did not survive either ends with the stall.
func TestStalledLeaderGoesOnWhereNobodyElseCan(t *testing.T) {
	f := startFleet(t, 2)
	old := f.leader()
	other := f.followers()[0]
	old.disk.hang()
	other.disk.hang()
	go func() { _, _ = old.token("agent", "lost") }()
	f.until("the stall is noticed", func() bool { return old.node.stall.stalled.Load() })
	old.disk.release()
	other.disk.release()
	f.mustToken("agent", "ann")
}

func TestOneWayPartitionsLeaveOneLeader(t *testing.T) {
	f := startFleet(t, 3)
	// The leader and one follower don't hear each other; the third hears both.
	leader := f.leader()
	deaf := f.followers()[0]
	f.cutWay(leader.name, deaf.name)
	f.mustToken("agent", "ann")
	f.cutWay(deaf.name, leader.name)
	f.mustToken("agent", "bob")
	f.heal()
	f.until("all know one leader", func() bool {
		seen := map[string]bool{}
		for _, n := range f.running() {
			seen[n.leaderEndpoint()] = true
		}
		return len(seen) == 1 && !seen[""]
	})
}

// Without a majority nothing is acknowledged, and calls say so within their wait.
func TestNoMajorityNoAnswers(t *testing.T) {
	f := startFleet(t, 3)
	secret := f.mustToken("agent", "ann")
	left := f.running()[2]
	f.running()[1].kill()
	f.running()[0].kill()
	f.until("the last one does not lead", func() bool { return !left.leads() && !left.Ready() })
	began := time.Now()
	if p := problem.Of(left.list(t.Context(), secret)); p.GetReason() != problem.NotLeader || !p.GetRetryable() {
		t.Errorf("read: %v", p)
	}
	if took := time.Since(began); took > 2*fleetWait+time.Second {
		t.Errorf("the answer took %v", took)
	}
	f.node("c1").start()
	f.until("a majority goes on", func() bool { return left.list(t.Context(), secret) == nil })
}

// A deposed leader's links end, and its runners reach the next one.
func TestRunnersFollowTheLeader(t *testing.T) {
	f := startFleet(t, 3)
	f.runner("r1", f.endpoints()...)
	secret := f.mustToken("agent", "ann")
	for range 2 {
		old := f.leader()
		began := time.Now()
		old.kill()
		f.awaitRunner("r1")
		t.Logf("runner is back after %v", time.Since(began))
		if _, err := f.running()[0].at(secret).executions.RunShell(t.Context(), shellOn("r1", "")); err != nil {
			t.Error(err)
		}
		old.start()
		f.awaitVoters(3)
	}
	// In order, nobody has to notice an absence.
	old := f.leader()
	if _, err := old.clusterAPI().TransferLeadership(t.Context(), connect.NewRequest(&skerryv1.TransferLeadershipRequest{})); err != nil {
		t.Fatal(err)
	}
	f.until("another leads", func() bool { return f.leader() != old })
	f.awaitRunner("r1")
}
