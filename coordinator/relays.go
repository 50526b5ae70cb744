package coordinator

import (
	"context"
	"io"
	"sync"
	"time"
)

const relaysPoll = 250 * time.Millisecond

// relays are the calls that were passed on to other coordinators.
type relays struct {
	mu   sync.Mutex
	next uint64
	all  map[uint64]relayedCall
}

type relayedCall struct {
	endpoint string
	cut      func()
}

// add keeps a call until forget.
func (r *relays) add(endpoint string, cut func()) (forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[uint64]relayedCall)
	}
	r.next++
	id := r.next
	r.all[id] = relayedCall{endpoint, cut}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, id)
	}
}

// cutOthers ends the calls that went to any other coordinator.
func (r *relays) cutOthers(endpoint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.all {
		if call.endpoint != endpoint {
			call.cut()
		}
	}
}

// followLeader ends calls and links that were passed on to a coordinator which
// was deposed and may not know that: their callers find the present leader.
func (c *Coordinator) followLeader(ctx context.Context) {
	tick := time.NewTicker(relaysPoll)
	defer tick.Stop()
	known, since := "", time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			endpoint := c.leaderEndpoint()
			if endpoint == "" {
				continue
			}
			if endpoint != known {
				known, since = endpoint, now
			}
			if now.Sub(since) >= deposedGrace {
				c.relayed.cutOthers(endpoint)
			}
		}
	}
}

// withEnd calls end when the body is closed. A body that is both ways of an
// upgraded connection stays so.
func withEnd(body io.ReadCloser, end func()) io.ReadCloser {
	ending := endingBody{body, sync.OnceFunc(end)}
	if both, ok := body.(io.ReadWriteCloser); ok {
		return struct {
			endingBody
			io.Writer
		}{ending, both}
	}
	return ending
}

type endingBody struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer. The call ends first: a transport waits in Close
// for what is still being sent, and a caller whose stream the leader has ended may
// leave its own side open for ever.
func (b endingBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}
