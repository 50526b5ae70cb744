package coordinator

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/coordinatortest"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// tolds counts the entries of an inbox by what they are about, as the leader has it.
func (f *fleet) tolds(agent string) map[string]int {
	out := make(map[string]int)
	for _, e := range f.leader().state.Read().Entries(agent, 0, -1) {
		out[e.GetId()]++
	}
	return out
}

// Timers that fall due while leaders are killed fire once each: none that was
// acknowledged is missing, none comes twice.
func TestTimersFireOnceOverAFailOver(t *testing.T) {
	f := startFleet(t, 3)
	secret := f.mustToken("agent", "ann")
	set := make(map[string]bool)
	for round := range 2 {
		leader := f.leader()
		ann := leader.at(secret)
		for i := range 30 {
			timer, err := ann.timers.CreateTimer(t.Context(), newTimerRequest(uint64(200+50*i), fmt.Sprint(round, i), ""))
			if err != nil {
				t.Fatal(err)
			}
			set[timer.Msg.GetTimer().GetId()] = true
		}
		f.until("some have fired", func() bool { return len(f.tolds("ann")) > 30*round+5 })
		leader.kill()
		f.until("all have fired", func() bool { return len(f.leader().state.Read().TimersOf("ann")) == 0 })
		leader.start()
		f.awaitVoters(3)
	}
	told := f.tolds("ann")
	for id := range set {
		if told[id] != 1 {
			t.Errorf("%s fired %d times", id, told[id])
		}
	}
	if len(told) != len(set) {
		t.Errorf("%d fired, %d set", len(told), len(set))
	}
}

// Ends are told once though the leader that took them is killed, and the runner
// goes on to the next.
func TestEndsComeOnceOverAFailOver(t *testing.T) {
	f := startFleet(t, 3)
	r := f.runner("r1", f.endpoints()...)
	secret := f.mustToken("agent", "ann")
	must[skerryv1.RunShellResponse](t)(f.leader().at(secret).executions.RunShell(t.Context(), shellOn("r1", "")))
	number := f.leader().state.Read().Runner("r1").GetNumber()
	ended := make(map[string]bool)
	end := func(n int) {
		for range n {
			id := ids.New(ids.Execution, number, time.Now()).String()
			r.End("ann", id, skerryv1.StateCompleted)
			ended[id] = true
		}
	}
	for range 2 {
		end(20)
		leader := f.leader()
		f.until("some are taken", func() bool { return len(f.tolds("ann")) >= len(ended)-20+1 })
		end(20)
		leader.kill()
		end(20)
		f.awaitRunner("r1")
		f.until("all are told", func() bool { return len(f.tolds("ann")) == len(ended) })
		leader.start()
		f.awaitVoters(3)
	}
	told := f.tolds("ann")
	for id := range ended {
		if told[id] != 1 {
			t.Errorf("%s was told %d times", id, told[id])
		}
	}
}

// A revocation through one follower ends calls that go through another.
func TestRevocationReachesCallsThroughFollowers(t *testing.T) {
	f := startFleet(t, 3)
	secret := f.mustToken("agent", "ann")
	followers := f.followers()
	watch, err := followers[0].at(secret).inbox.WatchInbox(t.Context(), connect.NewRequest(&skerryv1.WatchInboxRequest{}))
	if err != nil || !watch.Receive() {
		t.Fatal(err, watch.Err())
	}
	ended := make(chan error, 1)
	go func() {
		for watch.Receive() {
		}
		ended <- watch.Err()
	}()
	began := time.Now()
	must[skerryv1.RevokeTokenResponse](t)(followers[1].at(f.admin).tokens.RevokeToken(t.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: idOf(secret)})))
	awaitReason(t, "stream", ended, problem.Unauthenticated, "revoked")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stream ended after %v", took)
	}
}

// A drain goes on where the leader that began it left off.
func TestDrainGoesOnOverAFailOver(t *testing.T) {
	f := startFleet(t, 3)
	r := coordinatortest.NewRunner("r1")
	r.SetLive(2)
	f.attach(r, f.endpoints()...)
	leader := f.leader()
	must[skerryv1.DrainRunnerResponse](t)(leader.at(f.admin).runners.DrainRunner(t.Context(), drain(&skerryv1.DrainRunnerRequest{Runner: "r1"})))
	began := leader.state.Read().Runner("r1").GetDrain().GetDeadline()
	leader.kill()
	f.awaitRunner("r1")
	if got := f.leader().state.Read().Runner("r1"); got.GetSchedule() != skerryv1.RunnerDraining || !got.GetDrain().GetDeadline().AsTime().Equal(began.AsTime()) {
		t.Errorf("after the fail-over: %v", got)
	}
	r.SetLive(0)
	f.until("drained", func() bool { return f.leader().state.Read().Runner("r1").GetSchedule() == skerryv1.RunnerDrained })
}
