package upkeep

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/proto/problem"
)

// spaceWatch knows how much room is left. What it read counts for spaceTTL, so
// that asking costs a busy runner nothing.
type spaceWatch struct {
	keeper *Keeper

	mu   sync.Mutex
	read time.Time
	now  space
}

const spaceTTL = time.Second

// space is the room that is left, in bytes and inodes.
type space struct {
	free, inodes int64
	stored       int64 // bytes of the store's packs
	objects      int64 // in the store
}

func (s *spaceWatch) get(ctx context.Context) (space, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.read.IsZero() && time.Since(s.read) < spaceTTL {
		return s.now, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.keeper.dir, &fs); err != nil {
		return space{}, fmt.Errorf("free space: %w", err)
	}
	now := space{free: int64(min(fs.Bavail, math.MaxInt64/uint64(fs.Bsize)) * uint64(fs.Bsize)), inodes: int64(min(fs.Ffree, math.MaxInt64))}
	if fs.Files == 0 { // a file system that makes inodes as it needs them
		now.inodes = math.MaxInt64
	}
	if s.keeper.cfg.MaxBytes > 0 || s.keeper.cfg.MaxObjects > 0 {
		stats, err := s.keeper.store.Stats(ctx)
		if err != nil {
			return space{}, fmt.Errorf("size of the store: %w", err)
		}
		now.stored, now.objects = stats.PackBytes, stats.Objects
	}
	s.now, s.read = now, time.Now()
	s.keeper.metrics.free.Set(float64(now.free))
	return now, nil
}

// forget makes the next get read anew.
func (s *spaceWatch) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = time.Time{}
}

// tight reports that a collection should make room: well before work is refused.
func (s *spaceWatch) tight(ctx context.Context) bool {
	now, err := s.get(ctx)
	if err != nil {
		return false // Admit tells
	}
	cfg := &s.keeper.cfg
	near := func(have, most int64) bool { return most > 0 && have > most-most/10 }
	return (cfg.MinFree > 0 && now.free < cfg.MinFree+cfg.MinFree/2) || near(now.stored, cfg.MaxBytes) || near(now.objects, cfg.MaxObjects)
}

// Admit refuses new work when the host has too little room for it: a typed,
// retryable error that says which limit.
func (k *Keeper) Admit(ctx context.Context) error {
	now, err := k.space.get(ctx)
	if err != nil {
		return err
	}
	limit := ""
	switch cfg := &k.cfg; {
	case cfg.MinFree > 0 && now.free < cfg.MinFree:
		limit = fmt.Sprintf("%d bytes kept free on the runner's disk (store.min_free)", cfg.MinFree)
	case cfg.MinFreeInodes > 0 && now.inodes < cfg.MinFreeInodes:
		limit = fmt.Sprintf("%d inodes kept free on the runner's disk (store.min_free_inodes)", cfg.MinFreeInodes)
	case cfg.MaxBytes > 0 && now.stored > cfg.MaxBytes:
		limit = fmt.Sprintf("%d bytes of the runner's store (store.max_bytes)", cfg.MaxBytes)
	case cfg.MaxObjects > 0 && now.objects > cfg.MaxObjects:
		limit = fmt.Sprintf("%d objects in the runner's store (store.max_objects)", cfg.MaxObjects)
	default:
		return nil
	}
	k.metrics.refused.Inc()
	e := problem.New(connect.CodeResourceExhausted, problem.LimitExceeded,
		"wait for the runner to collect what is older than the snapshots it keeps, use another runner, or ask its operator for room",
		"the runner has no room for new work: it passes the limit of %s", limit).Retry()
	e.Limit = limit
	return e
}
