package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// errStalled keeps a leader whose disk does not answer from holding the others
// back.
var errStalled = errors.New("this coordinator's disk does not take the log")

// stall knows whether this coordinator's log is being written to for too long.
type stall struct {
	timeout time.Duration
	// Start of the write under way, in nanoseconds after began; 0: none. The wall
	// clock may jump.
	began   time.Time
	since   atomic.Int64
	stalled atomic.Bool
	// Told of each change of stalled.
	changed chan struct{}
}

func newStall(timeout time.Duration) *stall {
	return &stall{began: time.Now(), timeout: timeout, changed: make(chan struct{}, 1)}
}

// update looks at the clock and reports whether stalled has changed.
func (s *stall) update(now time.Time) bool {
	since := s.since.Load()
	stalled := since != 0 && now.Sub(s.began)-time.Duration(since) > s.timeout
	if s.stalled.Swap(stalled) == stalled {
		return false
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return true
}

// run watches until ctx ends. giveWay is called when a stall begins; it must
// not wait.
func (s *stall) run(ctx context.Context, logger *slog.Logger, giveWay func()) {
	tick := time.NewTicker(s.timeout / 8)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if !s.update(now) {
				continue
			}
		}
		if s.stalled.Load() {
			logger.ErrorContext(ctx, "the disk does not take the log", "for", s.timeout)
			giveWay()
		} else {
			logger.WarnContext(ctx, "the disk takes the log again")
		}
	}
}

// watchedLog tells stall of each write.
type watchedLog struct {
	raft.LogStore
	stall *stall
}

// StoreLog implements raft.LogStore.
func (l watchedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. Only Raft's own goroutine calls it.
func (l watchedLog) StoreLogs(entries []*raft.Log) error {
	l.stall.since.Store(max(1, int64(time.Since(l.stall.began))))
	defer l.stall.since.Store(0)
	return l.LogStore.StoreLogs(entries)
}

// givingTransport sends nothing that would keep the others from electing a
// leader while this one is stalled: its heartbeats need no disk (F44).
type givingTransport struct {
	*raft.NetworkTransport
	stall *stall
}

var (
	_ raft.Transport   = givingTransport{}
	_ raft.WithPreVote = givingTransport{}
	_ raft.WithClose   = givingTransport{}
)

// AppendEntries implements raft.Transport.
func (t givingTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.stall.stalled.Load() {
		return errStalled
	}
	return t.NetworkTransport.AppendEntries(id, target, args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (t givingTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if t.stall.stalled.Load() {
		return nil, errStalled
	}
	pipeline, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return givingPipeline{pipeline, t.stall}, nil
}

type givingPipeline struct {
	raft.AppendPipeline
	stall *stall
}

// AppendEntries implements raft.AppendPipeline.
func (p givingPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.stall.stalled.Load() {
		return nil, errStalled
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}
