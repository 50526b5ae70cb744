package coordinator

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"skerry.internal/coordinator/state"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// fsm hands the log to the state; all that it decides is how entries are encoded.
type fsm struct{ state *state.State }

// Apply implements raft.FSM.
func (f fsm) Apply(entry *raft.Log) any { return f.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM. Each response is a *raftlogv1.Answer,
// or nil for an entry that is no command.
func (f fsm) ApplyBatch(logs []*raft.Log) []any {
	entries := make([]state.Entry, 0, len(logs))
	for _, entry := range logs {
		if entry.Type == raft.LogCommand {
			entries = append(entries, state.Entry{Index: entry.Index, Command: decode(entry)})
		}
	}
	answers := f.state.Apply(entries)
	responses := make([]any, len(logs))
	for i, entry := range logs {
		if entry.Type == raft.LogCommand {
			responses[i], answers = answers[0], answers[1:]
		}
	}
	return responses
}

func decode(entry *raft.Log) *raftlogv1.Command {
	cmd := &raftlogv1.Command{}
	if err := proto.Unmarshal(entry.Data, cmd); err != nil {
		// Skipping it would make this node differ from the others for ever.
		panic(fmt.Sprintf("raft log entry %d cannot be decoded: %v", entry.Index, err))
	}
	return cmd
}

// Snapshot implements raft.FSM.
func (f fsm) Snapshot() (raft.FSMSnapshot, error) { return fsmSnapshot{f.state.Snapshot()}, nil }

// Restore implements raft.FSM.
func (f fsm) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }()
	return f.state.Restore(r)
}

type fsmSnapshot struct{ snapshot *state.Snapshot }

// Persist implements raft.FSMSnapshot.
func (s fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.snapshot.WriteTo(sink); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s fsmSnapshot) Release() {}
