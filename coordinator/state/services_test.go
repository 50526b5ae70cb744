package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// drawService fills in an operation on tokens with a scope, agents, runners'
// schedules, timers or inboxes.
func drawService(t *rapid.T, cmd *raftlogv1.Command) {
	agent := rapid.SampledFrom([]string{"ann", "bob", "kid", ""}).Draw(t, "agent")
	runner := rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "runner")
	id := func(prefix string) string { return fmt.Sprintf("%s_%d", prefix, rapid.IntRange(0, 4).Draw(t, prefix)) }
	switch rapid.IntRange(0, 9).Draw(t, "service") {
	case 0:
		words := func(label string, of ...string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, 2, rapid.ID).Draw(t, label)
		}
		token := &raftlogv1.Token{Id: id("tk"), Subject: agent, Permissions: words("permissions", "shell", "npu"), Runners: words("runners", "r1", "r*"),
			NetworkPolicies: words("policies", "pypi")}
		if rapid.Bool().Draw(t, "minted") {
			token.Parent = id("tk")
		}
		if seconds := rapid.Int64Range(0, 40).Draw(t, "expires"); seconds > 0 {
			token.Expires = at(seconds)
		}
		cmd.Op = mint(token).Op
		cmd.GetMintToken().AgentParent = rapid.SampledFrom([]string{"", "", "ann"}).Draw(t, "parent")
	case 1:
		cmd.Op = &raftlogv1.Command_PruneTokens{PruneTokens: &raftlogv1.PruneTokens{Before: at(rapid.Int64Range(0, 30).Draw(t, "before")), Limit: 2}}
	case 2:
		cmd.Op = &raftlogv1.Command_ArchiveAgent{ArchiveAgent: &raftlogv1.ArchiveAgent{Name: agent}}
	case 3:
		cmd.Op = &raftlogv1.Command_ScheduleRunner{ScheduleRunner: &raftlogv1.ScheduleRunner{Name: runner, DrainId: rapid.SampledFrom([]string{"", "d1", "d2"}).Draw(t, "only"),
			Schedule: rapid.SampledFrom([]string{"", "cordoned", "draining", "drained", "odd"}).Draw(t, "schedule"), Drain: &raftlogv1.Drain{Id: "d1"}}}
	case 4:
		cmd.Op = &raftlogv1.Command_RemoveRunner{RemoveRunner: &raftlogv1.RemoveRunner{Name: runner, Force: rapid.Bool().Draw(t, "force")}}
	case 5:
		cmd.Op = timer(id("tm"), agent, rapid.Int64Range(-1, 9).Draw(t, "due"), rapid.SampledFrom([]string{"", "ex_0", "ex_1"}).Draw(t, "execution")).Op
	case 6:
		cmd.Op = &raftlogv1.Command_CancelTimer{CancelTimer: &raftlogv1.CancelTimer{Agent: agent, Id: id("tm")}}
	case 7:
		cmd.Op = fire(id("tm"), id("tm")).Op
	case 8:
		end := &raftlogv1.End{Seq: rapid.Uint64Range(0, 6).Draw(t, "seq"), ExecutionId: id("ex"), Agent: agent, Seen: rapid.Bool().Draw(t, "seen")}
		cmd.Op = ends(runner, rapid.SampledFrom([]string{"l1", "l2"}).Draw(t, "log"), end.GetSeq(), end).Op
	case 9:
		cmd.Op = ack(agent, rapid.Uint64Range(0, 5).Draw(t, "through")).Op
	}
}

// checkServices checks what holds after any commands.
func checkServices(t *rapid.T, r Reader) {
	for _, token := range r.Tokens() {
		if minter := r.Token(token.GetParent()); minter != nil {
			checkMinted(t, minter, token)
		}
	}
	for _, agent := range r.Agents() {
		box, list := r.Inbox(agent.GetName()), r.Entries(agent.GetName(), 0, -1)
		if len(list) != int(box.GetEntries()) {
			t.Fatalf("%s has %d entries, counted %d", agent.GetName(), len(list), box.GetEntries())
		}
		for _, e := range list {
			if e.GetSeq() <= box.GetAcknowledged() || e.GetSeq() > box.GetLast() {
				t.Fatalf("entry %v of inbox %v", e, box)
			}
		}
		if agent.GetArchived() != nil {
			checkArchived(t, r, agent, list)
		}
	}
	for _, tm := range r.NextTimers(1000) {
		if r.Agent(tm.GetAgent()) == nil {
			t.Fatalf("timer %v has no agent", tm)
		}
	}
}

func checkMinted(t *rapid.T, minter, token *raftlogv1.Token) {
	outlives := minter.GetExpires() != nil && (token.GetExpires() == nil || token.GetExpires().AsTime().After(minter.GetExpires().AsTime()))
	if outlives || (minter.GetRevoked() != nil && token.GetRevoked() == nil) {
		t.Fatalf("%v outlives %v", token, minter)
	}
	for _, permission := range []string{"shell", "npu"} {
		has := func(x *raftlogv1.Token) bool {
			return len(x.GetPermissions()) == 0 || slices.Contains(x.GetPermissions(), permission)
		}
		if has(token) && !has(minter) {
			t.Fatalf("%v has more permissions than %v", token, minter)
		}
	}
	for _, runner := range []string{"r1", "r2", "x"} {
		if AllowsRunner(token.GetRunners(), runner) && !AllowsRunner(minter.GetRunners(), runner) {
			t.Fatalf("%v may use more runners than %v", token, minter)
		}
	}
}

func checkArchived(t *rapid.T, r Reader, agent *raftlogv1.Agent, list []*raftlogv1.InboxEntry) {
	if len(list)+len(r.TimersOf(agent.GetName())) > 0 {
		t.Fatalf("archived agent %s is woken", agent.GetName())
	}
	for _, token := range r.TokensOf(agent.GetName()) {
		if token.GetRole() != skerryv1.RoleRunner && token.GetRevoked() == nil {
			t.Fatalf("archived agent's token %v works", token)
		}
	}
}

// model is what timers, ends and inboxes should come to, in the simplest form.
type model struct {
	// Agent of each pending timer, and the execution that cancels it.
	timers     map[string]string
	executions map[string]string
	// Ids of what each agent was told, all and unread.
	told   map[string][]string
	unread map[string][]string
	// Highest number of ends that was taken.
	taken uint64
}

func (m *model) deliver(agent, id string) {
	m.told[agent] = append(m.told[agent], id)
	m.unread[agent] = append(m.unread[agent], id)
}

func (m *model) drop(id string) {
	delete(m.timers, id)
	delete(m.executions, id)
}

// step draws a command, applies it to the model and gives it.
func (m *model) step(t *rapid.T, n int) *raftlogv1.Command {
	agent := rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "agent")
	switch rapid.IntRange(0, 4).Draw(t, "op") {
	case 0:
		id, execution := fmt.Sprint("tm_", n), rapid.SampledFrom([]string{"", "ex_0", "ex_1"}).Draw(t, "execution")
		m.timers[id], m.executions[id] = agent, execution
		return timer(id, agent, int64(n), execution)
	case 1:
		id := fmt.Sprint("tm_", rapid.IntRange(0, n).Draw(t, "timer"))
		if m.timers[id] == agent {
			m.drop(id)
		}
		return &raftlogv1.Command{Op: &raftlogv1.Command_CancelTimer{CancelTimer: &raftlogv1.CancelTimer{Agent: agent, Id: id}}}
	case 2:
		var ids []string
		for range rapid.IntRange(1, 3).Draw(t, "fired") {
			id := fmt.Sprint("tm_", rapid.IntRange(0, n).Draw(t, "timer"))
			ids = append(ids, id)
			if owner, pending := m.timers[id]; pending {
				m.deliver(owner, id)
				m.drop(id)
			}
		}
		return fire(ids...)
	case 3:
		// Bob never worked on the runner.
		end := &raftlogv1.End{Seq: rapid.Uint64Range(1, uint64(n)+1).Draw(t, "seq"), Agent: agent, Seen: rapid.Bool().Draw(t, "seen"),
			ExecutionId: fmt.Sprint("ex_", rapid.IntRange(0, 1).Draw(t, "execution"))}
		if end.GetSeq() > m.taken {
			m.taken = end.GetSeq()
			m.end(end)
		}
		return ends("r1", "log", end.GetSeq(), end)
	default:
		read := rapid.IntRange(0, len(m.told[agent])).Draw(t, "read")
		unread := len(m.told[agent]) - read
		m.unread[agent] = m.unread[agent][max(0, len(m.unread[agent])-unread):]
		return ack(agent, uint64(read))
	}
}

func (m *model) end(end *raftlogv1.End) {
	if end.GetAgent() != "ann" {
		return
	}
	for id, execution := range maps.Clone(m.executions) {
		if execution == end.GetExecutionId() && m.timers[id] == "ann" {
			m.drop(id)
		}
	}
	if !end.GetSeen() {
		m.deliver("ann", end.GetExecutionId())
	}
}

// Whatever the order of commands, each timer and each unseen end is told once,
// what was read is gone and nothing else.
func TestPropertyInboxesFollowTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		var index uint64
		apply := func(cmd *raftlogv1.Command) {
			index++
			cmd.Id, cmd.Time = fmt.Sprint("cm_", index), at(int64(index))
			s.Apply([]Entry{{Index: index, Command: cmd}})
		}
		apply(register("r1"))
		apply(create("tk_1", "agent", "ann", ""))
		apply(create("tk_2", "agent", "bob", ""))
		apply(assign("ws_1", "ann", "r1"))
		m := &model{timers: map[string]string{}, executions: map[string]string{}, told: map[string][]string{}, unread: map[string][]string{}}
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			apply(m.step(t, n))
			for _, agent := range []string{"ann", "bob"} {
				var got, pending []string
				for _, e := range s.Read().Entries(agent, 0, -1) {
					got = append(got, e.GetId())
				}
				if fmt.Sprint(got) != fmt.Sprint(m.unread[agent]) || s.Read().Inbox(agent).GetLast() != uint64(len(m.told[agent])) {
					t.Fatalf("%s: unread %v of %d, want %v of %d", agent, got, s.Read().Inbox(agent).GetLast(), m.unread[agent], len(m.told[agent]))
				}
				for _, tm := range s.Read().TimersOf(agent) {
					pending = append(pending, tm.GetId())
				}
				want := slices.Collect(maps.Keys(m.timers))
				want = slices.DeleteFunc(want, func(id string) bool { return m.timers[id] != agent })
				slices.Sort(want)
				slices.Sort(pending)
				if !slices.Equal(pending, want) {
					t.Fatalf("%s: pending %v, want %v", agent, pending, want)
				}
			}
		}
	})
}
