package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// repeater is an agent that makes the same call again and again with one key, at
// any coordinator, and notes what it is told.
type repeater struct {
	b       *testbed
	token   string
	request map[string]any
	random  *rand.Rand

	mu      sync.Mutex
	ids     map[string]int
	reasons map[string]int
}

// begin calls until the result is called.
func (r *repeater) begin() (end func()) {
	r.ids, r.reasons = map[string]int{}, map[string]int{}
	ctx, cancel := context.WithCancel(r.b.t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			r.once(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(upTo(r.random, 50, 300)):
			}
		}
	})
	return func() { cancel(); work.Wait() }
}

func (r *repeater) once(ctx context.Context) {
	list := *r.b.live.Load()
	var out struct{ Execution execution }
	o := r.b.agents.call(ctx, list[r.random.IntN(len(list))], r.token, "ExecutionService/RunShell", r.request, &out)
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.kind == done {
		r.ids[out.Execution.ID]++
		return
	}
	r.reasons[o.reason]++
}

// A runner that is cut off goes on with what it runs while its workspace is given
// to another. When it is back it has moved nothing (I6, F47), has lost nothing,
// its execution's outcome is the truth, and a repeated call ran once (I3).
func TestI6CutOffRunnerIsFenced(t *testing.T) {
	t.Parallel()
	random := seeded(t)
	b := up(t, "--coordinator-set", "replication.policy=on_commit")
	agent := b.newAgent("alice")
	b.sh(agent, "r1", "echo base > f; mkdir d; echo kept > d/kept")
	ws := b.workspaceOn(agent, "r1")
	b.until("replica", func() bool {
		ws = b.workspaceOn(agent, "r1")
		return ws.Replication.Seq == ws.Head.Seq && ws.Replication.Digest == ws.Head.Digest && ws.Head.Seq > 0
	})
	const command = `echo run >> runs; echo old > f; for i in $(seq 80); do echo $i >> lines; sleep 0.1; done; echo end >> lines`
	again := &repeater{b: b, token: agent, random: random, request: map[string]any{"command": command, "options": map[string]any{"background": true, "idempotencyKey": "once"}}}
	var first struct{ Execution execution }
	b.as(agent, "ExecutionService/RunShell", again.request, &first)
	end := again.begin()
	b.until("it runs", func() bool { return strings.Contains(b.onDisk("r1", "lines"), "1\n") })

	b.run("partition", "r1", strings.Join(b.withRole("coordinator"), ","))
	b.awaitRunner("r1", "down")
	var moved struct {
		Workspace workspace
		Branch    struct{ ID, State string }
	}
	b.admin("WorkspaceService/ReassignWorkspace", map[string]any{"workspace": ws.ID}, &moved)
	if moved.Workspace.Epoch != ws.Epoch+1 || moved.Workspace.Runner != ws.Replication.Runner || moved.Branch.State != "away" {
		t.Fatalf("moved: %+v, replica was on %s", moved, ws.Replication.Runner)
	}
	b.until("restored", func() bool { return b.workspaces(agent)[0].State == "ready" })
	e := b.ended(agent, b.start(agent, "cat f d/kept; echo moved > f; echo new > only-new", map[string]any{"firstUse": true}).ID)
	if e.Runner != moved.Workspace.Runner || e.Stdout.Text != "base\nkept\n" || e.Snapshot.Seq != ws.Head.Seq+2 { // the other runner has adopted it by a commit
		t.Fatalf("after the move: on %s, %q, %+v after %+v", e.Runner, e.Stdout.Text, e.Snapshot, ws.Head)
	}
	b.until("its end on the old side", func() bool { return strings.HasSuffix(b.onDisk("r1", "lines"), "end\n") })
	b.run("heal")
	b.awaitRunner("r1", "up")

	got := b.ended(agent, first.Execution.ID)
	if got.State != "completed" || got.Verdict.Kind != "exited" || got.Runner != "r1" {
		t.Errorf("the old execution: %+v", got)
	}
	var all struct {
		Branches []struct {
			ID, State, Runner string
			Head              snapshot
		}
	}
	b.until("branch", func() bool {
		b.as(agent, "WorkspaceService/ListBranches", map[string]any{}, &all)
		return len(all.Branches) == 1 && all.Branches[0].State == "kept" && all.Branches[0].Head.Digest == got.Snapshot.Digest
	})
	branch := map[string]any{"branch": all.Branches[0].ID}
	lines := ""
	for i := range 80 {
		lines += fmt.Sprintln(i + 1)
	}
	for path, want := range map[string]string{"runs": "run\n", "f": "old\n", "d/kept": "kept\n", "lines": lines + "end\n"} {
		if text := b.read(agent, branch, path); text != want {
			t.Errorf("the branch has %s: %q, want %q", path, text, want)
		}
	}
	time.Sleep(time.Second) // repeated calls now reach both runners
	end()
	if len(again.ids) > 1 || (len(again.ids) == 1 && again.ids[first.Execution.ID] == 0) {
		t.Errorf("a repeated key gave %v, want only %s", again.ids, first.Execution.ID)
	}
	t.Logf("repeated: %v %v", again.ids, again.reasons)
	now := b.workspaces(agent)[0]
	if now.Epoch != moved.Workspace.Epoch || now.Runner != moved.Workspace.Runner || now.Head.Digest != e.Snapshot.Digest || now.Head.Seq != e.Snapshot.Seq {
		t.Errorf("the workspace is %+v, want at %+v", now, e.Snapshot)
	}
	names := b.sh(agent, "", "ls; cat f only-new").Stdout.Text
	if names != "d\nf\nonly-new\nmoved\nnew\n" {
		t.Errorf("the new side has %q", names)
	}
	var list struct{ Executions []execution }
	b.as(agent, "ExecutionService/ListExecutions", map[string]any{}, &list)
	runs := slices.DeleteFunc(list.Executions, func(e execution) bool { return e.ID != first.Execution.ID && e.Runner != "r1" })
	if len(runs) != 2 { // the first command and this one
		t.Errorf("on the old runner: %+v", runs)
	}
}

// onDisk reads a workspace's file where the runner has it, whoever can reach that.
func (b *testbed) onDisk(runner, path string) string {
	found, err := filepath.Glob(filepath.Join(b.nodeDir(runner), "data", "workspaces", "*", "*", path))
	more, _ := filepath.Glob(filepath.Join(b.nodeDir(runner), "data", "workspaces", "*", path))
	if found = append(found, more...); err != nil || len(found) == 0 {
		return ""
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return ""
	}
	return string(text)
}

func (b *testbed) read(token string, selector map[string]any, path string) string {
	b.t.Helper()
	var out struct{ Text string }
	b.as(token, "FileService/ReadFile", map[string]any{"workspace": selector, "path": path}, &out)
	return out.Text
}
