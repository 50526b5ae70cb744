package runnerd

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// endRetry is the time between two attempts to remove what is left of a sandbox.
const endRetry = 5 * time.Second

// ends removes what is left of ended sandboxes, off the way of those who wait
// for the execution: nothing of it is alive, and a container runtime that is
// away is waited for. What is not done when the daemon stops, the next one's
// sweep does.
type ends struct {
	end    func(ctx context.Context, id string) error
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // lifetime of the goroutines below
	cancel context.CancelFunc
	closed chan struct{}
	wg     sync.WaitGroup
}

func newEnds(end func(ctx context.Context, id string) error, log *slog.Logger) *ends {
	e := &ends{end: end, log: log, closed: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

func (e *ends) add(id string) {
	e.until("sandbox not removed", func() error { return e.end(e.ctx, id) }, "execution", id)
}

// until repeats what fails, and logs each failure as the message with the attributes.
func (e *ends) until(message string, remove func() error, attributes ...any) {
	e.wg.Go(func() {
		for {
			err := remove()
			if err == nil || e.ctx.Err() != nil {
				return
			}
			e.log.Warn(message, append(attributes, "err", err)...)
			select {
			case <-e.closed:
				return
			case <-time.After(endRetry):
			}
		}
	})
}

// endGrace is how long close waits for removals that are on their way.
const endGrace = 5 * time.Second

// close begins nothing anew and lets go of what takes too long.
func (e *ends) close() {
	close(e.closed)
	defer time.AfterFunc(endGrace, e.cancel).Stop()
	e.wg.Wait()
	e.cancel()
}
