package coordinator

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
)

const (
	// Log entries that one fsync may carry.
	maxBatch        = 256
	snapshotsKept   = 2
	lockWait        = time.Second
	raftLogFile     = "raft.db"
	dataDirMode     = 0o700
	recoveryTimeout = 2 * time.Minute
	// Raft's own calls to other coordinators; a snapshot gets as much for each
	// 256 KiB.
	raftIOTimeout = 3 * time.Second
	raftConns     = 4
	// How long a stop waits for changes under way, which a stalled disk may hold.
	closeWait = 10 * time.Second
	// Changes of leadership that may wait to be looked at.
	maxChanges = 64
)

// ErrDataDirInUse is returned by New when another process has the data directory open.
var ErrDataDirInUse = errors.New("data directory is in use by another coordinator")

// incarnationKey is where the stable store has the Member's incarnation.
var incarnationKey = []byte("SkerryIncarnation")

// raftNode is this process's member of the Raft cluster.
type raftNode struct {
	raft      *raft.Raft
	id        raft.ServerID
	address   raft.ServerAddress
	lone      bool
	store     *raftboltdb.BoltStore
	snapshots *raft.FileSnapshotStore
	transport interface {
		raft.Transport
		io.Closer
	}
	// stream is below transport; nil: a lone coordinator's is none.
	stream       *raftStream
	state        *state.State
	metrics      *metrics
	applyTimeout time.Duration
	stall        *stall
	incarnation  string
	// Leadership gained or lost, in order. Raft waits for each to be taken.
	changes chan bool

	mu      sync.Mutex
	closing bool
	// Applies under way. They end before Raft shuts down, since Raft leaves
	// some of them without an answer.
	pending sync.WaitGroup
}

// peering is what a member of a cluster needs to talk to the others.
type peering struct {
	identity *pki.Identity
	listener net.Listener
	dial     dialFunc
	admit    func(pki.Peer) error
}

// openRaft opens or makes the log in the data directory and starts the node.
func openRaft(cfg Config, st *state.State, m *metrics, logger *slog.Logger, peers peering, hooks hooks) (*raftNode, error) {
	store, err := openStore(filepath.Join(cfg.DataDir, raftLogFile))
	if err != nil {
		return nil, err
	}
	n := &raftNode{id: raft.ServerID(cfg.Name), lone: !cfg.Cluster.Enabled(), store: store, state: st, metrics: m,
		applyTimeout: cfg.Raft.ApplyTimeout.D(), stall: newStall(cfg.Raft.StallTimeout.D()), changes: make(chan bool, maxChanges)}
	n.openTransport(cfg, peers, raftLogger(logger), logger)
	if err := n.start(cfg, logger, hooks); err != nil {
		return nil, errors.Join(err, n.transport.Close(), store.Close())
	}
	return n, nil
}

func openStore(path string) (*raftboltdb.BoltStore, error) {
	if err := os.MkdirAll(filepath.Dir(path), dataDirMode); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	store, err := raftboltdb.New(raftboltdb.Options{Path: path, MsgpackUseNewTimeFormat: true,
		BoltOptions: &bbolt.Options{Timeout: lockWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: %w; stop it, or choose another data_dir", path, ErrDataDirInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("open raft log %s: %w", path, err)
	}
	return store, nil
}

// openTransport makes the way to the others, which for a lone coordinator leads
// nowhere.
func (n *raftNode) openTransport(cfg Config, peers peering, log hclog.Logger, logger *slog.Logger) {
	if n.lone {
		n.address = raft.ServerAddress(cfg.Name)
		_, n.transport = raft.NewInmemTransport(n.address)
		return
	}
	n.address = raft.ServerAddress(cfg.Cluster.RaftAddress())
	n.stream = newRaftStream(peers.listener, peers.identity, peers.dial, peers.admit, logger)
	stream := advertised{n.stream, n.address}
	n.transport = givingTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: stream, MaxPool: raftConns, Timeout: raftIOTimeout, Logger: log, MsgpackUseNewTimeFormat: true}), n.stall}
}

func (n *raftNode) start(cfg Config, logger *slog.Logger, hooks hooks) error {
	log := raftLogger(logger)
	var err error
	if n.snapshots, err = raft.NewFileSnapshotStoreWithLogger(cfg.DataDir, snapshotsKept, log); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	if n.incarnation, err = incarnation(n.store); err != nil {
		return fmt.Errorf("incarnation: %w", err)
	}
	conf := raftConfig(cfg)
	conf.Logger, conf.NotifyCh = log, n.changes
	if err := n.bootstrap(cfg, conf); err != nil {
		return err
	}
	entries := raft.LogStore(n.store)
	if hooks.wrapLog != nil {
		entries = hooks.wrapLog(entries)
	}
	n.raft, err = raft.NewRaft(conf, fsm{n.state}, watchedLog{entries, n.stall}, n.store, n.snapshots, n.transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	if err := n.checkMembership(); err != nil {
		return errors.Join(err, n.raft.Shutdown().Error())
	}
	return nil
}

// bootstrap makes the first configuration of a lone coordinator or a new cluster.
func (n *raftNode) bootstrap(cfg Config, conf *raft.Config) error {
	exists, err := raft.HasExistingState(n.store, n.store, n.snapshots)
	if err != nil {
		return fmt.Errorf("read raft log: %w", err)
	}
	if exists || (!n.lone && !cfg.Cluster.Bootstrap) {
		return nil
	}
	voters := raft.Configuration{Servers: []raft.Server{{ID: n.id, Address: n.address}}}
	if err := raft.BootstrapCluster(conf, n.store, n.store, n.snapshots, n.transport, voters); err != nil {
		return fmt.Errorf("bootstrap cluster: %w", err)
	}
	return nil
}

// checkMembership refuses a data directory that cannot work with this
// configuration, which otherwise would wait for ever for a leader.
func (n *raftNode) checkMembership() error {
	servers := n.servers()
	_, own := n.server(n.id)
	switch {
	case len(servers) == 0:
		return nil
	case n.lone && len(servers) > 1:
		return fmt.Errorf("data_dir is of a member of a cluster of %d coordinators; set cluster.listen", len(servers))
	case n.lone && !own:
		return fmt.Errorf("data_dir is of the coordinator %q; set name to that", servers[0].ID)
	}
	return nil
}

// incarnation is made with the data directory and stays with it.
func incarnation(store *raftboltdb.BoltStore) (string, error) {
	old, err := store.Get(incarnationKey)
	if err == nil && len(old) > 0 {
		return string(old), nil
	}
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails on Linux
	text := hex.EncodeToString(raw[:])
	return text, store.Set(incarnationKey, []byte(text))
}

func raftConfig(cfg Config) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(cfg.Name)
	conf.HeartbeatTimeout = cfg.Raft.HeartbeatTimeout.D()
	conf.ElectionTimeout = cfg.Raft.ElectionTimeout.D()
	conf.LeaderLeaseTimeout = cfg.Raft.HeartbeatTimeout.D()
	conf.CommitTimeout = min(50*time.Millisecond, cfg.Raft.HeartbeatTimeout.D())
	conf.MaxAppendEntries = maxBatch
	conf.SnapshotInterval = cfg.Raft.SnapshotInterval.D()
	conf.SnapshotThreshold = cfg.Raft.SnapshotThreshold
	conf.TrailingLogs = cfg.Raft.TrailingLogs
	// Who was removed says so and stops in order.
	conf.ShutdownOnRemove = false
	return conf
}

// servers is the latest configuration, whether committed or not.
func (n *raftNode) servers() []raft.Server {
	future := n.raft.GetConfiguration()
	if future.Error() != nil {
		return nil
	}
	return future.Configuration().Servers
}

func (n *raftNode) server(id raft.ServerID) (raft.Server, bool) {
	for _, s := range n.servers() {
		if s.ID == id {
			return s, true
		}
	}
	return raft.Server{}, false
}

// begin registers one apply; false: the node is closing.
func (n *raftNode) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return false
	}
	n.pending.Add(1)
	return true
}

// close lets applies end, stops Raft and closes the log.
func (n *raftNode) close() error {
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		n.pending.Wait()
		ended <- n.raft.Shutdown().Error()
	}()
	select {
	case err := <-ended:
		return errors.Join(err, n.transport.Close(), n.store.Close())
	case <-time.After(closeWait):
		// A disk that does not answer holds Raft. What was acknowledged is on it.
		n.raft.Shutdown()
		return errors.Join(errors.New("raft did not stop in time"), n.transport.Close())
	}
}

// drain takes what Raft tells, so that it never waits while it stops.
func (n *raftNode) drain(until <-chan struct{}) {
	for {
		select {
		case <-n.changes:
		case <-until:
			return
		}
	}
}

// advertised is a stream with the address that others dial.
type advertised struct {
	*raftStream
	address raft.ServerAddress
}

// Addr implements net.Listener.
func (a advertised) Addr() net.Addr { return raftAddr(a.address) }

type raftAddr string

// Network implements net.Addr.
func (raftAddr) Network() string { return "tcp" }

// String implements net.Addr.
func (a raftAddr) String() string { return string(a) }
