package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

type clusterStatus struct {
	FailureTolerance int
	Healthy          bool
	Members          []struct {
		Name, Role, Version string
		Healthy             bool
	}
}

// A cluster grows to five, loses two and works, gives way to new coordinators at
// new addresses, and gets new programs; what it acknowledged meanwhile is there,
// what ran goes on, and the runner finds it though its configuration names none of
// those that are left.
func TestI9MembershipChanges(t *testing.T) {
	t.Parallel()
	b := up(t, "--runners", "1")
	agent := b.newAgent("alice")
	long := b.start(agent, "echo run >> runs; read -r; cat runs", map[string]any{"interactive": map[string]any{"stdin": true}})
	old := b.withRole("coordinator")
	acknowledged := b.keepWriting(agent)

	fresh := []string{b.add("coordinator"), b.add("coordinator")}
	if s := b.awaitHealthy(); s.FailureTolerance != 2 || len(s.Members) != 5 {
		t.Fatalf("after two were added: %+v", s)
	}
	b.awaitLeader()
	b.run("kill", b.Leader, b.followers()[0])
	b.awaitLeader()
	b.as(agent, "TimerService/CreateTimer", map[string]any{"afterMs": "36000000", "message": "with two of five dead"}, nil)
	b.run("start", b.stopped()[0], b.stopped()[1])
	b.awaitHealthy()

	b.run("remove", old[0])
	b.run("remove", old[1])
	fresh = append(fresh, b.add("coordinator"))
	b.run("remove", old[2])
	if s := b.awaitHealthy(); len(s.Members) != 3 {
		t.Fatalf("after all were replaced: %+v", s)
	}
	b.run("stop", "r1")
	b.run("start", "--same-config", "r1")
	b.awaitRunner("r1", "up")

	b.upgrade(fresh)
	got := acknowledged()
	var all struct{ Timers []struct{ Message string } }
	b.as(agent, "TimerService/ListTimers", map[string]any{}, &all)
	has := map[string]bool{}
	for _, timer := range all.Timers {
		has[timer.Message] = true
	}
	for _, message := range append(got, "with two of five dead") {
		if !has[message] {
			t.Errorf("timer %q was acknowledged and is not there", message)
		}
	}
	if len(got) < 20 {
		t.Errorf("only %d calls succeeded", len(got))
	}
	b.as(agent, "ExecutionService/WriteInput", map[string]any{"executionId": long.ID, "data": "Cg=="}, nil)
	if e := b.ended(agent, long.ID); e.State != "completed" || e.Stdout.Text != "run\n" {
		t.Errorf("what ran all the time: %+v", e)
	}
}

// keepWriting makes timers through any coordinator until the result is called,
// which gives those that were acknowledged.
func (b *testbed) keepWriting(token string) func() []string {
	ctx, cancel := context.WithCancel(b.t.Context())
	var work sync.WaitGroup
	var got []string
	work.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			message := fmt.Sprint("timer ", i)
			list := *b.live.Load()
			if b.agents.call(ctx, list[i%len(list)], token, "TimerService/CreateTimer", map[string]any{"afterMs": "36000000", "message": message}, nil).kind == done {
				got = append(got, message)
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return func() []string { cancel(); work.Wait(); return got }
}

func (b *testbed) stopped() (out []string) {
	for _, n := range b.Nodes {
		if n.State == "stopped" {
			out = append(out, n.Name)
		}
	}
	return out
}

// awaitHealthy waits until all coordinators vote and keep up.
func (b *testbed) awaitHealthy() (s clusterStatus) {
	b.t.Helper()
	want := len(b.withRole("coordinator"))
	b.until("health", func() bool {
		s = clusterStatus{}
		o := b.agents.call(b.t.Context(), b.Endpoint, b.AdminToken, "ClusterService/GetClusterStatus", map[string]any{}, &s)
		return o.kind == done && s.Healthy && len(s.Members) == want && s.FailureTolerance == (want-1)/2
	})
	return s
}

const nextVersion = "9.9.9-next"

// upgrade gives all nodes programs of another version, one after the other.
func (b *testbed) upgrade(coordinators []string) {
	b.t.Helper()
	bin := b.t.TempDir()
	for _, name := range []string{"coordinator", "runnerd", "runnerd-shim"} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+nextVersion, "-o", filepath.Join(bin, name), "../../cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.t.Fatalf("%s: %v: %s", strings.Join(cmd.Args, " "), err, out)
		}
	}
	if err := os.Chmod(bin, 0o755); err != nil {
		b.t.Fatal(err)
	}
	for _, name := range append(slices.Clone(coordinators), "r1") {
		b.run("stop", name)
		b.run("start", "--bin", bin, name)
		b.awaitLeader()
	}
	for _, m := range b.awaitHealthy().Members {
		if m.Version != nextVersion {
			b.t.Errorf("%s has version %s after the upgrade", m.Name, m.Version)
		}
	}
	b.awaitRunner("r1", "up")
	var all struct{ Runners []struct{ Version string } }
	b.admin("RunnerService/ListRunners", map[string]any{}, &all)
	if all.Runners[0].Version != nextVersion {
		b.t.Errorf("runner has version %s after the upgrade", all.Runners[0].Version)
	}
}
