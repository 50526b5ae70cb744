// Package reapi serves the store's blobs by the Remote Execution API v2: the
// ContentAddressableStorage, ByteStream and Capabilities services, for build
// tools that share outputs and for programs that move files by digest.
//
// It is a cache of its own inside the store. A client sees what clients put,
// and nothing of workspaces, environments or snapshots; digests of those are as
// unknown as any other. Blobs share storage with the rest of the store where
// their bytes are equal. The least recently used ones go when the cache is full.
package reapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	bspb "google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc"

	"skerry.internal/cas"
)

// Config bounds the cache.
type Config struct {
	// MaxBytes and MaxBlobs bound what is kept; over them the least recently used
	// blobs go. 0: 64 GiB and 1 million.
	MaxBytes, MaxBlobs int64
	// MaxBlobBytes bounds one blob; 0: 16 GiB. It is at most 90 % of MaxBytes.
	MaxBlobBytes int64
	// FlushEvery is how often what was put is made durable and kept from
	// collections; 0: 10 s. A crash may lose what came after the last time:
	// clients are told that it is missing and put it again.
	FlushEvery time.Duration
	// WriteIdle is how long a write may wait for its client's next message; 0: 1 min.
	WriteIdle time.Duration
	// Admit refuses new blobs when the host has no room. May be nil.
	Admit func(context.Context) error
}

func (c Config) withDefaults() Config {
	orDefault := func(n *int64, otherwise int64) {
		if *n <= 0 {
			*n = otherwise
		}
	}
	orDefault(&c.MaxBytes, 64<<30)
	orDefault(&c.MaxBlobs, 1_000_000)
	orDefault(&c.MaxBlobBytes, 16<<30)
	c.MaxBlobBytes = min(c.MaxBlobBytes, c.MaxBytes-c.MaxBytes/10) // what an eviction leaves: a larger one would push itself out
	if c.WriteIdle <= 0 {
		c.WriteIdle = time.Minute
	}
	if c.FlushEvery <= 0 {
		c.FlushEvery = 10 * time.Second
	}
	return c
}

const (
	// maxBatch bounds the blobs of one batch call together. gRPC clients take
	// messages of 4 MiB unless told otherwise; the rest is for digests.
	maxBatch = 4<<20 - 256<<10
	// maxMessage bounds a request.
	maxMessage = 4 << 20
	// maxDigests bounds the digests of one request.
	maxDigests = 50_000
)

// Service serves one store, which it does not own. Its owner calls Register,
// and Close when the server has stopped.
type Service struct {
	repb.UnimplementedContentAddressableStorageServer
	repb.UnimplementedCapabilitiesServer
	bspb.UnimplementedByteStreamServer

	store *cas.Store
	cfg   Config
	log   *slog.Logger
	blobs *catalog

	stop chan struct{}
	done sync.WaitGroup
}

// New takes up the cache that an earlier Service left in the store.
func New(ctx context.Context, store *cas.Store, cfg Config, log *slog.Logger) (*Service, error) {
	cfg = cfg.withDefaults()
	s := &Service{store: store, cfg: cfg, log: log, blobs: newCatalog(store, cfg, time.Now), stop: make(chan struct{})}
	if err := s.blobs.load(ctx, log); err != nil {
		return nil, fmt.Errorf("reapi: %w", err)
	}
	s.done.Go(s.flushLoop)
	return s, nil
}

// Register adds the services to a gRPC server.
func (s *Service) Register(g *grpc.Server) {
	repb.RegisterContentAddressableStorageServer(g, s)
	repb.RegisterCapabilitiesServer(g, s)
	bspb.RegisterByteStreamServer(g, s)
}

// Close makes durable what was put.
func (s *Service) Close() error {
	close(s.stop)
	s.done.Wait()
	return s.blobs.flush(context.Background())
}

func (s *Service) flushLoop() {
	tick := time.NewTicker(s.cfg.FlushEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		if err := s.blobs.flush(context.Background()); err != nil && !errors.Is(err, cas.ErrClosed) {
			s.log.Error("remote cache not made durable", "err", err)
		}
	}
}
