// Package upkeep keeps the content store of a runner in order while it works:
// it collects what nothing needs any more, reads everything again at a set
// rate to find damage early, and refuses new work before the disk is full.
package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
)

// Config is what an operator may choose.
type Config struct {
	// CollectEvery is the time between two collections; 0: collections happen
	// under pressure only.
	CollectEvery time.Duration
	// KeepSnapshots is how many of its latest snapshots each workspace keeps; 0
	// keeps all. MinSnapshots is how many when space is short. Each at least 2:
	// the latest and what it is compared with.
	KeepSnapshots, MinSnapshots int
	// ScrubEvery is the time between two full readings of the store; 0: never.
	ScrubEvery time.Duration
	// ScrubRate bounds a reading, in bytes a second; 0: unbounded.
	ScrubRate int64
	// MaxBytes bounds the store's packs on disk, MaxObjects their objects; 0: no
	// bound.
	MaxBytes, MaxObjects int64
	// MinFree is how many bytes of the data directory's file system stay free;
	// MinFreeInodes is how many inodes do. 0: no bound.
	MinFree, MinFreeInodes int64
}

// Record keeps small values over a restart.
type Record interface {
	// Meta gives "" for a key that was never set.
	Meta(ctx context.Context, key string) (string, error)
	SetMeta(ctx context.Context, values map[string]string) error
}

const (
	metaCollected = "store_collected"
	metaScrubbed  = "store_scrubbed"
	// checkEvery is how often the keeper looks at the disk.
	checkEvery = 5 * time.Second
	// pressureEvery bounds how often a full disk starts a collection: one that
	// freed nothing frees nothing a moment later.
	pressureEvery = time.Minute
)

// Keeper does the upkeep of one store, which it does not own.
type Keeper struct {
	store   *cas.Store
	record  Record
	dir     string
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	cancel context.CancelFunc
	done   sync.WaitGroup
	space  spaceWatch
}

// New makes a keeper of the store that lies on dir's file system. Nothing
// happens before Start.
func New(store *cas.Store, record Record, dir string, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Keeper {
	k := &Keeper{store: store, record: record, dir: dir, cfg: cfg, log: log, metrics: newMetrics(reg)}
	k.space = spaceWatch{keeper: k}
	return k
}

// Start begins the work, until Close.
func (k *Keeper) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.done.Go(func() { k.collectLoop(ctx) })
	if k.cfg.ScrubEvery > 0 {
		k.done.Go(func() { k.scrubLoop(ctx) })
	}
}

// Close ends the work and waits for it. Interrupted work leaves the store whole.
func (k *Keeper) Close() {
	if k.cancel != nil {
		k.cancel()
	}
	k.done.Wait()
}

func (k *Keeper) collectLoop(ctx context.Context) {
	last := k.lastTime(ctx, metaCollected, k.metrics.collected)
	if last.IsZero() { // a new store: the first period begins now
		last = time.Now()
		k.remember(ctx, metaCollected, last)
	}
	tick := time.NewTicker(k.tick())
	defer tick.Stop()
	var tried time.Time
	for {
		tight := k.space.tight(ctx)
		due := k.cfg.CollectEvery > 0 && time.Since(last) >= k.cfg.CollectEvery
		if (due || tight) && time.Since(tried) >= k.cfg.pause() {
			tried = time.Now()
			if k.collect(ctx, tight) {
				last = tried
				k.setTime(ctx, metaCollected, last, k.metrics.collected)
			}
			k.space.forget()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pause is the least time between two tries.
func (c *Config) pause() time.Duration {
	if c.CollectEvery > 0 {
		return min(pressureEvery, c.CollectEvery)
	}
	return pressureEvery
}

// tick is how often the loop looks: a short period is kept too.
func (k *Keeper) tick() time.Duration {
	if k.cfg.CollectEvery > 0 {
		return min(checkEvery, max(k.cfg.CollectEvery, 100*time.Millisecond))
	}
	return checkEvery
}

// collect runs one collection; when space is short, with less history kept and
// two more passes: one finds what was written since the last, one empties the
// trash.
func (k *Keeper) collect(ctx context.Context, tight bool) bool {
	keep, passes := k.cfg.KeepSnapshots, 1
	if tight {
		keep, passes = k.cfg.MinSnapshots, 3
	}
	for range passes {
		rep, err := k.store.GC(ctx, cas.GCOptions{Keep: func(string) int { return keep }})
		if ctx.Err() != nil {
			return false
		}
		k.metrics.collection(rep, err)
		if err != nil {
			k.log.Error("collection failed", "err", err)
			return false
		}
		k.log.Info("collection ended", "kept", rep.Kept, "removed", rep.Removed, "bytes_freed", rep.BytesFreed, "bytes_moved", rep.BytesMoved,
			"seconds", rep.Duration.Seconds(), "space_short", tight, "snapshots_kept", keep)
	}
	return true
}

func (k *Keeper) scrubLoop(ctx context.Context) {
	last := k.lastTime(ctx, metaScrubbed, k.metrics.scrubbed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(last.Add(k.cfg.ScrubEvery))):
		}
		began := time.Now()
		last = began // also after a failure: the next try is a period away
		if k.scrub(ctx) {
			k.setTime(ctx, metaScrubbed, began, k.metrics.scrubbed)
		}
	}
}

func (k *Keeper) scrub(ctx context.Context) bool {
	var before cas.ScrubProgress
	_, err := k.store.Scrub(ctx, cas.ScrubOptions{BytesPerSecond: k.cfg.ScrubRate, Progress: func(p cas.ScrubProgress) {
		k.metrics.scrubBytes.Add(float64(p.Bytes - before.Bytes))
		k.metrics.damaged.Add(float64(p.Damaged - before.Damaged))
		before = p
		if p.Last != nil {
			k.log.Error("the store has a damaged record", "object", p.Last.Digest.String(), "pack", p.Last.Pack, "offset", p.Last.Offset, "reason", p.Last.Reason)
		}
	}})
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		k.log.Error("scrub failed", "err", err)
		return false
	}
	k.log.Info("scrub ended", "records", before.Records, "bytes", before.Bytes, "damaged", before.Damaged)
	return true
}

// lastTime reads when something was last done. A record that cannot be read
// only makes it be done again.
func (k *Keeper) lastTime(ctx context.Context, key string, gauge prometheus.Gauge) time.Time {
	text, err := k.record.Meta(ctx, key)
	if err != nil && !errors.Is(err, context.Canceled) {
		k.log.Warn("time of the last upkeep not readable", "key", key, "err", err)
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.After(time.Now()) {
		return time.Time{}
	}
	gauge.Set(float64(t.Unix()))
	return t
}

func (k *Keeper) setTime(ctx context.Context, key string, t time.Time, gauge prometheus.Gauge) {
	gauge.Set(float64(t.Unix()))
	k.remember(ctx, key, t)
}

func (k *Keeper) remember(ctx context.Context, key string, t time.Time) {
	if err := k.record.SetMeta(ctx, map[string]string{key: t.UTC().Format(time.RFC3339)}); err != nil && ctx.Err() == nil {
		k.log.Warn("time of the upkeep not recorded", "key", key, "err", err)
	}
}
