package upkeep

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type memory struct {
	mu     sync.Mutex
	values map[string]string
}

func (m *memory) Meta(_ context.Context, key string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key], nil
}

func (m *memory) SetMeta(_ context.Context, values map[string]string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, v := range values {
		m.values[k] = v
	}
	return nil
}

type bed struct {
	*Keeper
	record *memory
	dir    string
	tree   string
}

func newBed(t *testing.T, cfg Config) *bed {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	store, err := cas.Open(t.Context(), filepath.Join(dir, "cas"), cas.Config{Logger: log, MaxPackBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{dir: dir, tree: filepath.Join(dir, "tree"), record: &memory{values: map[string]string{}}}
	b.Keeper = New(store, b.record, dir, cfg, log, prometheus.NewRegistry())
	t.Cleanup(func() {
		b.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// commits makes n commits of a head, each with a file of 100 kB that no other has.
func (b *bed) commits(t *testing.T, n int) {
	t.Helper()
	if err := os.MkdirAll(b.tree, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(b.tree)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	head, _ := b.store.Head(t.Context(), "h")
	for range n {
		content := make([]byte, 100_000)
		_, _ = rand.NewChaCha8([32]byte{byte(head.Seq)}).Read(content)
		if err := os.WriteFile(b.tree+"/f", content, 0o644); err != nil {
			t.Fatal(err)
		}
		shot, err := b.store.Snapshot(t.Context(), dir, cas.SnapshotOptions{CacheKey: "h"})
		if err != nil {
			t.Fatal(err)
		}
		if head, err = b.store.Commit(t.Context(), cas.CommitRequest{Head: "h", Expect: head.Commit, Epoch: 1, Tree: shot.Tree, Source: "test:", Stats: shot.TreeStats}); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits for a condition that a background goroutine brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still not:", what)
		}
	}
}

func TestCollectionsKeepTheLatestSnapshots(t *testing.T) {
	b := newBed(t, Config{KeepSnapshots: 3, MinSnapshots: 2})
	b.commits(t, 10)
	for range 3 {
		if !b.collect(t.Context(), false) {
			t.Fatal("collection failed")
		}
	}
	head, err := b.store.Head(t.Context(), "h")
	if err != nil {
		t.Fatal(err)
	}
	log, err := b.store.Log(t.Context(), head.Commit, 0)
	if err != nil || len(log) != 3 {
		t.Fatalf("%d commits kept, %v", len(log), err)
	}
	if !b.collect(t.Context(), true) {
		t.Fatal("collection failed")
	}
	if log, err = b.store.Log(t.Context(), head.Commit, 0); err != nil || len(log) != 2 {
		t.Fatalf("%d commits kept when space is short, %v", len(log), err)
	}
	if n := testutil.ToFloat64(b.metrics.collections.WithLabelValues("ok")); n != 6 {
		t.Fatalf("%v collections counted", n)
	}
	if testutil.ToFloat64(b.metrics.removed) == 0 {
		t.Fatal("no removed object counted")
	}
}

func TestCollectionsHappenWhenTheyAreDue(t *testing.T) {
	b := newBed(t, Config{CollectEvery: time.Hour, KeepSnapshots: 2, MinSnapshots: 2})
	old := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	b.record.values[metaCollected] = old
	b.commits(t, 2)
	b.Start()
	eventually(t, "collected", func() bool {
		at, _ := b.record.Meta(t.Context(), metaCollected)
		return at != old && testutil.ToFloat64(b.metrics.collections.WithLabelValues("ok")) == 1
	})
}

func TestANewStoreIsNotCollectedAtOnce(t *testing.T) {
	b := newBed(t, Config{CollectEvery: time.Hour, MinSnapshots: 2})
	b.Start()
	eventually(t, "recorded", func() bool { at, _ := b.record.Meta(t.Context(), metaCollected); return at != "" })
	b.Close()
	if n := testutil.ToFloat64(b.metrics.collections.WithLabelValues("ok")); n != 0 {
		t.Fatalf("%v collections", n)
	}
}

// A full disk starts no collection after the other, also where none is due.
func TestPressureIsBounded(t *testing.T) {
	for every, want := range map[time.Duration]time.Duration{0: pressureEvery, time.Hour: pressureEvery, time.Second: time.Second} {
		if got := (&Config{CollectEvery: every}).pause(); got != want {
			t.Errorf("collections every %s: %s between tries, want %s", every, got, want)
		}
	}
}

func TestScrubFindsDamage(t *testing.T) {
	b := newBed(t, Config{ScrubEvery: time.Hour, MinSnapshots: 2})
	b.commits(t, 15) // more than one pack
	packs, err := filepath.Glob(b.dir + "/cas/packs/*.pack")
	if err != nil || len(packs) < 2 {
		t.Fatal(packs, err)
	}
	f, err := os.OpenFile(packs[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	if _, err := f.ReadAt(one, 5000); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{one[0] ^ 1}, 5000); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b.Start()
	eventually(t, "scrubbed", func() bool { return testutil.ToFloat64(b.metrics.scrubbed) > 0 })
	if n := testutil.ToFloat64(b.metrics.damaged); n != 1 {
		t.Fatalf("%v damaged records counted", n)
	}
	if n := testutil.ToFloat64(b.metrics.scrubBytes); n < 1<<20 {
		t.Fatalf("%v bytes counted", n)
	}
}

func TestWorkIsRefusedWithoutRoom(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   Config
		limit string
	}{
		"free":    {Config{MinFree: 1 << 60}, "store.min_free"},
		"inodes":  {Config{MinFreeInodes: 1 << 60}, "store.min_free_inodes"},
		"store":   {Config{MaxBytes: 50_000}, "store.max_bytes"},
		"objects": {Config{MaxObjects: 3}, "store.max_objects"},
		"room":    {Config{MinFree: 1, MinFreeInodes: 1, MaxBytes: 1 << 40, MaxObjects: 1 << 40}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.MinSnapshots = 2
			b := newBed(t, c.cfg)
			b.commits(t, 2)
			err := b.Admit(t.Context())
			if c.limit == "" {
				if err != nil || b.space.tight(t.Context()) {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			p := problem.Of(err)
			if p.GetReason() != problem.LimitExceeded || !p.GetRetryable() || !strings.Contains(p.GetLimit(), c.limit) {
				t.Fatalf("%v, want a refusal by %s", err, c.limit)
			}
			if n := testutil.ToFloat64(b.metrics.refused); n != 1 {
				t.Fatalf("%v refusals counted", n)
			}
		})
	}
}

// The store is over its bound with history that need not be kept: a collection
// for lack of space makes room without being due.
func TestPressureMakesRoom(t *testing.T) {
	b := newBed(t, Config{MaxBytes: 900_000, MinSnapshots: 2})
	b.commits(t, 20)
	if b.Admit(t.Context()) == nil {
		t.Fatal("a store of 2 MB is admitted with a bound of 900 kB")
	}
	b.Start()
	eventually(t, "room", func() bool { b.space.forget(); return b.Admit(t.Context()) == nil })
}
