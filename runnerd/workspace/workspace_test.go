package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	"skerry.internal/runnerd/journal"
)

type bed struct {
	*Manager
	dir string
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, err := cas.Open(t.Context(), filepath.Join(dir, "cas"), cas.Config{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	j, err := journal.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	cfg := Config{MaxQueue: 8, MaxChangedPaths: 10, MaxFileBytes: 1 << 20}
	if os.Geteuid() == 0 {
		cfg.FirstUID, cfg.UIDs = 2_000_000_000, 10
	}
	m, err := NewManager(filepath.Join(dir, "ws"), store, j, cfg, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return &bed{Manager: m, dir: dir}
}

func (b *bed) workspace(t testing.TB) *Workspace {
	t.Helper()
	w, err := b.Get(t.Context(), ids.New(ids.Workspace, 0, time.Now()).String(), "agent", 1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func put(t testing.TB, w *Workspace, req Write, content string) error {
	t.Helper()
	s, err := w.Stage()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Write([]byte(content)); err != nil {
		return err
	}
	return s.Install(t.Context(), req)
}

func commit(t testing.TB, w *Workspace, source string) Committed {
	t.Helper()
	c, err := w.Commit(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func reason(err error) string { return problem.Of(err).GetReason() }

func TestCommitTellsChangesAndLineage(t *testing.T) {
	w := newBed(t).workspace(t)
	first := commit(t, w, "execution:1")
	if first.Snapshot.Seq != 1 || first.Snapshot.Parent != "" {
		t.Fatalf("first snapshot %v", first.Snapshot)
	}
	for i := range 12 {
		if err := put(t, w, Write{Path: fmt.Sprintf("f%02d", i)}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	second := commit(t, w, "write:f")
	ch := second.Changes
	if ch.CreatedCount != 12 || len(ch.Created) != 10 || !ch.Truncated || ch.Created[0] != "f00" {
		t.Fatalf("changes %v", ch)
	}
	if second.Snapshot.Parent != first.Snapshot.Digest {
		t.Fatalf("parent %s, want %s", second.Snapshot.Parent, first.Snapshot.Digest)
	}
	if err := put(t, w, Write{Path: "f00", IfExists: IfExistsOverwrite}, "y"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.Tree() + "/f01"); err != nil {
		t.Fatal(err)
	}
	third := commit(t, w, "execution:2")
	if ch := third.Changes; len(ch.Modified) != 1 || len(ch.Deleted) != 1 || ch.CreatedCount != 0 {
		t.Fatalf("changes %v", ch)
	}
	again := commit(t, w, "execution:2")
	if again.Snapshot.Seq != 3 || again.Snapshot.Parent != second.Snapshot.Digest || len(again.Changes.Modified) != 1 {
		t.Fatalf("the same source again: %v %v", again.Snapshot, again.Changes)
	}
	if w.HeadSnapshot().Parent != second.Snapshot.Digest {
		t.Fatalf("head %v", w.HeadSnapshot())
	}
	page, next, err := w.History(t.Context(), "", 2)
	if err != nil || len(page) != 2 || page[0].Seq != 3 || next == "" {
		t.Fatalf("history %v %q %v", page, next, err)
	}
	page, next, err = w.History(t.Context(), next, 2)
	if err != nil || len(page) != 1 || page[0].Seq != 1 || next != "" {
		t.Fatalf("history page 2: %v %q %v", page, next, err)
	}
}

func TestWatchGivesEveryChange(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan uint64, 1000)
	ended := make(chan error, 1)
	go func() {
		ended <- b.Watch(ctx, func(all []*Workspace) error {
			for _, w := range all {
				seen <- w.Status().GetHead().GetSeq()
			}
			return nil
		})
	}()
	<-seen // the state at the start
	for i := range 100 {
		if err := put(t, w, Write{Path: "f", IfExists: IfExistsOverwrite}, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		commit(t, w, fmt.Sprintf("write:%d", i))
	}
	for seq := range seen {
		if seq == 100 {
			break
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func BenchmarkCommit(b *testing.B) {
	w := newBed(b).workspace(b)
	i := 0
	for b.Loop() {
		i++
		if _, err := w.Commit(b.Context(), fmt.Sprintf("execution:%d", i)); err != nil {
			b.Fatal(err)
		}
	}
}

// A crash between a write and its commit: the file is committed by itself at

// the next start, not as the work of whoever comes next.

// What an agent is told of a failed commit names no path of the host.

// A chmod of /workspace by the agent does not lock an ordinary user's daemon out.

// The floor for writes holds for where a path leads, not only for its spelling,

// and nothing is written before it is found out.

// A digest of zeros is a digest that no snapshot has.

func TestCommitTellsWhatIsNotKept(t *testing.T) {
	w := newBed(t).workspace(t)
	shell(t, w, `echo > tool; mkfifo pipe`)
	if err := os.Chmod(w.Tree()+"/tool", 0o755|os.ModeSetuid); err != nil { // a change of owner clears the bit
		t.Fatal(err)
	}
	s := commit(t, w, "execution:1").Snapshot
	if s.DroppedCount != 1 || len(s.Dropped) != 1 || s.Dropped[0].Path != "tool" || s.Dropped[0].What != "set-id or sticky bits" {
		t.Errorf("dropped %v", s.Dropped)
	}
	if s.SkippedCount != 1 || len(s.Skipped) != 1 || s.Skipped[0].Path != "pipe" {
		t.Errorf("skipped %v", s.Skipped)
	}
}
