package state

import (
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// MaxEntries is how many entries an inbox keeps; the oldest go first, counted.
const MaxEntries = 1000

// Kinds of entries.
const (
	EntryExecutionEnd = "execution_end"
	EntryTimer        = "timer"
	EntryTransferEnd  = "transfer_end"
)

const (
	tableInboxes = "inboxes"
	tableEntries = "inbox_entries"

	indexAgent = "agent"
)

func entriesTable() *memdb.TableSchema {
	return table(tableEntries,
		&memdb.IndexSchema{Name: indexID, Unique: true, Indexer: entryIndex{}},
		byText(indexAgent, false, 1, func(e *raftlogv1.InboxEntry) []string { return []string{e.GetAgent()} }))
}

// entryIndex orders entries by agent and number.
type entryIndex struct{}

// FromObject implements memdb.SingleIndexer.
func (entryIndex) FromObject(raw any) (bool, []byte, error) {
	e, ok := raw.(*raftlogv1.InboxEntry)
	if !ok {
		return false, nil, fmt.Errorf("%T in a table of another type", raw)
	}
	return true, entryKey(e.GetAgent(), e.GetSeq()), nil
}

// FromArgs implements memdb.Indexer.
func (entryIndex) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 2 {
		return nil, fmt.Errorf("%d arguments, want agent and number", len(args))
	}
	agent, ok := args[0].(string)
	seq, isNumber := args[1].(uint64)
	if !ok || !isNumber {
		return nil, fmt.Errorf("arguments are %T and %T", args[0], args[1])
	}
	return entryKey(agent, seq), nil
}

func entryKey(agent string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(agent), 0), seq)
}

// Inbox gives the counts of an agent's inbox; nil: it never had an entry.
func (r Reader) Inbox(agent string) *raftlogv1.Inbox {
	v, _ := first[raftlogv1.Inbox](r.txn, tableInboxes, indexID, agent)
	return v
}

// Entries lists an agent's entries after a number, oldest first, at most limit;
// a negative limit: all.
func (r Reader) Entries(agent string, after uint64, limit int) []*raftlogv1.InboxEntry {
	it, err := r.txn.LowerBound(tableEntries, indexID, agent, after)
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.InboxEntry
	for raw := it.Next(); raw != nil && len(out) != limit; raw = it.Next() {
		entry := raw.(*raftlogv1.InboxEntry)
		if entry.GetAgent() != agent {
			break
		}
		if entry.GetSeq() > after {
			out = append(out, entry)
		}
	}
	return out
}

// deliver puts an entry into an agent's inbox and gives it its number. Agents
// that do not exist or were archived get nothing.
func (p processor) deliver(agent string, entry *raftlogv1.InboxEntry) {
	owner := p.Agent(agent)
	if owner == nil || owner.GetArchived() != nil {
		return
	}
	box := proto.CloneOf(p.Inbox(agent))
	if box == nil {
		box = &raftlogv1.Inbox{Agent: agent}
	}
	box.Last++
	box.Entries++
	entry = proto.CloneOf(entry)
	entry.Agent, entry.Seq = agent, box.GetLast()
	p.put(tableEntries, entry)
	for _, old := range p.Entries(agent, 0, max(int(box.GetEntries())-MaxEntries, 0)) {
		p.remove(tableEntries, old)
		box.Entries--
		box.Dropped++
	}
	p.put(tableInboxes, box)
}

// ackInbox removes what an agent has read.
func (p processor) ackInbox(op *raftlogv1.AckInbox) *raftlogv1.Answer {
	box := proto.CloneOf(p.Inbox(op.GetAgent()))
	if op.GetThrough() > box.GetLast() {
		return refuse(problem.InvalidArgument, "after", "the newest entry is %d", box.GetLast())
	}
	removed := 0
	for _, entry := range p.Entries(op.GetAgent(), 0, -1) {
		if entry.GetSeq() > op.GetThrough() {
			break
		}
		p.remove(tableEntries, entry)
		removed++
	}
	if op.GetThrough() > box.GetAcknowledged() {
		box.Acknowledged = op.GetThrough()
		box.Entries -= uint32(removed)
		p.put(tableInboxes, box)
	}
	return counted(removed)
}

func (p processor) emptyInbox(agent string) {
	box := proto.CloneOf(p.Inbox(agent))
	if box == nil {
		return
	}
	for _, entry := range p.Entries(agent, 0, -1) {
		p.remove(tableEntries, entry)
	}
	box.Entries = 0
	p.put(tableInboxes, box)
}

// loadEntry refuses an entry that its inbox does not count.
func loadEntry(txn *memdb.Txn, entry *raftlogv1.InboxEntry) error {
	box := (Reader{txn: txn}).Inbox(entry.GetAgent())
	if entry.GetSeq() == 0 || entry.GetSeq() > box.GetLast() {
		return fmt.Errorf("inbox entry %d of agent %q is beyond its inbox", entry.GetSeq(), entry.GetAgent())
	}
	old, err := txn.First(tableEntries, indexID, entry.GetAgent(), entry.GetSeq())
	if err != nil {
		return err
	}
	if old != nil {
		return fmt.Errorf("two inbox entries %d of agent %q", entry.GetSeq(), entry.GetAgent())
	}
	return txn.Insert(tableEntries, entry)
}
