package coordinator

import (
	"fmt"
	"sync"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// One caller's share of Limits.MaxInFlight, of which few callers can't leave
	// nothing to others, and what a caller gets in any case.
	shareOfCalls = 8
	leastShare   = 64
	// anonymous are callers with neither token nor certificate.
	anonymous = "anonymous"
)

// shareSet counts what each of those who share something has of it, such as
// calls under way.
type shareSet struct {
	mu   sync.Mutex
	held map[string]uint32
}

// take counts one more, of at most most.
func (s *shareSet) take(key string, most uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[key] >= most {
		return false
	}
	if s.held == nil {
		s.held = make(map[string]uint32)
	}
	s.held[key]++
	return true
}

func (s *shareSet) give(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[key]--; s.held[key] == 0 {
		delete(s.held, key)
	}
}

// enterShare counts a call of one caller until leave. It is asked where the
// caller is known, so on the leader: a follower's calls end with its refusal.
func (c *Coordinator) enterShare(key, who string) (leave func(), refusal *problem.Error) {
	all := c.cfg.Limits.MaxInFlight
	most := max(min(all, leastShare), all/shareOfCalls)
	if !c.shares.take(key, most) {
		return nil, problem.Limit("", fmt.Sprintf("%d calls at once of %s", most, who), "repeat the call when some have ended").Retry()
	}
	return func() { c.shares.give(key) }, nil
}

// share says who shares in the calls of a caller: an agent with its ancestors
// and all their descendants, as it can make children at will.
func (id identity) share(view state.Reader) (key, who string) {
	if id.role != skerryv1.RoleAgent {
		return id.role + " " + id.subject, "one " + id.role
	}
	root := id.subject
	for parent := view.Agent(root).GetParent(); parent != ""; parent = view.Agent(root).GetParent() {
		root = parent
	}
	return id.role + " " + root, "an agent and its family"
}
