package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// The daemon is killed while an execution prints: it runs on, its log has every
// line once, its exit code is right (I2, F05).
func TestI2ExecutionSurvivesKill9(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, `for i in $(seq 5); do echo line $i; done; until [ -e go ]; do sleep 0.05; done; for i in $(seq 6 50); do echo line $i; done; exit 7`, nil)
	d.eventually("five lines", func() bool { return strings.Contains(c.log(t, e.Id, ""), "line 5\n") })
	for range 2 {
		d.kill()
		d.start()
		c = d.admin()
		if got := c.get(t, e.Id); got.State != "running" {
			t.Fatalf("after a restart the execution is %s (%v)", got.State, got.Verdict)
		}
	}
	d.signal("go")
	end := c.wait(t, e.Id)
	wantState(t, end, "failed", "exited")
	if end.Verdict.GetExitCode() != 7 {
		t.Fatalf("exit code %d", end.Verdict.GetExitCode())
	}
	var want strings.Builder
	for i := range 50 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if got := c.log(t, e.Id, ""); got != want.String() {
		t.Fatalf("log after restarts:\n%s", got)
	}
}

// A limit and its verdict hold for what an earlier daemon started.
func TestI2LimitsSurviveKill9(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_LIMITS_MEMORY=64MiB")
	c := d.admin()
	e := c.start(t, `echo up; until [ -e go ]; do sleep 0.05; done; exec python3 -c 'x = bytearray(1 << 30)'`, nil)
	d.eventually("it runs", func() bool { return c.log(t, e.Id, "") == "up\n" })
	d.kill()
	d.start()
	c = d.admin()
	d.signal("go")
	end := c.wait(t, e.Id)
	wantState(t, end, "failed", "oom_killed")
	if end.Usage.GetPeakMemoryBytes() < 32<<20 {
		t.Errorf("usage %v", end.Usage)
	}
}

// signal makes a file that a command waits for, in the only workspace. It does
// what a sleep of the command would do, however slow the machine is.
func (d *dev) signal(name string) {
	d.t.Helper()
	trees, err := filepath.Glob(filepath.Join(d.dir, "data", "runner", "workspaces", "*", "tree"))
	if err != nil || len(trees) != 1 {
		d.t.Fatalf("workspaces %v, %v", trees, err)
	}
	if err := os.WriteFile(filepath.Join(trees[0], name), nil, 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// An execution ends while no daemon lives; queued ones wait. All is taken up again.
func TestI2EndWhileTheDaemonIsDown(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	first := c.start(t, "echo begun; sleep 1; echo made > made; exit 4", nil)
	second := c.start(t, "cat made > copy; echo second", nil)
	d.eventually("the first runs", func() bool { return c.log(t, first.Id, "") != "" })
	d.kill()
	d.eventually("the first has ended", func() bool {
		_, err := os.Stat(filepath.Join(d.dir, "data", "runner", "executions", first.Id, "exit.json"))
		return err == nil
	})
	d.start()
	c = d.admin()
	one, two := c.wait(t, first.Id), c.wait(t, second.Id)
	wantState(t, one, "failed", "exited")
	wantState(t, two, "completed", "exited")
	if one.Verdict.GetExitCode() != 4 || strings.Join(one.Changes.Created, " ") != "made" || two.Snapshot.Parent != one.Snapshot.Digest {
		t.Fatalf("first %v, second %v", one, two)
	}
	if c.read(t, "copy") != "made\n" {
		t.Fatal("the second ran before the first had ended")
	}
}

// Killed over and over in the middle of short executions: each runs exactly once.
func TestI3NothingIsLostOrRunTwiceUnderKills(t *testing.T) {
	d := newDev(t)
	const rounds, each = 6, 8
	var ids []string
	for r := range rounds {
		c := d.admin()
		for i := range each {
			ids = append(ids, c.start(t, fmt.Sprintf("echo %d.%d >> ran", r, i), nil).Id)
		}
		time.Sleep(time.Duration(r*7) * time.Millisecond) // varies the point of the kill
		d.kill()
		d.start()
	}
	c := d.admin()
	for _, id := range ids {
		wantState(t, c.wait(t, id), "completed", "exited")
	}
	var want strings.Builder
	for r := range rounds {
		for i := range each {
			fmt.Fprintf(&want, "%d.%d\n", r, i)
		}
	}
	if got := c.read(t, "ran"); got != want.String() {
		t.Fatalf("ran:\n%s\nwant:\n%s", got, want.String())
	}
}

// The supervisor is killed: nothing of the sandbox lives on, the outcome is
// unknown and never invented (F09), and the workspace goes on.
func TestI3LostSupervisorIsUnknown(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, "echo before > f; while :; do echo x >> g; sleep 0.01; done", nil)
	d.eventually("it writes", func() bool {
		matches, _ := filepath.Glob(filepath.Join(d.dir, "data", "runner", "workspaces", "*", "tree", "g"))
		return len(matches) == 1
	})
	killShim(t, filepath.Join(d.dir, "data", "runner", "executions", e.Id))
	end := c.wait(t, e.Id)
	wantState(t, end, skerryv1.StateUnknown, skerryv1.VerdictLost)
	if end.Verdict.ExitCode != nil {
		t.Fatalf("an exit code was invented: %v", end.Verdict)
	}
	next := c.sh(t, `a=$(wc -c < g); sleep 0.3; [ $a = $(wc -c < g) ]`)
	wantState(t, next, "completed", "exited")
}

func TestStopAndStartInOrder(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, "sleep 2; echo end", nil)
	d.stop()
	d.start()
	c = d.admin()
	end := c.wait(t, e.Id)
	wantState(t, end, "completed", "exited")
	if end.Stdout.Text != "end\n" {
		t.Fatalf("output %q", end.Stdout.Text)
	}
}

// A daemon that is told to stop while calls wait, a log is followed and the
// link is up ends in order and soon.
func TestStopIsPrompt(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, "sleep 300", nil)
	stream, err := c.ex.FollowExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: e.Id}))
	if err != nil {
		t.Fatal(err)
	}
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		for stream.Receive() {
		}
	}()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		d.stop()
	}()
	select {
	case <-stopped:
	case <-time.After(30 * time.Second):
		t.Fatal("skerry dev does not stop")
	}
	<-followed
	d.start()
	c = d.admin()
	if got := c.get(t, e.Id); got.State != "running" {
		t.Fatalf("after the restart the execution is %s", got.State)
	}
	if _, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: e.Id})); err != nil {
		t.Fatal(err)
	}
}

// An execution whose directory somebody removed while it ran is not run again
// beside itself.
func TestI3RemovedDirectoryIsNoSecondRun(t *testing.T) {
	d := newDev(t)
	c, secret := d.agent("a")
	id := c.start(t, "echo run >> /workspace/runs; sleep 300", nil).Id
	d.eventually("the command has written", func() bool {
		found, err := filepath.Glob(filepath.Join(d.dir, "data", "runner", "workspaces", "*", "tree", "runs"))
		return err == nil && len(found) == 1
	})
	d.kill()
	if err := os.RemoveAll(filepath.Join(d.dir, "data", "runner", "executions", id)); err != nil {
		t.Fatal(err)
	}
	d.start()
	c = d.client(secret)
	wantState(t, c.wait(t, id), skerryv1.StateUnknown, skerryv1.VerdictLost)
	if got := c.read(t, "runs"); got != "run\n" {
		t.Fatalf("runs: %q", got)
	}
}

// The command follows on over a crash of the daemons, at the same byte.
func TestF14TheCommandFollowsAcrossARestart(t *testing.T) {
	address := freePort(t)
	d := newDevWith(t, []string{"--listen", address})
	c := d.admin()
	e := c.start(t, `for i in $(seq 40); do echo line $i; sleep 0.1; done; exit 3`, nil)
	follow := exec.Command(filepath.Join(binDir, "skerry"), "exec", "logs", "--follow", e.Id)
	follow.Env = d.env()
	var out bytes.Buffer
	follow.Stdout, follow.Stderr = &out, os.Stderr
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	d.eventually("some lines", func() bool { return strings.Contains(c.log(t, e.Id, ""), "line 9\n") })
	d.kill()
	d.start()
	if err := follow.Wait(); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if out.String() != want.String() {
		t.Fatalf("followed:\n%s", out.String())
	}
}

// What a command was started with is not left on disk: it may hold secrets.
func TestInputsAreForgotten(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.wait(t, c.start(t, "cat > /dev/null", &skerryv1.RunOptions{Env: map[string]string{"SECRET": "hunter2-env"}, Stdin: []byte("hunter2-stdin")}).Id)
	wantState(t, e, "completed", "exited")
	d.eventually("the inputs are gone", func() bool {
		found := false
		err := filepath.WalkDir(filepath.Join(d.dir, "data", "runner", "executions"), func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			found = found || bytes.Contains(b, []byte("hunter2"))
			return err
		})
		return err == nil && !found
	})
}
