package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// Deps are what a coordinator needs from its process.
type Deps struct {
	Logger *slog.Logger
	// Registerer takes the metrics; nil: nobody reads them.
	Registerer prometheus.Registerer
}

// Coordinator is one running coordinator.
type Coordinator struct {
	cfg      Config
	logger   *slog.Logger
	metrics  *metrics
	state    *state.State
	node     *raftNode
	links    *linkSet
	identity *pki.Identity
	assigns  keyLock
	handler  http.Handler
	inFlight atomic.Int64
	closing  atomic.Bool
	endTasks func()
}

// transferTasks are what runs on the leader for transfers and workspaces that move.
func (c *Coordinator) transferTasks() []func(context.Context) {
	return []func(context.Context){c.keepGrantKeys, c.directTransfers, c.replicate, c.moveWorkspaces}
}

// New opens the state in cfg.DataDir and returns once this coordinator leads
// and has applied everything that was committed, so that it answers calls at
// once. The caller must Close it.
func New(ctx context.Context, cfg Config, deps Deps) (*Coordinator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c := &Coordinator{cfg: cfg, logger: deps.Logger, metrics: newMetrics(deps.Registerer), state: state.New()}
	var err error
	if c.identity, err = pki.Open(filepath.Join(cfg.DataDir, identityDir)); err != nil {
		return nil, err
	}
	node, err := openRaft(cfg, c.state, c.metrics, deps.Logger)
	if err != nil {
		return nil, err
	}
	c.node = node
	if err := errors.Join(c.lead(ctx), c.initAuthority(ctx)); err != nil {
		return nil, errors.Join(err, node.close())
	}
	c.links = newLinkSet()
	c.handler = c.routes()
	c.metrics.watch(c)
	c.expectRunners()
	c.startTasks()
	return c, nil
}

// lead waits for leadership and names the cluster on its first start.
func (c *Coordinator) lead(ctx context.Context) error {
	if err := c.node.awaitLeader(ctx); err != nil {
		return err
	}
	if c.state.Read().Cluster().GetClusterId() != "" {
		return nil
	}
	id := c.identity.Leaf().Cluster
	if id == "" {
		id = ids.New(ids.Cluster, 0, time.Now()).String()
	}
	_, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_InitCluster{
		InitCluster: &raftlogv1.InitCluster{ClusterId: id}}})
	if err != nil {
		return fmt.Errorf("name the cluster: %w", err)
	}
	return nil
}

func (c *Coordinator) name() string { return c.cfg.Name }

// ClusterID names the cluster for ever.
func (c *Coordinator) ClusterID() string { return c.state.Read().Cluster().GetClusterId() }

// Handler answers the API, the runners' links, /healthz and /readyz.
func (c *Coordinator) Handler() http.Handler { return c.handler }

// Ready reports whether calls succeed: this coordinator leads and is not closing.
func (c *Coordinator) Ready() bool { return !c.closing.Load() && c.node.leading() }

// RunnersUp is the number of runners with a live link.
func (c *Coordinator) RunnersUp() int { return c.links.count() }

// Close stops in order: no new calls, links ended, state closed. The HTTP
// server in front must have stopped before; Serve sees to that. Runners are not
// marked down, since they dial the next coordinator.
func (c *Coordinator) Close(ctx context.Context) error {
	if c.closing.Swap(true) {
		return nil
	}
	c.endTasks()
	err := c.links.close(ctx)
	return errors.Join(err, c.node.close())
}

func (c *Coordinator) startTasks() {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for _, task := range c.transferTasks() {
		work.Go(func() { task(ctx) })
	}
	c.endTasks = func() { cancel(); work.Wait() }
}
