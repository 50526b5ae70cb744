package state

import "sync/atomic"

// Part is a part of the state whose changes can be waited for by themselves, so
// that work that is due after few changes is not looked for after each.
type Part int

// Parts.
const (
	// Tokens of agents, runners and admins.
	Tokens Part = iota
	// Fleet: runners, coordinators, certificates, the authority, and branches,
	// which come about by each new assignment of a workspace.
	Fleet

	parts
)

// partOf has the tables of each part; what is in no part is in nobody's way.
var partOf = map[string]Part{
	tableTokens:  Tokens,
	tableRunners: Fleet, tableMembers: Fleet, tableAuthority: Fleet, tableHolders: Fleet, tableJoinTokens: Fleet, tableBranches: Fleet,
}

// touched are the parts that a batch of commands changes.
type touched [parts]bool

func (t *touched) mark(table string) {
	if part, ok := partOf[table]; ok && t != nil {
		t[part] = true
	}
}

// waiters has a channel for each part, closed and renewed after each change.
type waiters [parts]atomic.Pointer[chan struct{}]

// ChangedIn is closed after the next change of a part, or the next restore.
func (s *State) ChangedIn(part Part) <-chan struct{} { return *s.waiters[part].Load() }

// wake wakes those who wait for a part; like Apply, it has one caller at a time.
func (w *waiters) wake(which touched) {
	for part := range which {
		if which[part] {
			renew(&w[part])
		}
	}
}

func renew(at *atomic.Pointer[chan struct{}]) {
	next := make(chan struct{})
	if old := at.Swap(&next); old != nil {
		close(*old)
	}
}

// everything marks all parts.
func everything() (t touched) {
	for part := range t {
		t[part] = true
	}
	return t
}
