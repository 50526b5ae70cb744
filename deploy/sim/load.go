package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// latencies of calls that were made one after the other.
type latencies struct {
	took []time.Duration
	err  error
}

// at gives a quantile.
func (l *latencies) at(q float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l.took))
	return sorted[int(q*float64(len(sorted)-1))]
}

// steadily calls do every so often from several callers for a while, whether or
// not earlier calls have ended, as long as not too many are waiting.
func steadily(ctx context.Context, length, every time.Duration, do func(n int) error) *latencies {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	out := &latencies{}
	var mu sync.Mutex
	var calls sync.WaitGroup
	tick := time.NewTicker(every)
	defer tick.Stop()
	slots := make(chan struct{}, 64)
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			calls.Wait()
			return out
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		calls.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			err := do(n)
			mu.Lock()
			defer mu.Unlock()
			out.took = append(out.took, time.Since(began))
			if err != nil && out.err == nil {
				out.err = err
			}
		})
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// assign has agents without a workspace make their first call, and gives calls a second.
func (s *sim) assign(ctx context.Context, at *daemon, named bool, callers int, length time.Duration) (float64, error) {
	var done, next atomic.Int64
	var failed atomic.Pointer[error]
	next.Store(int64(s.nextNew))
	began := time.Now()
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for time.Since(began) < length && failed.Load() == nil {
				n := int(next.Add(1)) - 1
				if n >= s.world.fresh {
					return
				}
				if err := s.firstCall(ctx, at, n, named); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	work.Wait()
	took := time.Since(began)
	s.nextNew = int(next.Load())
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / took.Seconds(), nil
}

func (s *sim) firstCall(ctx context.Context, at *daemon, n int, named bool) error {
	c := rpc.NewFileServiceClient(s.client(s.tokens[freshName(n)]), at.endpoint())
	req := &skerryv1.ListFilesRequest{}
	if named {
		req.Workspace = &skerryv1.WorkspaceSelector{Runner: runnerName(1 + n%(s.world.runners-1))}
	}
	if _, err := c.ListFiles(ctx, connect.NewRequest(req)); err != nil {
		return fmt.Errorf("first call of %s: %w", freshName(n), err)
	}
	return nil
}
