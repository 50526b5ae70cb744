// Package state is the replicated state of the coordinators and the pure
// processor that applies commands of the Raft log to it. Nothing here reads a
// clock, the environment or randomness: time and ids come with each command,
// stamped by the leader, so that every node computes the same state.
package state

import (
	"sync/atomic"

	"github.com/hashicorp/go-memdb"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// State is safe for concurrent readers beside the one caller of Apply and
// Restore, which is Raft's own goroutine.
type State struct {
	// Swapped as a whole by Restore.
	db atomic.Pointer[memdb.MemDB]
	// Whether Unreplicated lists workspaces without a policy of their own.
	replicates bool
	// Not for readers.
	memory *memory
	// Closed and renewed after each change.
	changed atomic.Pointer[chan struct{}]
	waiters waiters
}

// New is the empty state.
func New() *State { return NewReplicating(true) }

// NewReplicating is New with or without a place for Unreplicated to find
// workspaces that have no policy of their own.
func NewReplicating(byDefault bool) *State {
	s := &State{memory: newMemory(), replicates: byDefault}
	s.db.Store(newDB(byDefault))
	s.notify(everything())
	return s
}

// Changed is closed after the next batch of commands, or the next restore. Who
// waits for a condition takes it first and then reads the state.
func (s *State) Changed() <-chan struct{} { return *s.changed.Load() }

// notify wakes those who wait; like Apply, it has one caller at a time.
func (s *State) notify(which touched) {
	renew(&s.changed)
	s.waiters.wake(which)
}

// Read gives a consistent view that later commands do not change. Records in
// it are shared: callers must not modify them.
func (s *State) Read() Reader { return Reader{txn: s.db.Load().Txn(false)} }

// Reader is a view of the state at one instant. Lookups give nil when there is
// no such record.
type Reader struct{ txn *memdb.Txn }

// Cluster gives id and counters of the cluster.
func (r Reader) Cluster() *raftlogv1.SnapshotHeader {
	row, _ := first[metaRow](r.txn, tableMeta, indexID, metaKey)
	if row == nil {
		return nil
	}
	return row.Header
}

// Runner finds a runner by name.
func (r Reader) Runner(name string) *raftlogv1.Runner {
	v, _ := first[raftlogv1.Runner](r.txn, tableRunners, indexID, name)
	return v
}

// RunnerByNumber finds the runner whose number ids carry.
func (r Reader) RunnerByNumber(number uint32) *raftlogv1.Runner {
	v, _ := first[raftlogv1.Runner](r.txn, tableRunners, indexNumber, number)
	return v
}

// Runners lists all runners by name.
func (r Reader) Runners() []*raftlogv1.Runner {
	return all[raftlogv1.Runner](r.txn, tableRunners, indexID)
}

// Agent finds an agent by name.
func (r Reader) Agent(name string) *raftlogv1.Agent {
	v, _ := first[raftlogv1.Agent](r.txn, tableAgents, indexID, name)
	return v
}

// Token finds a token by id.
func (r Reader) Token(id string) *raftlogv1.Token {
	v, _ := first[raftlogv1.Token](r.txn, tableTokens, indexID, id)
	return v
}

// Tokens lists all tokens, oldest first.
func (r Reader) Tokens() []*raftlogv1.Token { return all[raftlogv1.Token](r.txn, tableTokens, indexID) }

// Workspace finds a workspace by id.
func (r Reader) Workspace(id string) *raftlogv1.Workspace {
	v, _ := first[raftlogv1.Workspace](r.txn, tableWorkspaces, indexID, id)
	return v
}

// WorkspaceOf finds the workspace of an agent on a runner.
func (r Reader) WorkspaceOf(agent, runner string) *raftlogv1.Workspace {
	v, _ := first[raftlogv1.Workspace](r.txn, tableWorkspaces, indexPair, agent, runner)
	return v
}

// WorkspacesOfAgent lists an agent's workspaces by runner.
func (r Reader) WorkspacesOfAgent(agent string) []*raftlogv1.Workspace {
	it, err := r.txn.LowerBound(tableWorkspaces, indexPair, agent, "")
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Workspace
	for raw := it.Next(); raw != nil; raw = it.Next() {
		ws := raw.(*raftlogv1.Workspace)
		if ws.GetAgent() != agent {
			break
		}
		out = append(out, ws)
	}
	return out
}

// WorkspacesAfter lists, by id, up to most workspaces whose id comes after one,
// of a runner or, unnamed, of all.
func (r Reader) WorkspacesAfter(after, runner string, most int) (out []*raftlogv1.Workspace) {
	it, err := r.txn.LowerBound(tableWorkspaces, indexID, after)
	if err != nil {
		panic("state: " + err.Error())
	}
	for raw := it.Next(); raw != nil && len(out) < most; raw = it.Next() {
		if ws := raw.(*raftlogv1.Workspace); ws.GetId() != after && (runner == "" || ws.GetRunner() == runner) {
			out = append(out, ws)
		}
	}
	return out
}

// WorkspacesOfRunner lists a runner's workspaces, oldest first.
func (r Reader) WorkspacesOfRunner(runner string) []*raftlogv1.Workspace {
	return all[raftlogv1.Workspace](r.txn, tableWorkspaces, indexRunner, runner)
}

func first[T any](txn *memdb.Txn, table, index string, args ...any) (*T, error) {
	raw, err := txn.First(table, index, args...)
	if err != nil || raw == nil {
		return nil, err
	}
	return raw.(*T), nil
}

func all[T any](txn *memdb.Txn, table, index string, args ...any) []*T {
	it, err := txn.Get(table, index, args...)
	if err != nil {
		// Only a wrong table or index name can do this.
		panic("state: " + err.Error())
	}
	var out []*T
	for raw := it.Next(); raw != nil; raw = it.Next() {
		out = append(out, raw.(*T))
	}
	return out
}
