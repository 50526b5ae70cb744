package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func openTest(t testing.TB, dir string) *Journal {
	t.Helper()
	j, err := Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func execution(id, key string) Accepted {
	return Accepted{KeyHash: []byte("h"), Launch: []byte("launch"), Record: &skerryv1.Execution{
		Id: id, Agent: "a", Workspace: "ws", State: skerryv1.StateQueued, IdempotencyKey: key}}
}

func TestI3OneKeyIsAcceptedOnce(t *testing.T) {
	j := openTest(t, t.TempDir())
	const callers = 20
	firsts := make([]string, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			first, err := j.Accept(t.Context(), execution(fmt.Sprintf("ex_%02d", i), "key"))
			if err != nil {
				t.Errorf("Accept: %v", err)
			}
			if first == "" {
				first = fmt.Sprintf("ex_%02d", i)
			}
			firsts[i] = first
		})
	}
	wg.Wait()
	for _, f := range firsts {
		if f != firsts[0] {
			t.Fatalf("two executions for one key: %v", firsts)
		}
	}
	list, err := j.List(t.Context(), "a", "", "", 100)
	if err != nil || len(list) != 1 {
		t.Fatalf("List = %d executions, %v; want 1", len(list), err)
	}
	other := execution("ex_99", "key")
	other.KeyHash = []byte("other")
	if _, err := j.Accept(t.Context(), other); !errors.Is(err, ErrKeyReused) {
		t.Fatalf("same key, other request: %v, want ErrKeyReused", err)
	}
}

func TestAcknowledgedSurvivesReopen(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	for i := range 3 {
		if _, err := j.Accept(t.Context(), execution(fmt.Sprintf("ex_%d", i), "")); err != nil {
			t.Fatal(err)
		}
	}
	done := execution("ex_1", "").Record
	done.State = skerryv1.StateCompleted
	if err := j.Finish(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	if err := j.SetMeta(t.Context(), map[string]string{"runner_number": "7"}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.SetMeta(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("write after Close: %v", err)
	}
	j = openTest(t, dir)
	open, err := j.Unfinished(t.Context())
	if err != nil || len(open) != 2 || open[0].Record.Id != "ex_0" || open[1].Record.Id != "ex_2" || string(open[0].Launch) != "launch" {
		t.Fatalf("Unfinished = %v, %v", open, err)
	}
	if v, err := j.Meta(t.Context(), "runner_number"); v != "7" || err != nil {
		t.Fatalf("Meta = %q, %v", v, err)
	}
}

func TestListPagesNewestFirst(t *testing.T) {
	j := openTest(t, t.TempDir())
	for i := range 5 {
		if _, err := j.Accept(t.Context(), execution(fmt.Sprintf("ex_%d", i), "")); err != nil {
			t.Fatal(err)
		}
	}
	page, err := j.List(t.Context(), "a", "", "ex_3", 2)
	if err != nil || len(page) != 2 || page[0].Id != "ex_2" || page[1].Id != "ex_1" {
		t.Fatalf("page = %v, %v", page, err)
	}
	if other, err := j.List(t.Context(), "b", "", "", 10); err != nil || len(other) != 0 {
		t.Fatalf("another agent sees %d executions, %v", len(other), err)
	}
}

func TestOneFailureDoesNotUndoTheGroup(t *testing.T) {
	j := openTest(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			_, err := j.Accept(t.Context(), execution(fmt.Sprintf("ex_%02d", i/2), ""))
			_ = err // one of each pair fails on its duplicate id
		})
	}
	wg.Wait()
	list, err := j.List(t.Context(), "a", "", "", 100)
	if err != nil || len(list) != 25 {
		t.Fatalf("%d executions, %v; want 25", len(list), err)
	}
}

func TestAgentUIDs(t *testing.T) {
	j := openTest(t, t.TempDir())
	seen := map[uint32]bool{}
	for i := range 3 {
		uid, err := j.AgentUID(t.Context(), fmt.Sprintf("agent%d", i), 1000, 3)
		if err != nil || uid < 1000 || uid > 1002 || seen[uid] {
			t.Fatalf("uid %d, %v, seen %v", uid, err, seen)
		}
		seen[uid] = true
	}
	if uid, err := j.AgentUID(t.Context(), "agent0", 1000, 3); uid != 1000 || err != nil {
		t.Fatalf("agent0 again: %d, %v", uid, err)
	}
	if _, err := j.AgentUID(t.Context(), "agent9", 1000, 3); !errors.Is(err, ErrNoUID) {
		t.Fatalf("fourth agent: %v, want ErrNoUID", err)
	}
}

func TestI6StaleEpochIsFenced(t *testing.T) {
	j := openTest(t, t.TempDir())
	for _, epoch := range []uint64{1, 1, 3} {
		if w, err := j.EnsureWorkspace(t.Context(), "ws_1", "a", epoch); err != nil || w.Epoch != epoch {
			t.Fatalf("epoch %d: %+v, %v", epoch, w, err)
		}
	}
	if _, err := j.EnsureWorkspace(t.Context(), "ws_1", "a", 2); !errors.Is(err, ErrFenced) {
		t.Fatalf("epoch 2 after 3: %v, want ErrFenced", err)
	}
	if _, err := j.EnsureWorkspace(t.Context(), "ws_1", "b", 3); !errors.Is(err, ErrNotFound) {
		t.Fatalf("another agent: %v, want ErrNotFound", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	if _, err := j.write.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, ErrSchema) {
		t.Fatalf("Open = %v, want ErrSchema", err)
	}
}

func BenchmarkAccept(b *testing.B) {
	j := openTest(b, b.TempDir())
	i := 0
	for b.Loop() {
		i++
		if _, err := j.Accept(b.Context(), execution(fmt.Sprintf("ex_%09d", i), "")); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTrimKeepsTheOutcome(t *testing.T) {
	j := openTest(t, t.TempDir())
	a := execution("ex_1", "key")
	a.Record.Stdout = &skerryv1.Output{Text: "long", TotalBytes: 4}
	a.Record.State = skerryv1.StateCompleted
	if _, err := j.Accept(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := j.Trim(t.Context(), []string{"ex_0", "ex_1"}); err != nil {
		t.Fatal(err)
	}
	e, err := j.Execution(t.Context(), "ex_1")
	if err != nil || e.Stdout.Text != "" || e.Stdout.OmittedBytes != 4 || e.State != skerryv1.StateCompleted {
		t.Fatalf("%v %v", e, err)
	}
	if id, err := j.FindKey(t.Context(), "a", "key", []byte("h")); id != "ex_1" || err != nil {
		t.Fatalf("key: %q %v", id, err)
	}
}

// A full disk has a name, nothing is recorded by halves, and the journal goes on
// when there is room again.
func TestI10FullDiskIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	j := openTest(t, dir)
	if err := os.WriteFile(dir+"/filler", make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	accepted := 0
	var err error
	for err == nil && accepted < 1000 {
		if _, err = j.Accept(t.Context(), execution(fmt.Sprintf("ex_%03d", accepted), "")); err == nil {
			accepted++
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after %d: %v, want ErrFull", accepted, err)
	}
	if err := os.Remove(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Accept(t.Context(), execution("ex_last", "")); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	if list, err := j.List(t.Context(), "a", "", "", 2000); err != nil || len(list) != accepted+1 {
		t.Fatalf("%d recorded, %v; want %d", len(list), err, accepted+1)
	}
}
