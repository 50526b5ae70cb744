package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestMainJob(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	c.write(t, "in/data.txt", "3\n1\n2\n")
	e := c.sh(t, "sort -n in/data.txt > out.txt; rm in/data.txt; echo done; echo oops >&2")
	wantState(t, e, "completed", "exited")
	if e.Verdict.ExitCode == nil || *e.Verdict.ExitCode != 0 {
		t.Errorf("exit code %v", e.Verdict)
	}
	if e.Stdout.Text != "done\n" || e.Stderr.Text != "oops\n" {
		t.Errorf("output %v %v", e.Stdout, e.Stderr)
	}
	if got := strings.Join(e.Changes.Created, " "); got != "out.txt" {
		t.Errorf("created %q", got)
	}
	if got := strings.Join(e.Changes.Deleted, " "); got != "in/data.txt" {
		t.Errorf("deleted %q", got)
	}
	if e.Snapshot.GetDigest() == "" || e.Snapshot.GetParent() == "" || e.Tier == "" || e.Agent != "dev" || e.Runner != "local" || e.Workspace == "" {
		t.Errorf("record lacks something: %v", e)
	}
	if c.read(t, "out.txt") != "1\n2\n3\n" {
		t.Error("result differs")
	}
	hist, err := c.ws.History(t.Context(), connect.NewRequest(&skerryv1.HistoryRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if r := hist.Msg.Revisions; len(r) != 2 || r[0].Source != e.Id || r[0].SourceKind != "execution" || r[1].SourceKind != "write" {
		t.Errorf("history %v", r)
	}
	diff, err := c.ws.Diff(t.Context(), connect.NewRequest(&skerryv1.DiffRequest{}))
	if err != nil || diff.Msg.Changes.CreatedCount != 1 || diff.Msg.To != e.Snapshot.Digest {
		t.Errorf("diff %v %v", diff, err)
	}
	list, err := c.ex.ListExecutions(t.Context(), connect.NewRequest(&skerryv1.ListExecutionsRequest{}))
	if err != nil || len(list.Msg.Executions) != 1 || list.Msg.Executions[0].Id != e.Id {
		t.Errorf("list %v %v", list, err)
	}
	ws, err := c.ws.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
	if err != nil || len(ws.Msg.Workspaces) != 1 || ws.Msg.Workspaces[0].Id != e.Workspace {
		t.Errorf("workspaces %v %v", ws, err)
	}
}

func TestVerdicts(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	for _, k := range []struct {
		command     string
		timeout     uint32
		state, kind string
		code        int32 // -1: none
		signal      string
	}{
		{"exit 0", 0, "completed", "exited", 0, ""},
		{"exit 3", 0, "failed", "exited", 3, ""},
		{"exit 137", 0, "failed", "exited", 137, ""},
		{"kill -9 $$", 0, "failed", "signaled", -1, "SIGKILL"},
		{"kill -SEGV $$", 0, "failed", "signaled", -1, "SIGSEGV"},
		{"false | true", 0, "failed", "exited", 1, ""},
		{"echo $undefined", 0, "failed", "exited", 1, ""},
		{"no-such-program", 0, "failed", "exited", 127, ""},
		{"echo early; sleep 300", 1, "failed", "timed_out", -1, ""},
		{"trap '' TERM; sleep 300 & sleep 300; wait; sleep 300", 1, "failed", "timed_out", -1, ""},
	} {
		t.Run(k.command, func(t *testing.T) {
			e := c.wait(t, c.start(t, k.command, &skerryv1.RunOptions{TimeoutS: k.timeout}).Id)
			wantState(t, e, k.state, k.kind)
			if k.code >= 0 && (e.Verdict.ExitCode == nil || *e.Verdict.ExitCode != k.code) {
				t.Errorf("exit code %v, want %d", e.Verdict.ExitCode, k.code)
			}
			if e.Verdict.Signal != k.signal && k.signal != "" {
				t.Errorf("signal %q, want %q", e.Verdict.Signal, k.signal)
			}
		})
	}
	t.Run("run_command", func(t *testing.T) {
		for _, k := range []struct {
			program string
			kind    string
			code    int32
		}{{"true", "exited", 0}, {"/usr/bin/false", "exited", 1}, {"no-such", "start_failed", 127}, {"/etc/passwd", "start_failed", 126}} {
			res, err := c.ex.RunCommand(t.Context(), connect.NewRequest(&skerryv1.RunCommandRequest{Program: k.program}))
			if err != nil {
				t.Fatal(err)
			}
			e := res.Msg.Execution
			if e.GetVerdict().GetKind() != k.kind || e.Verdict.GetExitCode() != k.code {
				t.Errorf("%s: %v", k.program, e.Verdict)
			}
		}
	})
}

func TestI3F06OneKeyRunsOnce(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	const callers = 20
	got := make([]string, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			res, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "echo x >> ran; sleep 0.2",
				Options: &skerryv1.RunOptions{IdempotencyKey: "once", WaitMs: ms(30 * time.Second)}}))
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = res.Msg.Execution.Id
		})
	}
	wg.Wait()
	for _, id := range got {
		if id != got[0] {
			t.Fatalf("different executions: %v", got)
		}
	}
	if ran := c.read(t, "ran"); ran != "x\n" {
		t.Fatalf("ran %q", ran)
	}
	_, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "echo other", Options: &skerryv1.RunOptions{IdempotencyKey: "once"}}))
	if p := problem.Of(err); p == nil || p.Reason != problem.IdempotencyMismatch {
		t.Fatalf("same key, other command: %v", err)
	}
	// The key holds across a crash too (F06).
	d.kill()
	d.start()
	c = d.admin()
	res, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "echo x >> ran; sleep 0.2", Options: &skerryv1.RunOptions{IdempotencyKey: "once"}}))
	if err != nil || res.Msg.Execution.Id != got[0] {
		t.Fatalf("after a restart: %v %v", res, err)
	}
}

// F01, F02, F03: what a command leaves behind in every way is gone when the
// execution is terminal, and the next execution sees no write of it.
func TestI1F01F03NothingSurvivesACancel(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	hostile := `trap '' TERM HUP INT
( trap '' TERM HUP; setsid bash -c 'trap "" TERM HUP; while :; do date +%s%N >> daemon; sleep 0.01; done' & ) &
(setsid setsid bash -c 'trap "" TERM; (trap "" TERM; while :; do echo pipe; echo x >> second; sleep 0.01; done) &' &)
sleep 1000 &
while :; do echo alive; sleep 0.01; done`
	e := c.start(t, hostile, nil)
	d.eventually("the tree runs", func() bool {
		log := c.log(t, e.Id, "")
		return strings.Contains(log, "alive") && strings.Contains(log, "pipe")
	})
	began := time.Now()
	res, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: e.Id, Reason: "test", WaitMs: ms(30 * time.Second)}))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, res.Msg.Execution, "cancelled", "cancelled")
	t.Logf("cancelled in %s", time.Since(began))
	if again, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: e.Id})); err != nil || again.Msg.Execution.State != "cancelled" {
		t.Fatalf("a second cancel: %v %v", again, err)
	}
	next := c.sh(t, `a=$(wc -c < daemon); b=$(wc -c < second); sleep 0.5; [ $a = $(wc -c < daemon) ] && [ $b = $(wc -c < second) ] && ls /proc | grep -c '^[0-9]'`)
	wantState(t, next, "completed", "exited")
	if next.Changes.ModifiedCount+next.Changes.CreatedCount+next.Changes.DeletedCount != 0 {
		t.Fatalf("the next execution saw writes: %v", next.Changes)
	}
}

func TestF02ABackgroundChildDoesNotHoldTheEnd(t *testing.T) {
	c := newDev(t).admin()
	began := time.Now()
	e := c.sh(t, `sleep 1000 & echo out > >(tee copy); echo first`)
	wantState(t, e, "completed", "exited")
	if d := time.Since(began); d > 15*time.Second {
		t.Fatalf("took %s", d)
	}
	if !strings.Contains(e.Stdout.Text, "first") || c.read(t, "copy") != "out\n" {
		t.Fatalf("output %q", e.Stdout.Text)
	}
}

func TestF07StdinIsEmptyUnlessGiven(t *testing.T) {
	c := newDev(t).admin()
	if e := c.sh(t, "cat; read x || echo eof"); e.Stdout.Text != "eof\n" {
		t.Fatalf("output %q, verdict %v", e.Stdout.Text, e.Verdict)
	}
	e := c.wait(t, c.start(t, "cat; cat", &skerryv1.RunOptions{Stdin: []byte("hello")}).Id)
	if e.Stdout.Text != "hello" {
		t.Fatalf("with stdin: %q", e.Stdout.Text)
	}
}

func TestQueueIsFIFOAndCancellable(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	first := c.start(t, "echo 1 >> order; echo begun; sleep 300", nil)
	var ids []string
	for i := 2; i <= 5; i++ {
		ids = append(ids, c.start(t, fmt.Sprintf("echo %d >> order", i), nil).Id)
	}
	res, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: ids[1]}))
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, res.Msg.Execution, "cancelled", "cancelled")
	d.eventually("the first has begun", func() bool { return c.log(t, first.Id, "") == "begun\n" })
	if _, err := c.ex.CancelExecution(t.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: first.Id})); err != nil {
		t.Fatal(err)
	}
	wantState(t, c.wait(t, ids[3]), "completed", "exited")
	if got := c.read(t, "order"); got != "1\n2\n4\n5\n" {
		t.Fatalf("order %q", got)
	}
}

func TestF11F12OutputIsExactAndCounted(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	// 3-byte characters written in pieces of 7 bytes: every edge splits one.
	e := c.sh(t, `/usr/bin/python3 - <<'P'
import os
data = ("\u20ac" * 20000).encode()
for i in range(0, len(data), 7): os.write(1, data[i:i+7])
P`)
	wantState(t, e, "completed", "exited")
	if strings.ContainsRune(e.Stdout.Text, '\uFFFD') || e.Stdout.TotalBytes != 60000 || e.Stdout.OmittedBytes == 0 || e.Stdout.Binary {
		t.Fatalf("total %d omitted %d binary %v", e.Stdout.TotalBytes, e.Stdout.OmittedBytes, e.Stdout.Binary)
	}
	if got := c.log(t, e.Id, "stdout"); got != strings.Repeat("\u20ac", 20000) {
		t.Fatal("the log differs from what was written")
	}
	e = c.sh(t, `head -c 100000 /dev/urandom > blob; cat blob`)
	if !e.Stdout.Binary || e.Stdout.TotalBytes != 100000 {
		t.Fatalf("binary output: %v %d", e.Stdout.Binary, e.Stdout.TotalBytes)
	}
	if len(c.log(t, e.Id, "stdout")) != 100000 {
		t.Fatal("binary log damaged")
	}
	e = c.sh(t, `seq 20000`)
	if shown := strings.Count(e.Stdout.Text, "\n") - strings.Count(e.Stdout.Text, "omitted") - 1; shown+int(e.Stdout.OmittedLines) != 20000 {
		t.Fatalf("%d lines shown, %d omitted", shown, e.Stdout.OmittedLines)
	}
	e = c.sh(t, `echo FIRST; seq 100000; echo LAST`)
	if !strings.HasPrefix(e.Stdout.Text, "FIRST") || !strings.HasSuffix(e.Stdout.Text, "LAST\n") || e.Stdout.OmittedBytes == 0 || len(e.Stdout.Text) > 50<<10 {
		t.Fatalf("head and tail: %d bytes, omitted %d", len(e.Stdout.Text), e.Stdout.OmittedBytes)
	}
}

func TestF14FollowMissesAndRepeatsNothing(t *testing.T) {
	d := newDev(t)
	c := d.admin()
	e := c.start(t, `for i in $(seq 300); do echo line $i; sleep 0.01; done`, nil)
	var got strings.Builder
	cursor, cuts := uint64(0), uint64(0)
	for end := false; !end; {
		stream, err := c.ex.FollowExecutionLogs(t.Context(), connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: e.Id, Cursor: cursor}))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
			m := stream.Msg()
			for _, r := range m.Records {
				got.Write(r.Data)
			}
			cursor = m.NextCursor
			if end = m.End; end {
				wantState(t, m.Execution, "completed", "exited")
				break
			}
			if cursor >= (cuts+1)*400 && cuts < 5 { // reconnect in the middle
				cuts++
				break
			}
		}
		if err := stream.Err(); err != nil && !end && cuts == 0 {
			t.Fatal(err)
		}
		_ = stream.Close()
	}
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if got.String() != want.String() || cuts == 0 {
		t.Fatalf("%d reconnects, got %d bytes, want %d", cuts, got.Len(), want.Len())
	}
}

// A command that takes memory without end is ended by the limit, and the record
// says so; the host and the daemon go on.
func TestI10MemoryIsBounded(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_LIMITS_MEMORY=256MiB")
	if !strings.Contains(d.said(`msg=sandbox .*tier=(\S+)`)[1], "cgroup") {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" && os.Geteuid() == 0 {
			t.Fatal("no writable control groups here, though they are required")
		}
		t.Skip("this host has no writable control groups: nothing can hold the memory of an execution")
	}
	c := d.admin()
	e := c.wait(t, c.start(t, `/usr/bin/python3 -c '
x = []
while True: x.append(bytearray(16 << 20))'`, &skerryv1.RunOptions{TimeoutS: 120}).Id)
	wantState(t, e, "failed", "oom_killed")
	if got := c.sh(t, "echo fine"); got.Stdout.Text != "fine\n" {
		t.Fatal("the runner does not work any more")
	}
}
