package coordinator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/ids"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const childEnv = "SKERRY_TEST_COORDINATOR_DIR"

// runChild is this test binary as a coordinator: it makes tokens, says each
// secret once it is acknowledged, and waits to be killed.
func runChild() {
	c, err := New(context.Background(), testConfig(os.Getenv(childEnv)), Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		secret, _, err := c.CreateToken(context.Background(), &skerryv1.CreateTokenRequest{Subject: fmt.Sprintf("a%d", i)})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(secret)
	}
}

// I9 for one node: what was acknowledged before kill -9 is there afterwards.
func TestI9AcknowledgedSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var secrets []string
	lines := bufio.NewScanner(out)
	for lines.Scan() && len(secrets) < 20 {
		if strings.HasPrefix(lines.Text(), "error") {
			t.Error(lines.Text())
		}
		secrets = append(secrets, lines.Text())
	}
	if err := child.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Those that it said while being killed were acknowledged too.
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "sk_") && len(lines.Text()) == len(secrets[0]) {
			secrets = append(secrets, lines.Text())
		}
	}
	_ = child.Wait()
	k := startWith(t, testConfig(dir))
	for _, secret := range secrets {
		_, err := k.as(secret).workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
		if err != nil {
			t.Errorf("a token acknowledged before the kill: %v", err)
		}
	}
	if len(secrets) < 20 {
		t.Errorf("only %d tokens", len(secrets))
	}
}

func TestStateSurvivesRestart(t *testing.T) {
	for _, viaSnapshot := range []bool{false, true} {
		t.Run(fmt.Sprintf("snapshot=%v", viaSnapshot), func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.Raft.TrailingLogs = 1
			k := startWith(t, cfg)
			secret := k.token("agent", "ann")
			stop := k.run(newNamed("r1"))
			ex := must[skerryv1.RunShellResponse](t)(k.as(secret).executions.RunShell(t.Context(), shell("true"))).GetExecution()
			before := k.state.Read()
			if viaSnapshot {
				if err := k.node.raft.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			id := k.ClusterID()
			k.stop()

			again := startWith(t, cfg)
			after := again.state.Read()
			if again.ClusterID() != id {
				t.Errorf("cluster %s became %s", id, again.ClusterID())
			}
			if got := after.Runner("r1").GetNumber(); got != before.Runner("r1").GetNumber() {
				t.Errorf("runner number %d", got)
			}
			want := before.WorkspacesOfAgent("ann")[0]
			if got := after.Workspace(ex.GetWorkspace()); !proto.Equal(got, want) {
				t.Errorf("workspace %v, want %v", got, want)
			}
			if _, err := again.as(secret).workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{})); err != nil {
				t.Errorf("token: %v", err)
			}
			if parsed, err := ids.Parse(ids.Workspace, ex.GetWorkspace()); err != nil || parsed.Runner() != after.Runner("r1").GetNumber() {
				t.Errorf("workspace id %s carries runner %d, %v", ex.GetWorkspace(), parsed.Runner(), err)
			}
		})
	}
}

func TestDataDirIsExclusive(t *testing.T) {
	cfg := testConfig(t.TempDir())
	startWith(t, cfg)
	_, err := New(t.Context(), cfg, Deps{Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, ErrDataDirInUse) {
		t.Errorf("second coordinator: %v", err)
	}
}

func TestCloseRefusesChanges(t *testing.T) {
	k := start(t)
	k.stop()
	_, _, err := k.CreateToken(t.Context(), &skerryv1.CreateTokenRequest{Subject: "late"})
	if e := asProblem(err); err == nil || e.Reason != "SHUTTING_DOWN" || !e.Retryable {
		t.Errorf("after close: %v", err)
	}
	if k.Ready() {
		t.Error("ready after close")
	}
}
