package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// Version of the snapshot form. A reader refuses a newer one, and reads older
// ones. Version 2 has members and what else a cluster brought.
const Version = 2

// maxRecord bounds one record of a snapshot, in bytes.
const maxRecord = 4 << 20

// ErrSnapshot is wrapped by every refusal of Restore.
var ErrSnapshot = errors.New("snapshot cannot be restored")

// Snapshot is the state at one instant. Taking it costs nothing and blocks
// nobody, since the tables are immutable trees.
type Snapshot struct {
	txn     *memdb.Txn
	applied []*raftlogv1.Applied
}

// Snapshot captures the state. It must not run beside Apply; Raft sees to that.
func (s *State) Snapshot() *Snapshot {
	return &Snapshot{txn: s.Read().txn, applied: s.memory.snapshot()}
}

// WriteTo streams the snapshot as length-delimited SnapshotRecords, a header
// first. Equal states give equal bytes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := &recordWriter{w: bufio.NewWriterSize(w, 256<<10)}
	header := processor{Reader: Reader{txn: s.txn}}.cluster()
	header.Version = Version
	out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Header{Header: header}})
	each(s.txn, tableRunners, indexID, func(v *raftlogv1.Runner) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Runner{Runner: v}})
	})
	each(s.txn, tableAgents, indexID, func(v *raftlogv1.Agent) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Agent{Agent: v}})
	})
	each(s.txn, tableTokens, indexID, func(v *raftlogv1.Token) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Token{Token: v}})
	})
	each(s.txn, tableWorkspaces, indexID, func(v *raftlogv1.Workspace) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Workspace{Workspace: v}})
	})
	writeMembers(s.txn, out)
	s.writeAuthority(out)
	s.writeInboxes(out)
	s.writeTransfers(out)
	for _, v := range s.applied {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Applied{Applied: v}})
	}
	return out.finish()
}

func each[T any](txn *memdb.Txn, table, index string, visit func(*T)) {
	it, err := txn.Get(table, index)
	if err != nil {
		panic("state: " + err.Error())
	}
	for raw := it.Next(); raw != nil; raw = it.Next() {
		visit(raw.(*T))
	}
}

// writeInboxes writes the timers and the inboxes, each before its entries.
func (s *Snapshot) writeInboxes(out *recordWriter) {
	each(s.txn, tableTimers, indexID, func(v *raftlogv1.Timer) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Timer{Timer: v}})
	})
	each(s.txn, tableInboxes, indexID, func(v *raftlogv1.Inbox) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Inbox{Inbox: v}})
	})
	each(s.txn, tableEntries, indexID, func(v *raftlogv1.InboxEntry) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_InboxEntry{InboxEntry: v}})
	})
}

// recordWriter keeps the first error, so that callers check once.
type recordWriter struct {
	w   *bufio.Writer
	n   int64
	err error
}

func (r *recordWriter) write(record *raftlogv1.SnapshotRecord) {
	if r.err != nil {
		return
	}
	n, err := protodelim.MarshalOptions{MarshalOptions: proto.MarshalOptions{Deterministic: true}}.MarshalTo(r.w, record)
	r.n, r.err = r.n+int64(n), err
}

func (r *recordWriter) finish() (int64, error) {
	if r.err == nil {
		r.err = r.w.Flush()
	}
	if r.err != nil {
		return r.n, fmt.Errorf("write snapshot: %w", r.err)
	}
	return r.n, nil
}

// Restore replaces the state by a snapshot. After an error the state is as it
// was. Completeness of the stream is the snapshot store's to check (it keeps a CRC).
func (s *State) Restore(r io.Reader) error {
	db, remembered := newDB(s.replicates), newMemory()
	txn := db.Txn(true)
	defer txn.Abort()
	in := bufio.NewReaderSize(r, 256<<10)
	for n := 0; ; n++ {
		record := &raftlogv1.SnapshotRecord{}
		err := protodelim.UnmarshalOptions{MaxSize: maxRecord}.UnmarshalFrom(in, record)
		if errors.Is(err, io.EOF) && n > 0 {
			break
		}
		if err == nil {
			err = load(txn, remembered, record, n == 0)
		}
		if err != nil {
			return fmt.Errorf("%w: record %d: %w", ErrSnapshot, n, err)
		}
	}
	txn.Commit()
	s.db.Store(db)
	s.memory = remembered
	s.notify(everything())
	return nil
}

func load(txn *memdb.Txn, remembered *memory, record *raftlogv1.SnapshotRecord, first bool) error {
	header, isHeader := record.GetRecord().(*raftlogv1.SnapshotRecord_Header)
	if first != isHeader {
		return errors.New("the header must be the first record, and only that")
	}
	switch v := record.GetRecord().(type) {
	case *raftlogv1.SnapshotRecord_Header:
		return loadHeader(txn, header.Header)
	case *raftlogv1.SnapshotRecord_Runner:
		return loadRunner(txn, v.Runner)
	case *raftlogv1.SnapshotRecord_Agent:
		return insertNew(txn, tableAgents, v.Agent, v.Agent.GetName())
	case *raftlogv1.SnapshotRecord_Token:
		return insertNew(txn, tableTokens, v.Token, v.Token.GetId())
	case *raftlogv1.SnapshotRecord_Workspace:
		if (Reader{txn: txn}).WorkspaceOf(v.Workspace.GetAgent(), v.Workspace.GetRunner()) != nil {
			return fmt.Errorf("two workspaces of agent %q on runner %q", v.Workspace.GetAgent(), v.Workspace.GetRunner())
		}
		return insertNew(txn, tableWorkspaces, v.Workspace, v.Workspace.GetId())
	case *raftlogv1.SnapshotRecord_Member:
		return loadMember(txn, v.Member)
	case *raftlogv1.SnapshotRecord_Authority:
		return insertNew(txn, tableAuthority, v.Authority, metaKey)
	case *raftlogv1.SnapshotRecord_Holder:
		return insertNew(txn, tableHolders, v.Holder, v.Holder.GetRole(), v.Holder.GetName())
	case *raftlogv1.SnapshotRecord_JoinToken:
		return insertNew(txn, tableJoinTokens, v.JoinToken, v.JoinToken.GetId())
	case *raftlogv1.SnapshotRecord_Timer:
		return insertNew(txn, tableTimers, v.Timer, v.Timer.GetId())
	case *raftlogv1.SnapshotRecord_Inbox:
		return insertNew(txn, tableInboxes, v.Inbox, v.Inbox.GetAgent())
	case *raftlogv1.SnapshotRecord_InboxEntry:
		return loadEntry(txn, v.InboxEntry)
	case *raftlogv1.SnapshotRecord_Transfer:
		return insertNew(txn, tableTransfers, v.Transfer, v.Transfer.GetId())
	case *raftlogv1.SnapshotRecord_Branch:
		return insertNew(txn, tableBranches, v.Branch, v.Branch.GetId())
	case *raftlogv1.SnapshotRecord_Applied:
		return remembered.load(v.Applied)
	default:
		return errors.New("a kind of record that this version does not know; install a newer one")
	}
}

func loadHeader(txn *memdb.Txn, header *raftlogv1.SnapshotHeader) error {
	if header.GetVersion() == 0 || header.GetVersion() > Version {
		return fmt.Errorf("snapshot version %d, this program reads up to %d; install a newer one", header.GetVersion(), Version)
	}
	if header.GetCommandVersion() > HighestCommand {
		return fmt.Errorf("the cluster takes commands of version %d, this program knows up to %d; install a newer one", header.GetCommandVersion(), HighestCommand)
	}
	if header.GetNextRunnerNumber() == 0 {
		return errors.New("header has no next runner number")
	}
	return txn.Insert(tableMeta, &metaRow{Key: metaKey, Header: header})
}

func loadRunner(txn *memdb.Txn, runner *raftlogv1.Runner) error {
	view := Reader{txn: txn}
	number := runner.GetNumber()
	if number == 0 || number >= view.Cluster().GetNextRunnerNumber() || view.RunnerByNumber(number) != nil {
		return fmt.Errorf("runner %q has number %d, which is not its own", runner.GetName(), number)
	}
	return insertNew(txn, tableRunners, runner, runner.GetName())
}

// insertNew refuses a second record with the same id.
func insertNew(txn *memdb.Txn, table string, record any, id ...string) error {
	args := make([]any, len(id))
	for i, part := range id {
		args[i] = part
	}
	old, err := txn.First(table, indexID, args...)
	if err != nil {
		return err
	}
	if old != nil {
		return fmt.Errorf("two records %q in %s", id, table)
	}
	return txn.Insert(table, record)
}
