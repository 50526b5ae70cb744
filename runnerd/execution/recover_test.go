package execution

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
	"skerry.internal/proto/ids"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox/supervisor"
)

// refuser is a launcher that never lets anything start, and notes who tried.
type refuser struct {
	mu       sync.Mutex
	tried    []string
	released []string
}

func (*refuser) Resume(string, *workspace.Workspace, Launch) error { return nil }

func (r *refuser) Release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = append(r.released, id)
}

func (*refuser) Tier() string { return "test" }

func (*refuser) Backend() string { return "test" }

func (*refuser) Begin(context.Context, string, *workspace.Workspace, Launch, *supervisor.Handle, bool) error {
	return nil
}

func (r *refuser) Spec(_ context.Context, id string, _ *workspace.Workspace, _ Launch) (supervisor.Spec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tried = append(r.tried, id)
	return supervisor.Spec{}, errors.New("refused")
}

type bed struct {
	journal    *journal.Journal
	workspaces *workspace.Manager
	engine     *Engine
	launcher   *refuser
	w          *workspace.Workspace
}

// workspace makes another agent's workspace.
func (b *bed) workspace(t *testing.T, agent string) *workspace.Workspace {
	t.Helper()
	w, err := b.workspaces.Get(t.Context(), ids.New(ids.Workspace, 0, time.Now()).String(), agent, 1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError + 1}))
	store, err := cas.Open(t.Context(), filepath.Join(dir, "cas"), cas.Config{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b := &bed{launcher: &refuser{}}
	if b.journal, err = journal.Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.journal.Close() })
	reg := prometheus.NewRegistry()
	b.workspaces, err = workspace.NewManager(filepath.Join(dir, "ws"), store, b.journal, workspace.Config{MaxQueue: 100, MaxChangedPaths: 10, MaxFileBytes: 1 << 20}, log, reg)
	if err != nil {
		t.Fatal(err)
	}
	if b.w, err = b.workspaces.Get(t.Context(), ids.New(ids.Workspace, 0, time.Now()).String(), "a", 1); err != nil {
		t.Fatal(err)
	}
	b.engine, err = New(Config{Dir: filepath.Join(dir, "ex"), ShimPath: "/bin/false", Slots: 2, OutputBytes: 1000, OutputLines: 100,
		KeepLogs: time.Hour, KeepExecutions: 3}, b.journal, b.workspaces, b.launcher, log, reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.engine.Close)
	return b
}

// accept records an execution as an earlier daemon would have left it.
func (b *bed) accept(t *testing.T, n int) string {
	t.Helper()
	id := ids.New(ids.Execution, 1, time.UnixMilli(int64(1000+n))).String()
	_, err := b.journal.Accept(t.Context(), journal.Accepted{Launch: []byte(`{"argv":["true"]}`), Record: &skerryv1.Execution{
		Id: id, Agent: "a", Workspace: b.w.ID, State: skerryv1.StateQueued, Times: &skerryv1.Times{}}})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (b *bed) recover(t *testing.T) {
	t.Helper()
	all, err := b.workspaces.Recorded(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.engine.Recover(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

// After a restart of the host nothing proves that the first open execution of a
// workspace did not run: it must not run again, and no end is invented for it.
func TestI3AfterARebootTheFirstIsUnknown(t *testing.T) {
	b := newBed(t)
	first, second := b.accept(t, 1), b.accept(t, 2)
	if err := b.journal.SetMeta(t.Context(), map[string]string{"boot_id": "another"}); err != nil {
		t.Fatal(err)
	}
	b.recover(t)
	one, err := b.engine.AwaitEnd(t.Context(), "a", first)
	if err != nil || one.State != skerryv1.StateUnknown || one.Verdict.Kind != skerryv1.VerdictLost || one.Verdict.ExitCode != nil {
		t.Fatalf("first: %v %v", one, err)
	}
	two, err := b.engine.AwaitEnd(t.Context(), "a", second)
	if err != nil || two.Verdict.Kind != skerryv1.VerdictStartFailed {
		t.Fatalf("second: %v %v", two, err)
	}
	if fmt.Sprint(b.launcher.tried) != fmt.Sprint([]string{second}) {
		t.Fatalf("tried to start %v, want only %s", b.launcher.tried, second)
	}
}

func TestI3WithoutARebootWhatNeverStartedIsQueuedAgain(t *testing.T) {
	b := newBed(t)
	b.recover(t) // notes this boot
	first, second := b.accept(t, 1), b.accept(t, 2)
	b.recover(t)
	for _, id := range []string{first, second} {
		if e, err := b.engine.AwaitEnd(t.Context(), "a", id); err != nil || e.Verdict.Kind != skerryv1.VerdictStartFailed {
			t.Fatalf("%v %v", e, err)
		}
	}
	if fmt.Sprint(b.launcher.tried) != fmt.Sprint([]string{first, second}) {
		t.Fatalf("started %v, want %s then %s", b.launcher.tried, first, second)
	}
	next, err := b.engine.Submit(t.Context(), b.w, &skerryv1.Execution{Agent: "a"}, Launch{Argv: []string{"true"}}, &skerryv1.RunShellRequest{})
	if err != nil || next <= second {
		t.Fatalf("new id %s does not sort behind %s (%v)", next, second, err)
	}
}

func TestI10LogsAreBounded(t *testing.T) {
	b := newBed(t)
	now := time.Now()
	var made []string
	for i := range 6 {
		id := ids.New(ids.Execution, 1, now.Add(time.Duration(i)*time.Second)).String()
		made = append(made, id)
		if err := os.MkdirAll(filepath.Join(b.engine.cfg.Dir, id, "log"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := ids.New(ids.Execution, 1, now.Add(-2*time.Hour)).String()
	if err := os.MkdirAll(filepath.Join(b.engine.cfg.Dir, old), 0o700); err != nil {
		t.Fatal(err)
	}
	b.engine.retain()
	left, err := os.ReadDir(b.engine.cfg.Dir)
	if err != nil || len(left) != 3 || left[0].Name() != made[3] {
		t.Fatalf("left %v, %v; want the newest three", left, err)
	}
	page, err := b.engine.ReadLog(&skerryv1.Execution{Id: made[0], State: skerryv1.StateCompleted, Stdout: &skerryv1.Output{TotalBytes: 10}}, 4, 100)
	if err != nil || !page.EOF || page.Dropped != 6 || page.Next != 10 {
		t.Fatalf("page of a removed log: %+v %v", page, err)
	}
}

// A commit that fails keeps the execution from being terminal until a repair.
func TestI1AFailedCommitWaitsForRepair(t *testing.T) {
	b := newBed(t)
	tree := b.w.Tree()
	if err := os.Rename(tree, tree+".away"); err != nil {
		t.Fatal(err)
	}
	id, err := b.engine.Submit(t.Context(), b.w, &skerryv1.Execution{Agent: "a"}, Launch{Argv: []string{"true"}}, &skerryv1.RunShellRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for { // the commit's failure is told by the record alone
		e, err := b.engine.Get(t.Context(), "a", id)
		if err != nil {
			t.Fatal(err)
		}
		if skerryv1.Terminal(e.State) {
			t.Fatalf("terminal without a commit: %v", e)
		}
		if e.Problem != "" {
			break
		}
		time.Sleep(time.Millisecond) // only the record tells, and nothing wakes its readers
	}
	if _, err := b.engine.Submit(t.Context(), b.w, &skerryv1.Execution{Agent: "a"}, Launch{Argv: []string{"true"}}, &skerryv1.RunShellRequest{}); err == nil {
		t.Fatal("a workspace that needs repair took another execution")
	}
	if err := os.Rename(tree+".away", tree); err != nil {
		t.Fatal(err)
	}
	if err := b.w.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, err := b.engine.AwaitEnd(t.Context(), "a", id); err != nil || e.Problem != "" || e.Snapshot == nil {
		t.Fatalf("after repair: %v %v", e, err)
	}
}

// Workspaces that wait for a repair hold no slot: other agents go on.
func TestAFailedCommitHoldsNoSlot(t *testing.T) {
	b := newBed(t)
	for i := range cap(b.engine.slots) {
		w := b.workspace(t, fmt.Sprintf("broken%d", i))
		if err := os.Rename(w.Tree(), w.Tree()+".away"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.engine.Submit(t.Context(), w, &skerryv1.Execution{Agent: w.Agent}, Launch{Argv: []string{"true"}}, &skerryv1.RunShellRequest{}); err != nil {
			t.Fatal(err)
		}
		for w.Writable() == nil { // its commit fails in a moment
			time.Sleep(time.Millisecond) // only the state tells
		}
	}
	id, err := b.engine.Submit(t.Context(), b.w, &skerryv1.Execution{Agent: "a"}, Launch{Argv: []string{"true"}}, &skerryv1.RunShellRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.engine.Await(t.Context(), "a", id, 20*time.Second)
	if err != nil || !skerryv1.Terminal(e.State) {
		t.Fatalf("another agent's execution waits behind failed commits: %v %v", e, err)
	}
}
