package state

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// MaxTimers is how many pending timers an agent may have.
const MaxTimers = 1000

const (
	tableTimers = "timers"

	indexDue       = "due"
	indexExecution = "execution"
)

func timersTable() *memdb.TableSchema {
	return table(tableTimers, byID((*raftlogv1.Timer).GetId),
		byText(indexAgent, false, 1, func(t *raftlogv1.Timer) []string { return []string{t.GetAgent()} }),
		optional(byText(indexExecution, false, 1, func(t *raftlogv1.Timer) []string { return []string{t.GetExecutionId()} })),
		&memdb.IndexSchema{Name: indexDue, Indexer: dueIndex{}})
}

// dueIndex orders timers by when they are due.
type dueIndex struct{}

// FromObject implements memdb.SingleIndexer. Due times lie after 1970.
func (dueIndex) FromObject(raw any) (bool, []byte, error) {
	t, ok := raw.(*raftlogv1.Timer)
	if !ok {
		return false, nil, fmt.Errorf("%T in a table of another type", raw)
	}
	key := binary.BigEndian.AppendUint64(nil, uint64(t.GetDue().GetSeconds()))
	return true, binary.BigEndian.AppendUint32(key, uint32(t.GetDue().GetNanos())), nil
}

// FromArgs implements memdb.Indexer: the index is only walked.
func (dueIndex) FromArgs(...any) ([]byte, error) {
	return nil, errors.New("timers are not found by their due time")
}

// Timer finds a pending timer by id.
func (r Reader) Timer(id string) *raftlogv1.Timer {
	v, _ := first[raftlogv1.Timer](r.txn, tableTimers, indexID, id)
	return v
}

// TimersOf lists an agent's pending timers, oldest first.
func (r Reader) TimersOf(agent string) []*raftlogv1.Timer {
	return all[raftlogv1.Timer](r.txn, tableTimers, indexAgent, agent)
}

// NextTimers lists the timers that are due first, at most limit.
func (r Reader) NextTimers(limit int) []*raftlogv1.Timer {
	it, err := r.txn.Get(tableTimers, indexDue)
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Timer
	for raw := it.Next(); raw != nil && len(out) < limit; raw = it.Next() {
		out = append(out, raw.(*raftlogv1.Timer))
	}
	return out
}

// TimersFrom lists the timers whose id is not before from: ids sort by the time
// of their making.
func (r Reader) TimersFrom(from string) []*raftlogv1.Timer {
	it, err := r.txn.LowerBound(tableTimers, indexID, from)
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Timer
	for raw := it.Next(); raw != nil; raw = it.Next() {
		out = append(out, raw.(*raftlogv1.Timer))
	}
	return out
}

func (p processor) createTimer(cmd *raftlogv1.Command, timer *raftlogv1.Timer) *raftlogv1.Answer {
	owner := p.Agent(timer.GetAgent())
	switch {
	case timer.GetId() == "" || timer.GetDue().GetSeconds() < 0 || timer.GetDue() == nil:
		return refuse(problem.InvalidArgument, "timer", "id or due time is missing")
	case owner == nil || owner.GetArchived() != nil:
		return refuse(problem.NotFound, "agent", "no agent %q", timer.GetAgent())
	case p.Timer(timer.GetId()) != nil:
		return refuse(problem.AlreadyExists, "id", "timer %q exists", timer.GetId())
	case len(p.TimersOf(timer.GetAgent())) >= MaxTimers:
		return refuse(problem.LimitExceeded, "", "%d timers are pending", MaxTimers)
	}
	timer = proto.CloneOf(timer)
	timer.Created = cmd.GetTime()
	p.put(tableTimers, timer)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Timer{Timer: timer}}
}

func (p processor) cancelTimer(op *raftlogv1.CancelTimer) *raftlogv1.Answer {
	timer := p.Timer(op.GetId())
	if timer == nil || timer.GetAgent() != op.GetAgent() {
		return refuse(problem.NotFound, "timerId", "no such timer is pending")
	}
	p.remove(tableTimers, timer)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Timer{Timer: timer}}
}

// fireTimers moves timers into inboxes. One that is not pending any more was
// fired or cancelled: nothing fires twice.
func (p processor) fireTimers(cmd *raftlogv1.Command, op *raftlogv1.FireTimers) *raftlogv1.Answer {
	fired := 0
	for _, id := range op.GetIds() {
		timer := p.Timer(id)
		if timer == nil {
			continue
		}
		p.remove(tableTimers, timer)
		p.deliver(timer.GetAgent(), &raftlogv1.InboxEntry{Time: cmd.GetTime(), Kind: EntryTimer, Text: timer.GetMessage(), Id: id})
		fired++
	}
	return counted(fired)
}

// recordEnds takes over the ends that a runner told and that are news: each
// cancels the timers that wait for it, and is delivered unless it was seen.
func (p processor) recordEnds(cmd *raftlogv1.Command, op *raftlogv1.RecordEnds) *raftlogv1.Answer {
	runner := proto.CloneOf(p.Runner(op.GetRunner()))
	if runner == nil {
		return refuse(problem.NotFound, "runner", "no runner %q", op.GetRunner())
	}
	if op.GetLog() != runner.GetEndLog() {
		runner.EndLog, runner.EndSeq = op.GetLog(), 0
	}
	taken := 0
	for _, end := range op.GetEnds() {
		if end.GetSeq() <= runner.GetEndSeq() {
			continue
		}
		runner.EndSeq = end.GetSeq()
		if p.worked(end.GetAgent(), runner.GetName()) {
			p.takeEnd(cmd, end)
			taken++
		}
	}
	runner.EndSeq = max(runner.GetEndSeq(), op.GetThrough())
	p.put(tableRunners, runner)
	return counted(taken)
}

// worked reports whether an agent has, or had, a workspace on a runner, so that
// the runner may tell of its executions.
func (p processor) worked(agent, runner string) bool {
	return p.WorkspaceOf(agent, runner) != nil || p.BranchOf(agent, runner) != nil
}

func (p processor) takeEnd(cmd *raftlogv1.Command, end *raftlogv1.End) {
	for _, timer := range all[raftlogv1.Timer](p.txn, tableTimers, indexExecution, end.GetExecutionId()) {
		if timer.GetAgent() == end.GetAgent() {
			p.remove(tableTimers, timer)
		}
	}
	if !end.GetSeen() {
		p.deliver(end.GetAgent(), &raftlogv1.InboxEntry{Time: cmd.GetTime(), Kind: EntryExecutionEnd, Text: end.GetText(), Id: end.GetExecutionId()})
	}
}
