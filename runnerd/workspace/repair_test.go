package workspace

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestRepairOfAFailedCommit(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	if err := put(t, w, Write{Path: "f"}, "x"); err != nil {
		t.Fatal(err)
	}
	// Another line of commits took the head: a commit must fail, not overwrite.
	empty, err := b.store.Snapshot(t.Context(), mustOpen(t, t.TempDir()), cas.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Commit(t.Context(), cas.CommitRequest{Head: w.ID, Epoch: 1, Tree: empty.Tree, Source: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), "execution:1"); !errors.Is(err, cas.ErrConflict) {
		t.Fatalf("commit: %v, want ErrConflict", err)
	}
	if err := w.Writable(); reason(err) != problem.WorkspaceNeedsRepair {
		t.Fatalf("Writable = %v", err)
	}
	if err := w.Repair(t.Context()); err == nil {
		t.Fatal("repair passed though the cause stands")
	}
	if err := b.store.DeleteHead(t.Context(), w.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Writable(); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, w, "", "f"); got != "x" {
		t.Fatalf("file after repair: %q", got)
	}
}

func TestRepairWakesAStuckWriter(t *testing.T) {
	w := newBed(t).workspace(t)
	ticket, err := w.Queue()
	if err != nil {
		t.Fatal(err)
	}
	w.setState(t.Context(), skerryv1.WorkspaceNeedsRepair, "test")
	done := make(chan error, 1)
	go func() {
		defer ticket.Release()
		if !w.AwaitRepair(t.Context()) {
			done <- errors.New("not woken")
			return
		}
		_, err := w.Commit(t.Context(), "execution:1")
		done <- err
	}()
	if err := w.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestI6AnOldEpochCannotCommit(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	commit(t, w, "execution:1")
	if _, err := b.Get(t.Context(), w.ID, "agent", 3); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), w.ID, "agent", 2); reason(err) != problem.Fenced {
		t.Fatalf("epoch 2 after 3: %v", err)
	}
	if _, err := b.Get(t.Context(), w.ID, "other", 3); reason(err) != problem.NotFound {
		t.Fatalf("another agent: %v", err)
	}
	if err := b.store.Fence(t.Context(), w.ID, 9); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), "execution:2"); !errors.Is(err, cas.ErrFenced) {
		t.Fatalf("commit of a fenced epoch: %v", err)
	}
}

func TestSettleCommitsWhatACrashLeft(t *testing.T) {
	w := newBed(t).workspace(t)
	if err := w.Settle(t.Context()); err != nil || w.Head().Seq != 0 {
		t.Fatalf("an empty new workspace: seq %d, %v", w.Head().Seq, err)
	}
	commit(t, w, "execution:1")
	if err := w.Settle(t.Context()); err != nil || w.Head().Seq != 1 {
		t.Fatalf("nothing changed: seq %d, %v", w.Head().Seq, err)
	}
	if err := put(t, w, Write{Path: "f"}, "x"); err != nil {
		t.Fatal(err)
	}
	if err := w.Settle(t.Context()); err != nil || w.Head().Source != "recovery:" {
		t.Fatalf("head %+v, %v", w.Head(), err)
	}
	if next := commit(t, w, "execution:2"); len(next.Changes.Created) != 0 {
		t.Fatalf("the next execution is said to have made %v", next.Changes.Created)
	}
}

func TestI7AFailedCommitNamesNoHostPath(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	if err := os.Rename(w.Tree(), w.Tree()+".away"); err != nil {
		t.Fatal(err)
	}
	_, err := w.Commit(t.Context(), "test:")
	if err == nil {
		t.Fatal("committed a directory that is not there")
	}
	for what, text := range map[string]string{"status": w.Status().Detail, "refusal": w.Writable().Error(), "cause": CommitCause(err)} {
		if text == "" || strings.Contains(text, b.dir) {
			t.Errorf("%s: %q", what, text)
		}
	}
	full := &os.PathError{Op: "write", Path: b.dir + "/cas/packs/1", Err: unix.ENOSPC}
	if got := CommitCause(full); got != "the runner's disk is full" {
		t.Errorf("full disk: %q", got)
	}
}

func TestAgentCannotLockTheWorkspace(t *testing.T) {
	for _, mode := range []os.FileMode{0, 0o100, 0o400} {
		b := newBed(t)
		w := b.workspace(t)
		if err := put(t, w, Write{Path: "a"}, "x"); err != nil {
			t.Fatal(err)
		}
		w.UID, w.GID = -1, -1 // as for an ordinary user, also when the test is root
		if err := os.Chmod(w.Tree(), mode); err != nil {
			t.Fatal(err)
		}
		if c := commit(t, w, "test:"); c.Snapshot.Files != 1 || c.Snapshot.SkippedCount != 0 {
			t.Errorf("mode %#o: %v", mode, c.Snapshot)
		}
		if info, err := os.Stat(w.Tree()); err != nil || info.Mode().Perm()&0o700 != 0o700 {
			t.Errorf("mode %#o: left as %v, %v", mode, info.Mode(), err)
		}
	}
}
