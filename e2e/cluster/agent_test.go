package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// seeded is the source of chance of a test. SKERRY_SEED repeats a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(20261201)
	if os.Getenv("SKERRY_SOAK") != "" {
		seed = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("SKERRY_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with SKERRY_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// soakTime is SKERRY_SOAK, or how long a test takes without it.
func soakTime(short time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("SKERRY_SOAK")); err == nil {
		return d
	}
	return short
}

// upTo is a random time in milliseconds.
func upTo(random *rand.Rand, least, most int) time.Duration {
	return time.Duration(least+random.IntN(most-least+1)) * time.Millisecond
}

type snapshot struct {
	Digest, Commit string
	Seq            uint64 `json:",string"`
}

type execution struct {
	ID, State, Runner, Workspace string
	Verdict                      struct {
		Kind, Detail string
		ExitCode     int
	}
	Stdout, Stderr struct{ Text string }
	Snapshot       snapshot
	Changes        struct{ CreatedCount, ModifiedCount, DeletedCount int }
}

func (e execution) ended() bool { return e.State != "" && e.State != "queued" && e.State != "running" }

type workspace struct {
	ID, Runner, State string
	Epoch             uint64 `json:",string"`
	Head              snapshot
	Replication       struct {
		Runner, Digest string
		Seq            uint64 `json:",string"`
	}
}

// start starts a command in the background; opts are more of RunOptions.
func (b *testbed) start(token, command string, opts map[string]any) execution {
	b.t.Helper()
	all := map[string]any{"background": true, "idempotencyKey": fmt.Sprintf("k%d", time.Now().UnixNano())}
	for k, v := range opts {
		all[k] = v
	}
	var out struct{ Execution execution }
	b.as(token, "ExecutionService/RunShell", map[string]any{"command": command, "options": all}, &out)
	return out.Execution
}

// ended waits for the end of an execution.
func (b *testbed) ended(token, id string) execution {
	b.t.Helper()
	var out struct{ Execution execution }
	b.until("end of "+id, func() bool {
		out.Execution = execution{}
		o := b.agents.call(b.t.Context(), b.Endpoint, token, "ExecutionService/GetExecution", map[string]any{"executionId": id, "waitMs": 5000}, &out)
		return o.kind == done && out.Execution.ended()
	})
	return out.Execution
}

// sh runs a command that must exit with 0 and gives its standard output.
func (b *testbed) sh(token, runner, command string) execution {
	b.t.Helper()
	e := b.ended(token, b.start(token, command, map[string]any{"runner": runner}).ID)
	if e.State != "completed" || e.Verdict.ExitCode != 0 {
		b.t.Fatalf("%s: %s %+v %s", command, e.State, e.Verdict, e.Stderr.Text)
	}
	return e
}

// workspaceOn gives the agent's workspace on a runner.
func (b *testbed) workspaceOn(token, runner string) workspace {
	b.t.Helper()
	for _, w := range b.workspaces(token) {
		if w.Runner == runner {
			return w
		}
	}
	b.t.Fatalf("no workspace on %s: %+v", runner, b.workspaces(token))
	return workspace{}
}

func (b *testbed) workspaces(token string) []workspace {
	b.t.Helper()
	var all struct{ Workspaces []workspace }
	b.as(token, "WorkspaceService/ListWorkspaces", map[string]any{}, &all)
	return all.Workspaces
}

// runnerState is "up" or "down"; empty while nobody tells.
func (b *testbed) runnerState(name string) string {
	var all struct {
		Runners []struct{ Name, State string }
	}
	if o := b.agents.call(b.t.Context(), b.Endpoint, b.AdminToken, "RunnerService/ListRunners", map[string]any{}, &all); o.kind != done {
		return ""
	}
	for _, r := range all.Runners {
		if r.Name == name {
			return r.State
		}
	}
	return ""
}

func (b *testbed) awaitRunner(name, state string) {
	b.t.Helper()
	b.until(name+" "+state, func() bool { return b.runnerState(name) == state })
}

// nodeDir is where a node has its data.
func (b *testbed) nodeDir(name string) string {
	for _, n := range b.Nodes {
		if n.Name == name {
			return n.Dir
		}
	}
	return ""
}

func (b *testbed) endpointOf(name string) string {
	for _, n := range b.Nodes {
		if n.Name == name {
			return n.Endpoint
		}
	}
	return ""
}

// add adds a node and gives its name.
func (b *testbed) add(args ...string) string {
	b.t.Helper()
	b.run(append([]string{"add"}, args...)...)
	return b.Nodes[len(b.Nodes)-1].Name
}
