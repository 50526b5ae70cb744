package cluster

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

// recorder keeps the history of all clients.
type recorder struct {
	start time.Time
	// Clients' numbers; one whose call's end is not known goes on as another.
	next atomic.Int64

	mu  sync.Mutex
	ops []porcupine.Operation
	// Calls that succeeded.
	done int
}

// forever is the end of a call of which nothing was heard.
const forever = math.MaxInt64

// record makes a call and notes what it told.
func (r *recorder) record(client *int, s step, call func() seen) seen {
	from := time.Since(r.start).Nanoseconds()
	out := call()
	to := time.Since(r.start).Nanoseconds()
	op := porcupine.Operation{ClientId: *client, Input: s, Output: out, Call: from, Return: to}
	if out.kind == unknown {
		op.Return = forever
		*client = int(r.next.Add(1))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if out.kind == unknown && s.action == observe {
		return out // it tells nothing
	}
	r.ops = append(r.ops, op)
	if out.kind == done {
		r.done++
	}
	return out
}

// workload is what all clients share.
type workload struct {
	*recorder
	b       *testbed
	callers *callers
	// endpoints of coordinators whose process runs.
	endpoints  atomic.Pointer[[]string]
	adminToken string
	// pair is an agent with workspaces on two runners.
	pair           string
	source, target string
}

// client is one caller, with a source of chance of its own.
type client struct {
	*workload
	ctx    context.Context
	random *rand.Rand
	id     int
	number int
}

func (c *client) call(token, method string, in, out any) outcome {
	list := *c.endpoints.Load()
	return c.callers.call(c.ctx, list[c.random.IntN(len(list))], token, method, in, out)
}

// pause keeps the number of operations where they can be checked.
func (c *client) pause() {
	select {
	case <-c.ctx.Done():
	case <-time.After(time.Duration(5+c.random.IntN(40)) * time.Millisecond):
	}
}

// run makes things of all kinds until the context ends.
func (c *client) run(agent string, secret string) {
	lives := []func(string, string){c.tokenLife, c.timerLife, c.workspaceLife, c.transferLife}
	for c.ctx.Err() == nil {
		c.number++
		lives[c.random.IntN(len(lives))](agent, secret)
	}
}

func (c *client) thing(kind string) string {
	return fmt.Sprintf("%s/c%d-%d", kind, c.id, c.number)
}

// plain turns an outcome into what was seen; value is that of success.
func plain(o outcome, value string) seen {
	if o.kind != done {
		value = ""
	}
	return seen{kind: o.kind, value: value}
}

// someTimes calls f a few times, as long as there is time.
func (c *client) someTimes(f func()) {
	for range 2 + c.random.IntN(4) {
		if c.ctx.Err() != nil {
			return
		}
		f()
		c.pause()
	}
}

// A token is made, used, revoked, and used again.
func (c *client) tokenLife(string, string) {
	thing := c.thing("token")
	var made struct {
		Secret string
		Token  struct{ ID string }
	}
	out := c.record(&c.id, step{thing, create}, func() seen {
		return plain(c.call(c.adminToken, "TokenService/CreateToken", map[string]any{"subject": fmt.Sprintf("t%d", c.random.IntN(4))}, &made), "valid")
	})
	if out.kind != done {
		return
	}
	use := func() {
		c.record(&c.id, step{thing, observe}, func() seen {
			o := c.call(made.Secret, "TimerService/ListTimers", map[string]any{}, nil)
			if o.reason == "UNAUTHENTICATED" {
				return seen{done, absent}
			}
			return plain(o, "valid")
		})
	}
	c.someTimes(use)
	c.record(&c.id, step{thing, destroy}, func() seen {
		return plain(c.call(c.adminToken, "TokenService/RevokeToken", map[string]any{"tokenId": made.Token.ID}, nil), "")
	})
	c.someTimes(use)
}

// A timer far ahead is made, listed and cancelled.
func (c *client) timerLife(_, secret string) {
	thing := c.thing("timer")
	var made struct{ Timer struct{ ID string } }
	out := c.record(&c.id, step{thing, create}, func() seen {
		return plain(c.call(secret, "TimerService/CreateTimer", map[string]any{"afterMs": "36000000", "message": thing}, &made), "pending")
	})
	list := func() {
		c.record(&c.id, step{thing, observe}, func() seen {
			var all struct{ Timers []struct{ Message string } }
			o := c.call(secret, "TimerService/ListTimers", map[string]any{}, &all)
			value := absent
			for _, t := range all.Timers {
				if t.Message == thing {
					value = "pending"
				}
			}
			return plain(o, value)
		})
	}
	c.someTimes(list)
	if out.kind != done {
		return
	}
	c.record(&c.id, step{thing, destroy}, func() seen {
		o := c.call(secret, "TimerService/CancelTimer", map[string]any{"timerId": made.Timer.ID}, nil)
		if o.reason == "NOT_FOUND" {
			return seen{refused, absent}
		}
		return plain(o, "")
	})
	c.someTimes(list)
}

// A new agent's first calls, several at once, put its workspace on one runner.
func (c *client) workspaceLife(string, string) {
	thing := c.thing("workspace")
	var made struct{ Secret string }
	if o := c.call(c.adminToken, "TokenService/CreateToken", map[string]any{"subject": fmt.Sprintf("w%d-%d", c.id, c.number)}, &made); o.kind != done {
		return
	}
	var both sync.WaitGroup
	for range 2 {
		other := &client{workload: c.workload, ctx: c.ctx, random: rand.New(rand.NewPCG(c.random.Uint64(), 0)), id: int(c.next.Add(1))}
		both.Go(func() {
			other.record(&other.id, step{thing, create}, func() seen {
				o := other.call(made.Secret, "FileService/ListFiles", map[string]any{}, nil)
				if o.kind != done {
					o.kind = unknown // it may have been placed, and the runner not reached
				}
				return plain(o, "")
			})
			other.someTimes(func() {
				other.record(&other.id, step{thing, observe}, func() seen {
					var all struct{ Workspaces []struct{ Runner string } }
					o := other.call(made.Secret, "WorkspaceService/ListWorkspaces", map[string]any{}, &all)
					switch len(all.Workspaces) {
					case 0:
						return plain(o, absent)
					case 1:
						return plain(o, all.Workspaces[0].Runner)
					}
					return plain(o, fmt.Sprint(all.Workspaces))
				})
			})
		})
	}
	both.Wait()
}

// A transfer is started, with the same key until it is known to be, and watched
// to its end.
func (c *client) transferLife(string, string) {
	thing := c.thing("transfer")
	var made struct{ Transfer struct{ ID, State string } }
	for try := 0; made.Transfer.ID == "" && try < 10 && c.ctx.Err() == nil; try++ {
		c.record(&c.id, step{thing, create}, func() seen {
			return plain(c.call(c.pair, "TransferService/StartTransfer", map[string]any{"source": c.source, "target": c.target, "idempotencyKey": thing[len("transfer/"):],
				"mappings": []map[string]any{{"source": "d", "target": thing}}}, &made), "")
		})
		c.pause()
	}
	if made.Transfer.ID == "" {
		return
	}
	c.someTimes(func() {
		c.record(&c.id, step{thing, observe}, func() seen {
			var got struct{ Transfer struct{ State string } }
			o := c.call(c.pair, "TransferService/GetTransfer", map[string]any{"transferId": made.Transfer.ID, "waitMs": 500}, &got)
			return plain(o, got.Transfer.State)
		})
	})
}
