package coordinator

import (
	"testing"
	"time"

	"skerry.internal/proto/problem"
)

func TestAdmissionBoundsLinksBeingOpened(t *testing.T) {
	a := newAdmission(2, 10*time.Millisecond)
	first, err := a.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = a.enter(t.Context())
	if got := problem.Of(err); got.GetReason() != problem.LimitExceeded || !got.GetRetryable() {
		t.Errorf("a third: %v", err)
	}
	first()
	first() // once is enough
	if _, err := a.enter(t.Context()); err != nil {
		t.Errorf("after one has left: %v", err)
	}
	if _, err := a.enter(t.Context()); err == nil {
		t.Error("leaving twice made room for two")
	}
}
