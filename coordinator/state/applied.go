package state

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// Remembered is the number of log entries for which the answer to a command is
// kept, so that a repeat gets it again.
const Remembered = 4096

// memory holds the answers to recent commands. Only Raft's goroutine uses it,
// and a copy for a snapshot is a few thousand pointers, so it is no table: as
// one it cost half of each change.
type memory struct {
	byID map[string]*raftlogv1.Applied
	// In log order.
	order []*raftlogv1.Applied
}

func newMemory() *memory { return &memory{byID: make(map[string]*raftlogv1.Applied)} }

// answer of an earlier command with this id, or nil.
func (m *memory) answer(id string) *raftlogv1.Answer {
	done := m.byID[id]
	if done == nil {
		return nil
	}
	answer := &raftlogv1.Answer{}
	if err := proto.Unmarshal(done.GetAnswer(), answer); err != nil {
		panic(fmt.Sprintf("state: stored answer of %s: %v", id, err))
	}
	return answer
}

// remember keeps answer and forgets what is too old.
func (m *memory) remember(entry Entry, answer *raftlogv1.Answer) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(answer)
	if err != nil {
		panic("state: encode answer: " + err.Error())
	}
	m.add(&raftlogv1.Applied{Id: entry.Command.GetId(), Time: entry.Command.GetTime(), Answer: raw, Index: entry.Index})
	old := 0
	for m.order[old].GetIndex()+Remembered <= entry.Index {
		delete(m.byID, m.order[old].GetId())
		m.order[old] = nil
		old++
	}
	m.order = m.order[old:]
}

func (m *memory) add(done *raftlogv1.Applied) {
	m.byID[done.GetId()] = done
	m.order = append(m.order, done)
}

// load adds a record of a snapshot, where they stand in log order.
func (m *memory) load(done *raftlogv1.Applied) error {
	if done.GetId() == "" || m.byID[done.GetId()] != nil {
		return fmt.Errorf("command id %q is empty or stands twice", done.GetId())
	}
	if n := len(m.order); n > 0 && m.order[n-1].GetIndex() >= done.GetIndex() {
		return errors.New("applied commands are not in log order")
	}
	if err := proto.Unmarshal(done.GetAnswer(), &raftlogv1.Answer{}); err != nil {
		return fmt.Errorf("answer of command %q: %w", done.GetId(), err)
	}
	m.add(done)
	return nil
}

func (m *memory) snapshot() []*raftlogv1.Applied { return slices.Clone(m.order) }
