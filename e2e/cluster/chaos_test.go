package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	clients = 6
	// How long the faults go on where SKERRY_SOAK does not say.
	shortChaos = 40 * time.Second
	checkLimit = 3 * time.Minute
)

// chaosTime is the time for faults and their seed: SKERRY_SOAK and SKERRY_SEED.
func chaosTime(t *testing.T) (time.Duration, uint64) {
	t.Helper()
	long, seed := shortChaos, uint64(20261201)
	if text := os.Getenv("SKERRY_SOAK"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		long, seed = d, uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("SKERRY_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("faults for %v, seed %d", long, seed)
	return long, seed
}

// What was acknowledged stays so, and all see the same, while coordinators die,
// stall, pause and lose each other (I9, F44, F46, F50).
func TestI9LinearizableUnderFaults(t *testing.T) {
	long, seed := chaosTime(t)
	b := up(t, "--disks")
	w := &workload{recorder: &recorder{start: time.Now()}, b: b, callers: b.agents, adminToken: b.AdminToken}
	w.next.Store(1000)
	endpoints := b.Endpoints
	w.endpoints.Store(&endpoints)
	w.prepare()

	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for i := range clients {
		c := &client{workload: w, ctx: ctx, random: rand.New(rand.NewPCG(seed, uint64(i))), id: i}
		agent := "chaos" + strconv.Itoa(i)
		secret := b.newAgent(agent)
		working.Go(func() { c.run(agent, secret) })
	}
	n := &nemesis{workload: w, random: rand.New(rand.NewPCG(seed, 1<<32))}
	n.run(long)
	b.awaitLeader()
	cancel()
	working.Wait()
	t.Logf("%d operations, %d succeeded, faults: %s", len(w.ops), w.done, strings.Join(n.log, ", "))
	if least := int(long.Seconds()) * 5; w.done < least {
		t.Errorf("only %d operations succeeded, want %d", w.done, least)
	}
	check(t, w.ops)
}

func check(t *testing.T, ops []porcupine.Operation) {
	t.Helper()
	result, info := porcupine.CheckOperationsVerbose(model, ops, checkLimit)
	if result == porcupine.Ok {
		return
	}
	path := fmt.Sprintf("%s/skerry-history-%d.html", os.TempDir(), time.Now().Unix())
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		t.Log(err)
	}
	t.Errorf("the history is not linearizable: %s; see %s", result, path)
}

// prepare gives an agent two workspaces to copy between.
func (w *workload) prepare() {
	w.pair = w.b.newAgent("pair")
	for _, runner := range []string{"r1", "r2"} {
		w.b.as(w.pair, "ExecutionService/RunShell", map[string]any{"command": "mkdir -p d && for i in 1 2 3 4 5; do echo $i > d/$i; done",
			"options": map[string]any{"runner": runner, "idempotencyKey": "prepare"}}, nil)
	}
	var all struct{ Workspaces []struct{ ID, Runner string } }
	w.b.as(w.pair, "WorkspaceService/ListWorkspaces", map[string]any{}, &all)
	for _, ws := range all.Workspaces {
		if ws.Runner == "r1" {
			w.source = ws.ID
		} else {
			w.target = ws.ID
		}
	}
}

// nemesis breaks the cluster and mends it, one fault after the other.
type nemesis struct {
	*workload
	random *rand.Rand
	log    []string
}

// fault breaks something and gives what mends it.
type fault struct {
	name string
	do   func(leader string, followers []string) (mend func())
}

func (n *nemesis) faults() []fault {
	cut := func(flags []string, a, b string) func() {
		n.b.run(append(append([]string{"partition"}, flags...), a, b)...)
		return func() { n.b.run("heal") }
	}
	oneWay := []string{"--one-way"}
	return []fault{
		{"leader killed", func(l string, _ []string) func() { return n.kill(l) }},
		{"follower killed", func(_ string, f []string) func() { return n.kill(f[0]) }},
		{"leader cut off", func(l string, f []string) func() { return cut(nil, l, strings.Join(f, ",")) }},
		{"leader not heard", func(l string, f []string) func() { return cut(oneWay, l, strings.Join(f, ",")) }},
		{"leader deaf", func(l string, f []string) func() { return cut(oneWay, strings.Join(f, ","), l) }},
		{"follower cut off", func(l string, f []string) func() { return cut(nil, f[0], l+","+f[1]) }},
		{"follower deaf", func(l string, f []string) func() { return cut(oneWay, l+","+f[1], f[0]) }},
		{"bridge", func(l string, f []string) func() { return cut(nil, l, f[0]) }},
		{"runner cut off from the leader", func(l string, _ []string) func() { return cut(nil, "r1", l) }},
		{"leader paused", func(l string, _ []string) func() { n.b.run("pause", l); return func() { n.b.run("resume", l) } }},
		{"leader's disk stalled", func(l string, _ []string) func() { n.b.run("stall", l); return func() { n.b.run("unstall", l) } }},
		{"follower's disk stalled", func(_ string, f []string) func() { n.b.run("stall", f[0]); return func() { n.b.run("unstall", f[0]) } }},
		{"follower replaced", func(_ string, f []string) func() { n.replace(f[0]); return func() {} }},
		{"rolling restart", func(l string, f []string) func() { n.roll(append(f, l)); return func() {} }},
	}
}

// run goes through all faults in an order of chance, again and again.
func (n *nemesis) run(long time.Duration) {
	end := time.Now().Add(long)
	var order []int
	for time.Now().Before(end) {
		faults := n.faults()
		if len(order) == 0 {
			order = n.random.Perm(len(faults))
		}
		f := faults[order[0]]
		order = order[1:]
		leader := n.b.awaitLeader()
		followers := n.b.followers()
		n.random.Shuffle(len(followers), func(i, j int) { followers[i], followers[j] = followers[j], followers[i] })
		n.log = append(n.log, f.name)
		mend := f.do(leader, followers)
		n.rest(1500, 3000)
		mend()
		n.rest(200, 1200)
	}
}

// rest lets the clients work for some milliseconds.
func (n *nemesis) rest(least, more int) {
	time.Sleep(time.Duration(least+n.random.IntN(more)) * time.Millisecond)
}

func (n *nemesis) kill(name string) func() {
	n.without(name)
	n.b.run("kill", name)
	return func() {
		n.b.run("start", name)
		n.without("")
	}
}

// without has clients call the others.
func (n *nemesis) without(name string) {
	var list []string
	for _, node := range n.b.Nodes {
		if node.Role == "coordinator" && node.Name != name {
			list = append(list, node.Endpoint)
		}
	}
	n.endpoints.Store(&list)
}

// replace has a coordinator that lost its disk join anew.
func (n *nemesis) replace(name string) {
	n.without(name)
	n.b.run("replace", name)
	n.without("")
}

func (n *nemesis) roll(names []string) {
	for _, name := range names {
		n.without(name)
		n.b.run("stop", name)
		n.b.run("start", name)
		n.without("")
		n.b.awaitLeader()
	}
}
