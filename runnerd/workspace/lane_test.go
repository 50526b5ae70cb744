package workspace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestLaneAdmitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lane{}
		var order []int
		done := make(chan struct{})
		for i := range 20 {
			ticket, err := l.take(false)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer func() { done <- struct{}{} }()
				defer ticket.Release()
				if err := ticket.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond) // synthetic clock: widens the window for a second writer
				order = append(order, i)
			}()
		}
		for range 20 {
			<-done
		}
		for i, got := range order {
			if got != i {
				t.Fatalf("order %v", order)
			}
		}
	})
}

func TestLaneGivingUpAPlaceAdmitsTheNext(t *testing.T) {
	l := &lane{most: 3}
	a, _ := l.take(false)
	b, _ := l.take(false)
	c, _ := l.take(false)
	if _, err := l.take(false); !errors.Is(err, ErrQueueFull) {
		t.Fatalf("fourth ticket: %v, want ErrQueueFull", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("b.Wait = %v", err)
	}
	if b.Position() != 1 || c.Position() != 2 {
		t.Fatalf("positions %d %d", b.Position(), c.Position())
	}
	b.Release()
	a.Release()
	a.Release()
	if err := c.Wait(t.Context()); err != nil || c.Position() != 0 {
		t.Fatalf("c: %v, position %d", err, c.Position())
	}
	if b.Position() != -1 {
		t.Fatal("a released ticket has a position")
	}
}
