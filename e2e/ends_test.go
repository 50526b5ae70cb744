package e2e

import (
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

func (d *dev) inbox(token string) rpc.InboxServiceClient {
	return rpc.NewInboxServiceClient(&http.Client{Transport: bearer(token)}, d.ready.Endpoint)
}

// Ends that nobody waited for come into the inbox once each, though everything is
// killed at any moment; an end that was waited for does not.
func TestEndsComeOnceOverKill9(t *testing.T) {
	d := newDev(t)
	c, token := d.agent("ann")
	unseen := map[string]int{}
	for _, pause := range []time.Duration{0, 300 * time.Millisecond, 1300 * time.Millisecond} {
		seen := c.sh(t, "true")
		wantState(t, seen, skerryv1.StateCompleted, skerryv1.VerdictExited)
		for range 3 {
			unseen[c.start(t, "true", nil).Id] = 0
		}
		// Let the daemons die with ends untold, being told and told.
		deadline := time.Now().Add(pause)
		d.eventually("a moment", func() bool { return time.Now().After(deadline) })
		d.kill()
		d.start()
		c = d.client(token)
	}
	var got []*skerryv1.InboxEntry
	d.eventually("all ends are told", func() bool {
		res, err := d.inbox(token).ReadInbox(t.Context(), connect.NewRequest(&skerryv1.ReadInboxRequest{WaitMs: 1000}))
		if err != nil {
			t.Fatal(err)
		}
		got = res.Msg.Entries
		return len(got) >= len(unseen)
	})
	for _, e := range got {
		if n, known := unseen[e.Id]; known && n == 0 {
			unseen[e.Id]++
			continue
		}
		// What was seen just before a kill may be told too: who had seen it died.
		if unseen[e.Id] > 0 || e.Kind != "execution_end" {
			t.Errorf("told again: %v", e)
		}
	}
	for id, n := range unseen {
		if n != 1 {
			t.Errorf("%s was told %d times", id, n)
		}
	}
}

// A drain waits, cancels at the deadline and lets nothing new in.
func TestDrainOfARealRunner(t *testing.T) {
	d := newDev(t)
	c, _ := d.agent("ann")
	long := c.start(t, "sleep 300", nil)
	d.eventually("it runs", func() bool { return c.get(t, long.Id).State == skerryv1.StateRunning })
	queued := c.start(t, "true", &skerryv1.RunOptions{IdempotencyKey: "before"})
	res, err := d.admin().run.DrainRunner(t.Context(), connect.NewRequest(&skerryv1.DrainRunnerRequest{Runner: "local", DeadlineS: proto.Uint32(1), Reason: "test"}))
	if err != nil || res.Msg.Runner.Schedule != skerryv1.RunnerDraining {
		t.Fatal(res, err)
	}
	_, err = c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true"}))
	if problem.Of(err).GetReason() != problem.RunnerDraining {
		t.Errorf("a new execution: %v", err)
	}
	keyed := func(key string) (*connect.Response[skerryv1.RunShellResponse], error) {
		return c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true", Options: &skerryv1.RunOptions{IdempotencyKey: key, Background: true}}))
	}
	if again, err := keyed("before"); err != nil || again.Msg.Execution.Id != queued.Id {
		t.Errorf("a repeat of what was started before: %v, %v", again, err)
	}
	if _, err := keyed("new"); problem.Of(err).GetReason() != problem.RunnerDraining {
		t.Errorf("a new execution with a key: %v", err)
	}
	res, err = d.admin().run.DrainRunner(t.Context(), connect.NewRequest(&skerryv1.DrainRunnerRequest{Runner: "local", DeadlineS: proto.Uint32(1), WaitMs: 30_000}))
	if err != nil || res.Msg.Runner.Schedule != skerryv1.RunnerDrained || res.Msg.Runner.Drain.Cancelled != 2 || res.Msg.Runner.Drain.Left != 0 {
		t.Fatal(res, err)
	}
	wantState(t, c.get(t, long.Id), skerryv1.StateCancelled, skerryv1.VerdictCancelled)
	wantState(t, c.get(t, queued.Id), skerryv1.StateCancelled, skerryv1.VerdictCancelled)
	if _, err := d.admin().run.UncordonRunner(t.Context(), connect.NewRequest(&skerryv1.UncordonRunnerRequest{Runner: "local"})); err != nil {
		t.Fatal(err)
	}
	wantState(t, c.sh(t, "true"), skerryv1.StateCompleted, skerryv1.VerdictExited)
}
