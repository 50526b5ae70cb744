package coordinator

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

const (
	// Links that are being opened at once. When thousands of runners dial a new
	// leader together, some are up soon, instead of all running into time-outs.
	opensAtOnce = 64
	// How long a runner waits for its turn, well under what it gives a dial;
	// afterwards it backs off.
	openWait = 5 * time.Second
)

// admission bounds how many links are being opened.
type admission struct {
	slots chan struct{}
	wait  time.Duration
}

func newAdmission(most int, wait time.Duration) *admission {
	return &admission{slots: make(chan struct{}, most), wait: wait}
}

// enter waits for a turn. leave ends it, as often as it is called.
func (a *admission) enter(ctx context.Context) (leave func(), err error) {
	timer := time.NewTimer(a.wait)
	defer timer.Stop()
	select {
	case a.slots <- struct{}{}:
		return sync.OnceFunc(func() { <-a.slots }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, problem.New(connect.CodeUnavailable, problem.LimitExceeded, "dial again a little later",
			"%d other links are being opened", cap(a.slots)).Retry()
	}
}
