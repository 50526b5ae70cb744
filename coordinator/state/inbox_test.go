package state

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

func timer(id, agent string, due int64, execution string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_CreateTimer{CreateTimer: &raftlogv1.CreateTimer{Timer: &raftlogv1.Timer{
		Id: id, Agent: agent, Due: timestamppb.New(time.Unix(due, 0)), Message: "wake " + id, ExecutionId: execution}}}}
}

func fire(ids ...string) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_FireTimers{FireTimers: &raftlogv1.FireTimers{Ids: ids}}}
}

func ends(runner, log string, through uint64, list ...*raftlogv1.End) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_RecordEnds{RecordEnds: &raftlogv1.RecordEnds{Runner: runner, Log: log, Through: through, Ends: list}}}
}

func ack(agent string, through uint64) *raftlogv1.Command {
	return &raftlogv1.Command{Op: &raftlogv1.Command_AckInbox{AckInbox: &raftlogv1.AckInbox{Agent: agent, Through: through}}}
}

// inbox is "kind id" of an agent's entries.
func inbox(s *State, agent string) (out []string) {
	for _, e := range s.Read().Entries(agent, 0, -1) {
		out = append(out, fmt.Sprint(e.GetSeq(), " ", e.GetKind(), " ", e.GetId()))
	}
	return out
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestTimersFireOnceInOrder(t *testing.T) {
	l := newLog(t)
	l.apply(create("tk_1", "agent", "ann", ""))
	for id, due := range map[string]int64{"tm_1": 30, "tm_2": 10, "tm_3": 20} {
		if f := l.apply(timer(id, "ann", due, "")).GetFailure(); f != nil {
			t.Fatal(f)
		}
	}
	var order []string
	for _, tm := range l.s.Read().NextTimers(2) {
		order = append(order, tm.GetId())
	}
	same(t, "due first", order, "tm_2", "tm_3")
	if n := l.apply(fire("tm_2", "tm_3")).GetCounted().GetChanged(); n != 2 {
		t.Errorf("fired %d", n)
	}
	// Another leader fires them too.
	if n := l.apply(fire("tm_2", "tm_1")).GetCounted().GetChanged(); n != 1 {
		t.Errorf("fired again %d", n)
	}
	same(t, "inbox", inbox(l.s, "ann"), "1 timer tm_2", "2 timer tm_3", "3 timer tm_1")
	if f := l.apply(&raftlogv1.Command{Op: &raftlogv1.Command_CancelTimer{CancelTimer: &raftlogv1.CancelTimer{Agent: "ann", Id: "tm_1"}}}).GetFailure(); f.GetReason() != problem.NotFound {
		t.Errorf("cancel a fired one: %v", f)
	}
}

func TestTimersAreBounded(t *testing.T) {
	l := newLog(t)
	l.apply(create("tk_1", "agent", "ann", ""))
	for i := range MaxTimers {
		l.apply(timer(fmt.Sprint("tm_", i), "ann", 10, ""))
	}
	if f := l.apply(timer("tm_x", "ann", 10, "")).GetFailure(); f.GetReason() != problem.LimitExceeded {
		t.Errorf("one more: %v", f)
	}
}

func TestEndsAreTakenOnce(t *testing.T) {
	l := newLog(t)
	l.apply(register("r1"))
	l.apply(create("tk_1", "agent", "ann", ""))
	l.apply(create("tk_2", "agent", "bob", ""))
	l.apply(assign("ws_1", "ann", "r1"))
	l.apply(timer("tm_1", "ann", 10, "ex_1"))
	l.apply(timer("tm_2", "ann", 10, "ex_2"))
	l.apply(timer("tm_3", "bob", 10, "ex_1"))
	one := &raftlogv1.End{Seq: 1, ExecutionId: "ex_1", Agent: "ann", State: "completed"}
	two := &raftlogv1.End{Seq: 2, ExecutionId: "ex_2", Agent: "ann", State: "failed", Seen: true}
	// Bob never worked there: the runner cannot write into his inbox.
	forged := &raftlogv1.End{Seq: 3, ExecutionId: "ex_3", Agent: "bob", State: "failed"}
	l.apply(ends("r1", "log", 3, one, two, forged))
	l.apply(ends("r1", "log", 3, one, two, forged))
	same(t, "ann", inbox(l.s, "ann"), "1 execution_end ex_1")
	same(t, "bob", inbox(l.s, "bob"))
	if len(l.s.Read().TimersOf("ann")) != 0 || len(l.s.Read().TimersOf("bob")) != 1 {
		t.Errorf("timers left: %v, %v", l.s.Read().TimersOf("ann"), l.s.Read().TimersOf("bob"))
	}
	if r := l.s.Read().Runner("r1"); r.GetEndSeq() != 3 || r.GetEndLog() != "log" {
		t.Errorf("runner %v", r)
	}
	// An unknown one that resolves is told again; a new log begins at the start.
	l.apply(ends("r1", "log", 4, &raftlogv1.End{Seq: 4, ExecutionId: "ex_1", Agent: "ann", State: "completed"}))
	l.apply(ends("r1", "new", 1, &raftlogv1.End{Seq: 1, ExecutionId: "ex_9", Agent: "ann", State: "completed"}))
	same(t, "ann", inbox(l.s, "ann"), "1 execution_end ex_1", "2 execution_end ex_1", "3 execution_end ex_9")
}

func TestInboxIsBoundedAndAcknowledged(t *testing.T) {
	l := newLog(t)
	l.apply(create("tk_1", "agent", "ann", ""))
	for i := range MaxEntries + 5 {
		id := fmt.Sprint("tm_", i)
		l.apply(timer(id, "ann", 10, ""))
		l.apply(fire(id))
	}
	box := l.s.Read().Inbox("ann")
	list := l.s.Read().Entries("ann", 0, -1)
	if box.GetDropped() != 5 || len(list) != MaxEntries || list[0].GetSeq() != 6 || box.GetEntries() != MaxEntries {
		t.Errorf("%v, %d entries", box, len(list))
	}
	if n := l.apply(ack("ann", 1000)).GetCounted().GetChanged(); n != 995 {
		t.Errorf("acknowledged %d", n)
	}
	if n := l.apply(ack("ann", 10)).GetCounted().GetChanged(); n != 0 {
		t.Errorf("acknowledged again %d", n)
	}
	if box := l.s.Read().Inbox("ann"); box.GetEntries() != 5 || box.GetAcknowledged() != 1000 || len(l.s.Read().Entries("ann", 0, 3)) != 3 {
		t.Errorf("%v", box)
	}
	if f := l.apply(ack("ann", 5000)).GetFailure(); f.GetReason() != problem.InvalidArgument {
		t.Errorf("beyond the newest: %v", f)
	}
}

func TestArchivedAgentsAreNotWoken(t *testing.T) {
	l := newLog(t)
	l.apply(register("r1"))
	l.apply(create("tk_1", "agent", "ann", ""))
	l.apply(assign("ws_1", "ann", "r1"))
	l.apply(timer("tm_1", "ann", 10, ""))
	l.apply(timer("tm_2", "ann", 10, ""))
	l.apply(fire("tm_1"))
	archive := &raftlogv1.Command{Op: &raftlogv1.Command_ArchiveAgent{ArchiveAgent: &raftlogv1.ArchiveAgent{Name: "ann"}}}
	if a := l.apply(archive).GetAgent(); a.GetArchived() == nil {
		t.Errorf("agent %v", a)
	}
	l.apply(ends("r1", "log", 1, &raftlogv1.End{Seq: 1, ExecutionId: "ex_1", Agent: "ann", State: "completed"}))
	same(t, "inbox", inbox(l.s, "ann"))
	r := l.s.Read()
	if len(r.TimersOf("ann")) != 0 || r.Token("tk_1").GetRevoked() == nil {
		t.Errorf("timers %v, token %v", r.TimersOf("ann"), r.Token("tk_1"))
	}
	for _, cmd := range []*raftlogv1.Command{create("tk_2", "agent", "ann", ""), timer("tm_3", "ann", 10, "")} {
		if l.apply(cmd).GetFailure() == nil {
			t.Errorf("%v was accepted", cmd)
		}
	}
}

func TestChangedWakesOnce(t *testing.T) {
	l := newLog(t)
	first := l.s.Changed()
	select {
	case <-first:
		t.Fatal("changed without a change")
	default:
	}
	l.apply(register("r1"))
	<-first
	second := l.s.Changed()
	if err := l.s.Restore(snapshotOf(t, l.s)); err != nil {
		t.Fatal(err)
	}
	<-second
}

func snapshotOf(t *testing.T, s *State) io.Reader {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return &b
}
