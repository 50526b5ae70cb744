// Package cluster tests clusters of real daemons, each in a network namespace of
// its own: that they stay right while nodes die, disks stall and the network
// falls apart.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const tool = "../../deploy/testcluster/testcluster"

// testbed is one cluster that is up.
type testbed struct {
	t   *testing.T
	dir string
	// As the tool last told.
	report
	agents *callers
	// live has the endpoints of coordinators that run, for goroutines beside the test.
	live atomic.Pointer[[]string]
}

type report struct {
	Leader     string
	Endpoint   string
	Endpoints  []string
	AdminToken string
	CAFile     string
	Nodes      []struct {
		Name, Role, Endpoint, MetricsURL, State, Dir string
		Process                                      struct{ PID int }
	}
}

// up makes a cluster that the test owns. It needs root, as namespaces do.
func up(t *testing.T, flags ...string) *testbed {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" {
			t.Fatal("network namespaces need root")
		}
		t.Skip("network namespaces need root")
	}
	// Sandboxes run under other users, who must be able to pass the directory.
	dir, err := os.MkdirTemp("/var/tmp", "skerry-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	b := &testbed{t: t, dir: filepath.Join(dir, "c")}
	t.Cleanup(func() {
		if t.Failed() {
			b.showLogs()
		}
		b.run("down")
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	b.run(append([]string{"up"}, flags...)...)
	b.agents = newCallers(t, b.CAFile)
	return b
}

// run runs the tool and keeps what it reports.
func (b *testbed) run(args ...string) {
	b.t.Helper()
	if err := b.try(args...); err != nil {
		b.t.Fatalf("testcluster %s: %v", strings.Join(args, " "), err)
	}
}

// killQuietly kills a node while other goroutines look at what the tool last told.
func (b *testbed) killQuietly(name string) error {
	return exec.Command(tool, "--dir", b.dir, "kill", name).Run()
}

func (b *testbed) try(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, append([]string{"--dir", b.dir}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, errs.String())
	}
	b.report = report{}
	if err := json.Unmarshal(out.Bytes(), &b.report); err != nil {
		return err
	}
	var live []string
	for _, n := range b.Nodes {
		if n.Role == "coordinator" && n.State == "running" {
			live = append(live, n.Endpoint)
		}
	}
	b.live.Store(&live)
	return nil
}

// showLogs prints the end of each node's log.
func (b *testbed) showLogs() {
	const most = 3 << 10
	if text, err := os.ReadFile(filepath.Join(b.dir, "hub.log")); err == nil {
		b.t.Logf("--- hub\n%s", text[max(0, len(text)-most):])
	}
	for _, n := range b.Nodes {
		text, err := os.ReadFile(filepath.Join(n.Dir, "log"))
		if err == nil {
			b.t.Logf("--- %s\n%s", n.Name, text[max(0, len(text)-most):])
		}
	}
}

// coordinators and runners by name.
func (b *testbed) withRole(role string) (out []string) {
	for _, n := range b.Nodes {
		if n.Role == role {
			out = append(out, n.Name)
		}
	}
	return out
}

func (b *testbed) followers() (out []string) {
	for _, name := range b.withRole("coordinator") {
		if name != b.Leader {
			out = append(out, name)
		}
	}
	return out
}

// awaitLeader waits until a coordinator leads and gives its name.
func (b *testbed) awaitLeader() string {
	b.t.Helper()
	b.until("a leader", func() bool { b.run("status"); return b.Leader != "" })
	return b.Leader
}

const patience = 90 * time.Second

func (b *testbed) until(what string, cond func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			b.t.Fatalf("no %s within %v", what, patience)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// admin makes a call as an admin that must succeed; it is repeated for as long as
// that is safe.
func (b *testbed) admin(method string, in, out any) {
	b.t.Helper()
	b.as(b.AdminToken, method, in, out)
}

func (b *testbed) as(token, method string, in, out any) {
	b.t.Helper()
	var last outcome
	b.until(method, func() bool {
		last = b.agents.call(b.t.Context(), b.Endpoint, token, method, in, out)
		if last.kind == refused && !last.retryable {
			b.t.Fatalf("%s: %s", method, last)
		}
		return last.kind == done
	})
}

// newAgent makes an agent's token.
func (b *testbed) newAgent(name string) string {
	b.t.Helper()
	var out struct{ Secret string }
	b.admin("TokenService/CreateToken", map[string]any{"subject": name}, &out)
	return out.Secret
}
