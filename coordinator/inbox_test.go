package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func read(after uint64, waitMS uint32) *connect.Request[skerryv1.ReadInboxRequest] {
	return connect.NewRequest(&skerryv1.ReadInboxRequest{After: after, WaitMs: waitMS})
}

func newTimerRequest(ms uint64, message, execution string) *connect.Request[skerryv1.CreateTimerRequest] {
	return connect.NewRequest(&skerryv1.CreateTimerRequest{AfterMs: ms, Message: message, ExecutionId: execution})
}

// entries is "kind id" of what an inbox holds, oldest first.
func entries(list []*skerryv1.InboxEntry) (out []string) {
	for _, e := range list {
		out = append(out, e.GetKind()+" "+e.GetId())
	}
	return out
}

func TestTimersFireIntoTheInbox(t *testing.T) {
	k := start(t)
	ann := k.as(k.token("agent", "ann"))
	late := must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(3_600_000, "late", ""))).GetTimer()
	soon := must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(100, "soon", ""))).GetTimer()
	list := must[skerryv1.ListTimersResponse](t)(ann.timers.ListTimers(t.Context(), connect.NewRequest(&skerryv1.ListTimersRequest{})))
	if len(list.GetTimers()) != 2 || list.GetTimers()[0].GetId() != soon.GetId() {
		t.Errorf("timers %v", list)
	}
	// It waits for the first entry.
	page := must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), read(0, 10_000)))
	if len(page.GetEntries()) != 1 || page.GetEntries()[0].GetId() != soon.GetId() || page.GetEntries()[0].GetText() != "soon" || page.GetNextCursor() != 1 {
		t.Fatalf("page %v", page)
	}
	if early := page.GetEntries()[0].GetTime().AsTime().Before(soon.GetDue().AsTime()); early {
		t.Error("fired before it was due")
	}
	// Unacknowledged, it is there again; acknowledged, not.
	if again := must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), read(0, 0))); len(again.GetEntries()) != 1 {
		t.Errorf("again %v", again)
	}
	if next := must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), read(1, 0))); len(next.GetEntries()) != 0 || next.GetNextCursor() != 1 {
		t.Errorf("next %v", next)
	}
	if from := must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), read(0, 0))); len(from.GetEntries()) != 0 || from.GetNextCursor() != 1 {
		t.Errorf("from the start %v", from)
	}
	must[skerryv1.CancelTimerResponse](t)(ann.timers.CancelTimer(t.Context(), connect.NewRequest(&skerryv1.CancelTimerRequest{TimerId: late.GetId()})))
	for _, id := range []string{late.GetId(), soon.GetId(), "tm_x", ""} {
		_, err := ann.timers.CancelTimer(t.Context(), connect.NewRequest(&skerryv1.CancelTimerRequest{TimerId: id}))
		if problem.Of(err).GetReason() != problem.NotFound {
			t.Errorf("cancel %q: %v", id, err)
		}
	}
}

func TestTimerRequestsAreChecked(t *testing.T) {
	k := start(t)
	ann := k.as(k.token("agent", "ann"))
	zone := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }
	tests := []struct {
		req           *skerryv1.CreateTimerRequest
		field, reason string
	}{
		{&skerryv1.CreateTimerRequest{Message: "m"}, "afterMs", problem.InvalidArgument},
		{&skerryv1.CreateTimerRequest{Message: "m", AfterMs: 1, At: zone(time.Hour)}, "afterMs", problem.InvalidArgument},
		{&skerryv1.CreateTimerRequest{Message: "m", AfterMs: 1 << 63}, "afterMs", problem.LimitExceeded},
		{&skerryv1.CreateTimerRequest{Message: "m", At: "tomorrow"}, "at", problem.InvalidArgument},
		{&skerryv1.CreateTimerRequest{Message: "m", At: "2030-01-01T00:00:00"}, "at", problem.InvalidArgument},
		{&skerryv1.CreateTimerRequest{Message: "m", At: zone(-time.Hour)}, "at", problem.InvalidArgument},
		{&skerryv1.CreateTimerRequest{Message: "m", At: "9999-01-01T00:00:00Z"}, "at", problem.LimitExceeded},
		{&skerryv1.CreateTimerRequest{AfterMs: 1}, "message", problem.InvalidArgument},
		{&skerryv1.CreateTimerRequest{AfterMs: 1, Message: strings.Repeat("ä", 4001)}, "message", problem.LimitExceeded},
		{&skerryv1.CreateTimerRequest{AfterMs: 1, Message: "m", ExecutionId: "x"}, "executionId", problem.NotFound},
		{&skerryv1.CreateTimerRequest{AfterMs: 1000, Message: strings.Repeat("ä", 4000)}, "", ""},
		{&skerryv1.CreateTimerRequest{At: zone(time.Hour), Message: "m"}, "", ""},
	}
	for _, tt := range tests {
		_, err := ann.timers.CreateTimer(t.Context(), connect.NewRequest(tt.req))
		if p := problem.Of(err); p.GetField() != tt.field || p.GetReason() != tt.reason {
			t.Errorf("%.80v: %v", tt.req, err)
		}
	}
	for field, req := range map[string]*skerryv1.ReadInboxRequest{"limit": {Limit: 201}, "waitMs": {WaitMs: 30_001}, "after": {After: 1}} {
		if _, err := ann.inbox.ReadInbox(t.Context(), connect.NewRequest(req)); problem.Of(err).GetField() != field {
			t.Errorf("%v: %v", req, err)
		}
	}
}

func TestInboxPages(t *testing.T) {
	k := start(t)
	ann := k.as(k.token("agent", "ann"))
	var fired []string
	for i := range 7 {
		id := fmt.Sprint("tm_", i)
		fired = append(fired, id)
		if _, err := k.node.apply(t.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_CreateTimer{CreateTimer: &raftlogv1.CreateTimer{
			Timer: &raftlogv1.Timer{Id: id, Agent: "ann", Due: timestampIn(time.Hour), Message: "m"}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.node.apply(t.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_FireTimers{FireTimers: &raftlogv1.FireTimers{Ids: fired}}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for after, more := uint64(0), true; more; {
		page := must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), connect.NewRequest(&skerryv1.ReadInboxRequest{After: after, Limit: 3})))
		for _, e := range page.GetEntries() {
			got = append(got, e.GetId())
		}
		after, more = page.GetNextCursor(), page.GetMore()
	}
	if fmt.Sprint(got) != fmt.Sprint(fired) {
		t.Errorf("read %v, want %v", got, fired)
	}
	// What was read is acknowledged, but for the last page.
	watch, err := ann.inbox.WatchInbox(t.Context(), connect.NewRequest(&skerryv1.WatchInboxRequest{}))
	if err != nil || !watch.Receive() {
		t.Fatal(err, watch.Err())
	}
	defer func() { _ = watch.Close() }()
	if got := watch.Msg(); len(got.GetEntries()) != 1 || got.GetNextCursor() != 7 {
		t.Errorf("watched %v", got)
	}
	must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(1, "new", "")))
	if !watch.Receive() || len(watch.Msg().GetEntries()) != 1 || watch.Msg().GetEntries()[0].GetSeq() != 8 {
		t.Errorf("then %v, %v", watch.Msg(), watch.Err())
	}
}

// Ends that the agent has not seen are delivered once, over a restart of the
// coordinator and of the runner; what it waited for is not.
func TestEndsAreDeliveredOnce(t *testing.T) {
	cfg := testConfig(t.TempDir())
	k := startWith(t, cfg)
	r := newNamed("r1")
	stop := k.run(r)
	secret := k.token("agent", "ann")
	ann := k.as(secret)
	seen := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true"))).GetExecution()
	r.End("ann", seen.GetId(), skerryv1.StateCompleted)
	number := k.state.Read().Runner("r1").GetNumber()
	unseen := ids.New(ids.Execution, number, time.Now()).String()
	r.End("ann", unseen, skerryv1.StateFailed)
	// Of another runner, or for an agent that never worked here: not its to tell.
	r.End("ann", ids.New(ids.Execution, number+1, time.Now()).String(), skerryv1.StateFailed)
	k.token("agent", "bob")
	r.End("bob", ids.New(ids.Execution, number, time.Now()).String(), skerryv1.StateFailed)
	page := must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), read(0, 10_000)))
	if got := entries(page.GetEntries()); len(got) != 1 || got[0] != "execution_end "+unseen || !strings.Contains(page.GetEntries()[0].GetText(), "failed (exit code 0): true") {
		t.Fatalf("inbox %v", page)
	}
	k.until("all ends taken", func() bool { return k.state.Read().Runner("r1").GetEndSeq() == 4 })
	stop()
	k.stop()
	k = startWith(t, cfg)
	ann = k.as(secret)
	k.run(r)
	missed := ids.New(ids.Execution, number, time.Now()).String()
	r.End("ann", missed, skerryv1.StateCompleted)
	k.until("the new end", func() bool { return k.state.Read().Runner("r1").GetEndSeq() == 5 })
	page = must[skerryv1.ReadInboxResponse](t)(ann.inbox.ReadInbox(t.Context(), read(0, 0)))
	if got := fmt.Sprint(entries(page.GetEntries())); got != fmt.Sprint([]string{"execution_end " + unseen, "execution_end " + missed}) {
		t.Errorf("inbox after the restart: %v", got)
	}
	if box := k.state.Read().Inbox("bob"); box != nil {
		t.Errorf("bob's inbox %v", box)
	}
}

// A runner that lost its data numbers its ends from 1 again.
func TestEndsOfANewLog(t *testing.T) {
	k := start(t)
	r := newNamed("r1")
	stop := k.run(r)
	ann := k.as(k.token("agent", "ann"))
	must[skerryv1.ListFilesResponse](t)(ann.files.ListFiles(t.Context(), connect.NewRequest(&skerryv1.ListFilesRequest{})))
	end := func() string {
		id := ids.New(ids.Execution, k.state.Read().Runner("r1").GetNumber(), time.Now()).String()
		r.End("ann", id, skerryv1.StateCompleted)
		return id
	}
	end()
	end()
	k.until("two ends", func() bool { return k.state.Read().Inbox("ann").GetLast() == 2 })
	stop()
	r.LoseEnds("another")
	third := end()
	k.run(r)
	k.until("the end of the new log", func() bool { return k.state.Read().Inbox("ann").GetLast() == 3 })
	if list := k.state.Read().Entries("ann", 2, -1); list[0].GetId() != third {
		t.Errorf("entry %v", list)
	}
}

func TestTheEndOfAnExecutionCancelsItsTimers(t *testing.T) {
	k := start(t)
	r := k.runner("r1")
	ann := k.as(k.token("agent", "ann"))
	ex := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true"))).GetExecution()
	_, err := ann.timers.CreateTimer(t.Context(), newTimerRequest(3_600_000, "m", ex.GetId()))
	if p := problem.Of(err); p.GetReason() != problem.NotRunning || p.GetField() != "executionId" {
		t.Errorf("timer for one that has ended: %v", err)
	}
	r.SetState(ex.GetId(), skerryv1.StateRunning)
	must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(3_600_000, "m", ex.GetId())))
	other := must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(3_600_000, "m", ""))).GetTimer()
	r.End("ann", ex.GetId(), skerryv1.StateCompleted)
	k.until("timer cancelled", func() bool { return len(k.state.Read().TimersOf("ann")) == 1 })
	if left := k.state.Read().TimersOf("ann"); left[0].GetId() != other.GetId() {
		t.Errorf("left %v", left)
	}
}

// A leader that dies right after committing a timer has not looked again whether
// its execution goes on; the next one does.
func TestTimersOfEndedExecutionsAreFoundByTheNextLeader(t *testing.T) {
	cfg := testConfig(t.TempDir())
	k := startWith(t, cfg)
	r := newNamed("r1")
	stop := k.run(r)
	secret := k.token("agent", "ann")
	ann := k.as(secret)
	ex := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shell("true"))).GetExecution()
	r.SetState(ex.GetId(), skerryv1.StateRunning)
	must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(3_600_000, "m", ex.GetId())))
	other := must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(3_600_000, "m", ""))).GetTimer()
	stop()
	k.stop()
	r.SetState(ex.GetId(), skerryv1.StateCompleted) // of which nobody is told

	k = startWith(t, cfg)
	defer k.run(r)()
	k.until("timer cancelled", func() bool { return len(k.state.Read().TimersOf("ann")) == 1 })
	if left := k.state.Read().TimersOf("ann"); left[0].GetId() != other.GetId() {
		t.Errorf("left %v", left)
	}
}

// Two leaders in turn, or at once, fire each timer once.
func TestTimersFireOnceOverARestart(t *testing.T) {
	cfg := testConfig(t.TempDir())
	k := startWith(t, cfg)
	secret := k.token("agent", "ann")
	ann := k.as(secret)
	for range 20 {
		must[skerryv1.CreateTimerResponse](t)(ann.timers.CreateTimer(t.Context(), newTimerRequest(300, "m", "")))
	}
	k.stop()

	k = startWith(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.fireTimers(ctx) }()
	k.until("all fired", func() bool { return len(k.state.Read().TimersOf("ann")) == 0 })
	cancel()
	<-done
	if box := k.state.Read().Inbox("ann"); box.GetLast() != 20 {
		t.Errorf("inbox %v", box)
	}
}

func timestampIn(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(d)) }
