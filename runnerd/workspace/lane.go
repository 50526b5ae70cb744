package workspace

import (
	"context"
	"errors"
	"sync"
)

// ErrQueueFull is returned when a workspace has as many waiting writers as it may.
var ErrQueueFull = errors.New("workspace: queue is full")

// lane lets one writer at a time into a workspace, in the order in which
// tickets were taken (I6).
type lane struct {
	mu      sync.Mutex
	tickets []*Ticket // the first one holds the lane
	most    int       // 0: unlimited
}

// Ticket is a place in a workspace's queue. Its owner must Release it exactly
// when done, whether it was admitted or not.
type Ticket struct {
	lane     *lane
	admitted chan struct{}
}

// take queues without waiting. force passes the bound.
func (l *lane) take(force bool) (*Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !force && l.most > 0 && len(l.tickets) >= l.most {
		return nil, ErrQueueFull
	}
	t := &Ticket{lane: l, admitted: make(chan struct{})}
	l.tickets = append(l.tickets, t)
	if len(l.tickets) == 1 {
		close(t.admitted)
	}
	return t, nil
}

// Wait returns when the ticket holds the lane, or ctx ends.
func (t *Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.admitted:
		return nil
	default:
	}
	select {
	case <-t.admitted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Admitted is closed when the ticket holds the lane.
func (t *Ticket) Admitted() <-chan struct{} { return t.admitted }

// Position is how many tickets are before this one; -1 after Release.
func (t *Ticket) Position() int {
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	for i, have := range t.lane.tickets {
		if have == t {
			return i
		}
	}
	return -1
}

// Release gives the place up and admits the next ticket. Releasing again does nothing.
func (t *Ticket) Release() {
	l := t.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, have := range l.tickets {
		if have != t {
			continue
		}
		l.tickets = append(l.tickets[:i:i], l.tickets[i+1:]...)
		if i == 0 && len(l.tickets) > 0 {
			close(l.tickets[0].admitted)
		}
		return
	}
}
