package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Deps are what a coordinator needs from its process.
type Deps struct {
	Logger *slog.Logger
	// Registerer takes the metrics; nil: nobody reads them.
	Registerer prometheus.Registerer
	// Version of the program, which the other coordinators are told; runners too far
	// from it are flagged or refused.
	Version string

	hooks hooks
}

// hooks let tests stand between a coordinator and its disk and network.
type hooks struct {
	dial    dialFunc
	wrapLog func(raft.LogStore) raft.LogStore
	// listener of Raft; nil: one on cluster.listen is opened.
	listener net.Listener
	// command is the highest command version that the program claims to know;
	// nil: state.HighestCommand.
	command *atomic.Uint32
	// wait is how long a call waits for a leader; 0: leaderWait.
	wait time.Duration
}

func (h hooks) leaderWait() time.Duration {
	if h.wait > 0 {
		return h.wait
	}
	return leaderWait
}

func (h hooks) dialer() dialFunc {
	if h.dial != nil {
		return h.dial
	}
	return (&net.Dialer{KeepAlive: proxyPing}).DialContext
}

func (h hooks) highestCommand() uint32 {
	if h.command != nil {
		return h.command.Load()
	}
	return state.HighestCommand
}

// Coordinator is one running coordinator.
type Coordinator struct {
	cfg      Config
	logger   *slog.Logger
	metrics  *metrics
	version  string
	hooks    hooks
	state    *state.State
	node     *raftNode
	links    *linkSet
	identity *pki.Identity
	assigns  keyLock
	calls    callSet
	shares   shareSet
	seen     seenEnds
	handler  http.Handler
	inFlight atomic.Int64
	closing  atomic.Bool
	// A stop has tried to hand leadership over.
	handedOver atomic.Bool

	// nil while this coordinator does not answer calls itself.
	tenure atomic.Pointer[tenure]
	// Makes leadership begin anew.
	restart chan struct{}
	// Changes of members come one after the other.
	membership keyLock
	// Ways to the other coordinators, and what is under way on them.
	peers, peersHTTP1 *http.Transport
	relayed           relays
	// Closed when this coordinator was removed from the cluster.
	removed chan struct{}
	gone    sync.Once

	background context.Context // ends with Close; what runs beside all calls
	stop       context.CancelFunc
	work       sync.WaitGroup
}

// New opens the state in cfg.DataDir. A lone coordinator leads when New returns,
// and has applied everything that was committed, so that it answers calls at
// once. A member of a cluster does not wait for a leader: Serve says NOT_LEADER
// until there is one. The caller must Close it.
func New(ctx context.Context, cfg Config, deps Deps) (*Coordinator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c := &Coordinator{cfg: cfg.withDefaults(), logger: deps.Logger, metrics: newMetrics(deps.Registerer), version: deps.Version, hooks: deps.hooks,
		state: state.NewReplicating(cfg.Replication.Policy != skerryv1.ReplicateNone), links: newLinkSet(), restart: make(chan struct{}, 1), removed: make(chan struct{})}
	var err error
	if c.identity, err = pki.Open(filepath.Join(cfg.DataDir, identityDir)); err != nil {
		return nil, err
	}
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	c.peers, c.peersHTTP1 = c.peerTransport(true), c.peerTransport(false)
	if err := c.open(); err != nil {
		return nil, err
	}
	c.start()
	if c.node.lone {
		if err := c.awaitTenure(ctx); err != nil {
			return nil, errors.Join(err, c.shut(context.WithoutCancel(ctx)))
		}
	}
	return c, nil
}

// enter gets a member of a cluster the certificate that it needs to speak with
// the others, when it has none.
func (c *Coordinator) enter(ctx context.Context) error {
	switch k := c.cfg.Cluster; {
	case !k.Enabled() || c.identity.Ready():
		return nil
	case k.Bootstrap:
		return found(filepath.Join(c.cfg.DataDir, identityDir), c.cfg.Name, c.cfg.hosts(), c.identity)
	case len(k.Join) > 0:
		return c.join(ctx)
	}
	return errors.New("data_dir is empty: set cluster.bootstrap to make a cluster, or cluster.join to enter one")
}

func (c *Coordinator) open() error {
	peers := peering{identity: c.identity, dial: c.hooks.dialer(), admit: c.admitRaft, listener: c.hooks.listener}
	if c.cfg.Cluster.Enabled() && peers.listener == nil {
		var err error
		if peers.listener, err = net.Listen("tcp", c.cfg.Cluster.Listen); err != nil {
			return fmt.Errorf("listen for the other coordinators: %w", err)
		}
	}
	node, err := openRaft(c.cfg, c.state, c.metrics, c.logger, peers, c.hooks)
	if err != nil {
		return err
	}
	c.node = node
	return nil
}

// start runs what goes on beside all calls.
func (c *Coordinator) start() {
	c.background, c.stop = context.WithCancel(context.Background())
	c.handler = c.routes()
	c.metrics.watch(c)
	c.work.Go(func() { c.followLeadership(c.background) })
	c.work.Go(func() { c.node.stall.run(c.background, c.logger, c.giveWay) })
	if !c.node.lone {
		c.work.Go(func() { c.announceSelf(c.background) })
		c.work.Go(func() { c.followLeader(c.background) })
		c.work.Go(func() { c.keepIdentity(c.background) })
	}
}

// awaitTenure waits until this coordinator answers calls itself.
func (c *Coordinator) awaitTenure(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !c.leads() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for leadership: %w", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

func (c *Coordinator) name() string { return c.cfg.Name }

// ClusterID names the cluster for ever.
func (c *Coordinator) ClusterID() string { return c.state.Read().Cluster().GetClusterId() }

// Handler answers the API, the runners' links, /healthz and /readyz.
func (c *Coordinator) Handler() http.Handler { return c.handler }

// Ready reports whether calls succeed: this coordinator leads, or knows who
// does, and is not closing.
func (c *Coordinator) Ready() bool {
	return !c.closing.Load() && (c.leads() || (!c.node.lone && c.leaderEndpoint() != ""))
}

// RunnersUp is the number of runners with a live link.
func (c *Coordinator) RunnersUp() int { return c.links.count() }

// Close stops in order: no new calls, links ended, leadership handed over, state
// closed. The HTTP server in front must have stopped before; Serve sees to that.
// Runners are not marked down, since they dial the next coordinator.
func (c *Coordinator) Close(ctx context.Context) error {
	if c.closing.Swap(true) {
		return nil
	}
	c.handOver(ctx)
	return c.shut(ctx)
}

func (c *Coordinator) shut(ctx context.Context) error {
	c.stop()
	err := c.links.close(ctx)
	c.work.Wait()
	drained := make(chan struct{})
	go c.node.drain(drained)
	defer close(drained)
	err = errors.Join(err, c.node.close())
	c.peers.CloseIdleConnections()
	c.peersHTTP1.CloseIdleConnections()
	return err
}
