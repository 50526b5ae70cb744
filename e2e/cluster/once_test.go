package cluster

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

type inboxEntry struct {
	Seq            uint64 `json:",string"`
	Kind, Text, ID string
}

// inbox reads all that waits, without acknowledging it, at one coordinator.
func (b *testbed) inbox(endpoint, token string) (entries []inboxEntry) {
	b.t.Helper()
	var out struct {
		Entries []inboxEntry
		More    bool
	}
	b.until("inbox", func() bool {
		o := b.agents.call(b.t.Context(), endpoint, token, "InboxService/ReadInbox", map[string]any{"limit": 200}, &out)
		return o.kind == done
	})
	if out.More {
		b.t.Error("more than 200 entries")
	}
	return out.Entries
}

// Timers that are due, and executions that end, while leaders and the runner are
// killed are each told once (F50), in one order, whoever is asked.
func TestF50TimersAndEndsAreToldOnce(t *testing.T) {
	t.Parallel()
	random := seeded(t)
	b := up(t, "--runners", "2")
	agent := b.newAgent("alice")
	want := map[string]string{}
	for _, r := range []string{"r1", "r2"} {
		for i := range 10 {
			e := b.start(agent, fmt.Sprintf("sleep 0.%d; echo %d >> ran", 3+random.IntN(7), i), map[string]any{"runner": r, "idempotencyKey": fmt.Sprint(r, i)})
			want[e.ID] = "execution_end"
		}
	}
	began := time.Now()
	for i := range 30 {
		var made struct{ Timer struct{ ID string } }
		due := time.Until(began.Add(upTo(random, 800, 9000)))
		b.as(agent, "TimerService/CreateTimer", map[string]any{"afterMs": strconv.FormatInt(max(due.Milliseconds(), 1), 10), "message": fmt.Sprint("timer ", i)}, &made)
		want[made.Timer.ID] = "timer"
	}
	for time.Since(began) < 8*time.Second {
		victim := b.awaitLeader()
		if random.IntN(3) == 0 {
			victim = []string{"r1", "r2"}[random.IntN(2)]
		}
		b.run("kill", victim)
		time.Sleep(upTo(random, 100, 1200))
		b.run("start", victim)
		time.Sleep(upTo(random, 100, 800))
	}
	b.awaitLeader()
	b.until("all entries", func() bool { return len(b.inbox(b.Endpoint, agent)) >= len(want) })
	time.Sleep(1500 * time.Millisecond) // what is told twice has the time for it
	entries := b.inbox(b.Endpoint, agent)
	told := map[string]int{}
	for i, e := range entries {
		told[e.ID]++
		if want[e.ID] != e.Kind || told[e.ID] > 1 {
			t.Errorf("entry %+v, the %dth of it, want a %q", e, told[e.ID], want[e.ID])
		}
		if i > 0 && e.Seq <= entries[i-1].Seq {
			t.Errorf("entry %d follows %d", e.Seq, entries[i-1].Seq)
		}
	}
	for id, kind := range want {
		if told[id] == 0 {
			t.Errorf("%s %s was not told", kind, id)
		}
	}
	for _, name := range b.withRole("coordinator") {
		if got := b.inbox(b.endpointOf(name), agent); fmt.Sprint(got) != fmt.Sprint(entries) {
			t.Errorf("%s tells another inbox: %d entries, not %d", name, len(got), len(entries))
		}
	}
	for _, r := range []string{"r1", "r2"} {
		if n := b.sh(agent, r, "sort ran | uniq -d; sort -u ran | wc -l").Stdout.Text; strings.TrimSpace(n) != "10" {
			t.Errorf("on %s ran %q, want 10", r, n)
		}
	}
}

// What one coordinator acknowledged, every other one shows at once (F46).
func TestF46ReadAfterWriteAnywhere(t *testing.T) {
	t.Parallel()
	random := seeded(t)
	b := up(t, "--runners", "1")
	agent := b.newAgent("alice")
	coordinators := b.withRole("coordinator")
	kills := map[int]bool{8: true, 20: true}
	for i := range 30 {
		writer := coordinators[random.IntN(len(coordinators))]
		message := fmt.Sprint("timer ", i)
		var o outcome
		b.until("a write", func() bool {
			o = b.agents.call(t.Context(), b.endpointOf(writer), agent, "TimerService/CreateTimer", map[string]any{"afterMs": "36000000", "message": message}, nil)
			return o.kind == done
		})
		dead := ""
		if kills[i] { // also while leadership changes
			dead = b.awaitLeader()
			b.run("kill", dead)
		}
		var all sync.WaitGroup
		for _, name := range coordinators {
			if name == dead {
				continue
			}
			all.Go(func() {
				var out struct{ Timers []struct{ Message string } }
				for o := (outcome{kind: refused, retryable: true}); o.kind != done; {
					if o = b.agents.call(t.Context(), b.endpointOf(name), agent, "TimerService/ListTimers", map[string]any{}, &out); o.kind == refused && !o.retryable {
						t.Errorf("%s: %s", name, o)
						return
					}
				}
				for _, timer := range out.Timers {
					if timer.Message == message {
						return
					}
				}
				t.Errorf("%s does not show %q that %s acknowledged", name, message, writer)
			})
		}
		all.Wait()
		if dead != "" {
			b.run("start", dead)
		}
	}
	b.lostAnswers(agent)
}

// lostAnswers: a command whose answer was lost with the coordinator that gave it
// is repeated with its key through others, and runs once (F06, I3).
func (b *testbed) lostAnswers(agent string) {
	t := b.t
	t.Helper()
	random := seeded(t)
	const rounds = 3
	for i := range rounds {
		leader := b.awaitLeader()
		through := map[string]string{"leader": leader, "follower": b.followers()[0]}
		ids := map[string]string{}
		var mu sync.Mutex
		var calls sync.WaitGroup
		for role, name := range through {
			request := map[string]any{"command": fmt.Sprintf("echo %s%d >> ran; sleep 0.2", role, i),
				"options": map[string]any{"idempotencyKey": fmt.Sprint(role, i), "waitMs": 5000}}
			calls.Go(func() {
				endpoint := b.endpointOf(name)
				for try := 0; try < 60; try++ {
					var out struct{ Execution execution }
					o := b.agents.call(t.Context(), endpoint, agent, "ExecutionService/RunShell", request, &out)
					if id := out.Execution.ID; o.kind == done {
						mu.Lock()
						if ids[role] != "" && ids[role] != id {
							t.Errorf("%s %d: execution %s, before %s", role, i, id, ids[role])
						}
						ids[role] = id
						mu.Unlock()
						if try > 0 {
							return
						}
					} else if o.kind == refused && !o.retryable {
						t.Errorf("%s %d: %s", role, i, o)
						return
					}
					endpoint = b.endpointOf(b.withRole("coordinator")[try%3])
					time.Sleep(100 * time.Millisecond)
				}
				t.Errorf("%s %d: no answer", role, i)
			})
		}
		time.Sleep(upTo(random, 0, 350))
		if err := b.killQuietly(leader); err != nil {
			t.Error(err)
		}
		calls.Wait()
		b.run("start", leader)
		for role, id := range ids {
			if e := b.ended(agent, id); e.State != "completed" {
				t.Errorf("%s %d: %+v", role, i, e)
			}
		}
	}
	if got := b.sh(agent, "", "sort ran | uniq -c | awk '$1 != 1'; wc -l < ran").Stdout.Text; strings.TrimSpace(got) != strconv.Itoa(2*rounds) {
		t.Errorf("ran: %q, want %d commands once each", got, 2*rounds)
	}
}
