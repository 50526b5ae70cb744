package peer

import (
	"context"
	"sync"
	"time"

	"skerry.internal/cas"
)

// reaches keeps the reach of the roots that were asked for lately. Pulls of
// one root share it.
type reaches struct {
	store *cas.Store
	limit Limits

	mu     sync.Mutex
	roots  map[cas.Digest]*reach
	timers map[*reach]*time.Timer
	sizes  int    // of all together, in objects
	clock  uint64 // counts uses and releases
	closed bool
}

func newReaches(store *cas.Store, limit Limits) *reaches {
	return &reaches{store: store, limit: limit, roots: make(map[cas.Digest]*reach), timers: make(map[*reach]*time.Timer)}
}

// acquire returns the reach of root; release lets go of it, and it is
// forgotten when nobody has asked for it for a while.
func (c *reaches) acquire(ctx context.Context, root cas.Digest) (r *reach, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, failure(Busy, "try again later", "the source is shutting down")
	}
	r = c.roots[root]
	if r == nil {
		c.makeRoom()
		if len(c.roots) >= c.limit.Roots {
			return nil, nil, failure(Busy, "try again later", "too many different trees are being transferred")
		}
		if r, err = newReach(ctx, c.store, root, c.limit.Objects); err != nil {
			return nil, nil, err
		}
		c.roots[root] = r
	}
	c.stopTimer(r)
	r.users++
	return r, func() { c.release(r) }, nil
}

// stopTimer also makes a timer that fires just now void.
func (c *reaches) stopTimer(r *reach) {
	c.clock++
	r.idleAt = c.clock
	if t := c.timers[r]; t != nil {
		t.Stop()
		delete(c.timers, r)
	}
}

func (c *reaches) release(r *reach) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.mu.Lock()
	c.sizes += r.keys.count - r.size
	r.size = r.keys.count
	r.mu.Unlock()
	if r.users--; r.users > 0 {
		return
	}
	if c.closed {
		c.forget(r)
		return
	}
	c.clock++
	r.idleAt = c.clock
	at := r.idleAt
	c.timers[r] = time.AfterFunc(c.limit.Idle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.users == 0 && r.idleAt == at {
			c.forget(r)
		}
	})
	c.makeRoom()
}

// makeRoom forgets idle roots, those idle for longest first, while there are
// too many or they hold too much.
func (c *reaches) makeRoom() {
	for len(c.roots) >= c.limit.Roots || c.sizes > c.limit.AllObjects {
		var oldest *reach
		for _, r := range c.roots {
			if r.users == 0 && (oldest == nil || r.idleAt < oldest.idleAt) {
				oldest = r
			}
		}
		if oldest == nil {
			return
		}
		c.forget(oldest)
	}
}

func (c *reaches) forget(r *reach) {
	if c.roots[r.root] != r {
		return
	}
	c.stopTimer(r)
	delete(c.roots, r.root)
	c.sizes -= r.size
	r.session.End()
}

// close forgets all that nobody uses, and what is used as soon as it is not.
func (c *reaches) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, r := range c.roots {
		if r.users == 0 {
			c.forget(r)
		}
	}
}
