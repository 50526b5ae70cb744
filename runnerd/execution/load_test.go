package execution

import (
	"testing"
	"time"

	"skerry.internal/runnerd/workspace"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Who watches the workspaces is told that an execution is not counted any more:
// a runner on which nothing runs must not look busy until the next one.
func TestLoadIsToldWhenAnExecutionHasEnded(t *testing.T) {
	b := newBed(t)
	told := make(chan int, 100)
	go func() {
		_ = b.workspaces.Watch(t.Context(), func([]*workspace.Workspace) error {
			running, queued := b.engine.Load()
			told <- running + queued
			return nil
		})
	}()
	<-told
	id, err := b.engine.Submit(t.Context(), b.w, &skerryv1.Execution{Agent: "a"}, Launch{Argv: []string{"true"}}, &skerryv1.RunShellRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.engine.AwaitEnd(t.Context(), "a", id); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(10 * time.Second)
	for last := -1; last != 0; {
		select {
		case last = <-told:
		case <-timeout:
			t.Fatalf("last told %d", last)
		}
	}
}
