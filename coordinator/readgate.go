package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// verifyTimeout bounds the wait for the voters' word.
const verifyTimeout = 2 * time.Second

// errDeposed: a majority no longer follows this coordinator, or does not say so.
var errDeposed = errors.New("leadership is not confirmed by a majority")

// readGate lets a call pass once the leadership has been confirmed after the
// call came. One confirmation runs at a time; calls that come during one share
// the next.
type readGate struct {
	verify func() error

	mu      sync.Mutex
	running bool
	next    *gateRound
}

type gateRound struct {
	done chan struct{}
	err  error
}

func newReadGate(verify func() error) *readGate { return &readGate{verify: verify} }

func (g *readGate) pass(ctx context.Context) error {
	g.mu.Lock()
	round := g.next
	if round == nil {
		round = &gateRound{done: make(chan struct{})}
		g.next = round
	}
	if !g.running {
		g.running = true
		go g.run()
	}
	g.mu.Unlock()
	select {
	case <-round.done:
		return round.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run serves rounds until none waits. It ends by itself within verifyTimeout.
func (g *readGate) run() {
	for {
		g.mu.Lock()
		round := g.next
		g.next = nil
		g.running = round != nil
		g.mu.Unlock()
		if round == nil {
			return
		}
		round.err = g.verify()
		close(round.done)
	}
}

// confirmer asks the voters themselves whether they are still of a term. The
// Raft library's VerifyLeader also counts answers of members without a vote, and
// answers that were sent before it was asked: neither proves that nobody else
// was elected meanwhile. A majority that is of this term after the question came
// does, whatever the clocks and delays.
type confirmer struct {
	node *raftNode
	term uint64

	mu sync.Mutex
	// One question at a time to each voter; one that does not answer must not
	// gather questions.
	asking map[raft.ServerID]chan struct{}
}

func newConfirmer(node *raftNode, term uint64) *confirmer {
	return &confirmer{node: node, term: term, asking: make(map[raft.ServerID]chan struct{})}
}

func (c *confirmer) turn(id raft.ServerID) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.asking[id]
	if turn == nil {
		turn = make(chan struct{}, 1)
		c.asking[id] = turn
	}
	return turn
}

// verify reports whether this coordinator leads in its term at some instant
// after the call began.
func (c *confirmer) verify() error {
	if c.node.raft.State() != raft.Leader || c.node.raft.CurrentTerm() != c.term || c.node.stall.stalled.Load() {
		return errDeposed
	}
	over := make(chan struct{})
	defer close(over)
	answers, asked, need := c.askAll(over)
	timeout := time.NewTimer(verifyTimeout)
	defer timeout.Stop()
	for need > 0 {
		if asked < need {
			return errDeposed
		}
		select {
		case yes := <-answers:
			asked--
			if yes {
				need--
			}
		case <-timeout.C:
			return errDeposed
		}
	}
	if c.node.raft.CurrentTerm() != c.term {
		return errDeposed
	}
	return nil
}

// askAll asks every other voter; need is how many of them make a majority with
// this coordinator.
func (c *confirmer) askAll(over <-chan struct{}) (answers <-chan bool, asked, need int) {
	out := make(chan bool)
	voters, own := 0, 0
	for _, s := range c.node.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == c.node.id {
			own = 1
			continue
		}
		asked++
		go func() {
			yes := c.ask(s, over)
			select {
			case out <- yes:
			case <-over:
			}
		}()
	}
	return out, asked, voters/2 + 1 - own
}

// ask sends one heartbeat, as the library does.
func (c *confirmer) ask(s raft.Server, over <-chan struct{}) bool {
	turn := c.turn(s.ID)
	select {
	case turn <- struct{}{}:
	case <-over:
		return false
	}
	defer func() { <-turn }()
	req := &raft.AppendEntriesRequest{Term: c.term, RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax,
		ID: []byte(c.node.id), Addr: c.node.transport.EncodePeer(c.node.id, c.node.address)}}
	var resp raft.AppendEntriesResponse
	err := c.node.transport.AppendEntries(s.ID, s.Address, req, &resp)
	return err == nil && resp.Success && resp.Term == c.term
}
