package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"skerry.internal/coordinator/state"
)

const (
	// The single voter's id and address, which its own log holds for ever.
	serverID      = raft.ServerID("coordinator-1")
	serverAddress = raft.ServerAddress("coordinator-1")
	// Log entries that one fsync may carry.
	maxBatch        = 256
	snapshotsKept   = 2
	lockWait        = time.Second
	raftLogFile     = "raft.db"
	dataDirMode     = 0o700
	recoveryTimeout = 2 * time.Minute
)

// ErrDataDirInUse is returned by New when another process has the data directory open.
var ErrDataDirInUse = errors.New("data directory is in use by another coordinator")

// raftNode is this process's member of the Raft cluster.
type raftNode struct {
	raft         *raft.Raft
	store        *raftboltdb.BoltStore
	transport    *raft.InmemTransport
	metrics      *metrics
	applyTimeout time.Duration

	mu      sync.Mutex
	closing bool
	// Applies under way. They end before Raft shuts down, since Raft leaves
	// some of them without an answer.
	pending sync.WaitGroup
}

// openRaft opens or makes the log in dir and starts the node.
func openRaft(cfg Config, st *state.State, m *metrics, logger *slog.Logger) (*raftNode, error) {
	if err := os.MkdirAll(cfg.DataDir, dataDirMode); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	store, err := openStore(filepath.Join(cfg.DataDir, raftLogFile))
	if err != nil {
		return nil, err
	}
	n := &raftNode{store: store, metrics: m, applyTimeout: cfg.Raft.ApplyTimeout.D()}
	if err := n.start(cfg, st, logger); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return n, nil
}

func openStore(path string) (*raftboltdb.BoltStore, error) {
	store, err := raftboltdb.New(raftboltdb.Options{Path: path,
		BoltOptions: &bbolt.Options{Timeout: lockWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: %w; stop it, or choose another data_dir", path, ErrDataDirInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("open raft log %s: %w", path, err)
	}
	return store, nil
}

func (n *raftNode) start(cfg Config, st *state.State, logger *slog.Logger) error {
	log := raftLogger(logger)
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(cfg.DataDir, snapshotsKept, log)
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	_, n.transport = raft.NewInmemTransport(serverAddress)
	conf := raftConfig(cfg.Raft)
	conf.Logger = log
	exists, err := raft.HasExistingState(n.store, n.store, snapshots)
	if err != nil {
		return fmt.Errorf("read raft log: %w", err)
	}
	if !exists {
		voters := raft.Configuration{Servers: []raft.Server{{ID: serverID, Address: serverAddress}}}
		if err := raft.BootstrapCluster(conf, n.store, n.store, snapshots, n.transport, voters); err != nil {
			return fmt.Errorf("bootstrap cluster: %w", err)
		}
	}
	n.raft, err = raft.NewRaft(conf, fsm{st}, n.store, n.store, snapshots, n.transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	return nil
}

func raftConfig(cfg Raft) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = serverID
	conf.HeartbeatTimeout = cfg.HeartbeatTimeout.D()
	conf.ElectionTimeout = cfg.ElectionTimeout.D()
	conf.LeaderLeaseTimeout = cfg.HeartbeatTimeout.D()
	conf.CommitTimeout = min(50*time.Millisecond, cfg.HeartbeatTimeout.D())
	conf.MaxAppendEntries = maxBatch
	conf.SnapshotInterval = cfg.SnapshotInterval.D()
	conf.SnapshotThreshold = cfg.SnapshotThreshold
	conf.TrailingLogs = cfg.TrailingLogs
	return conf
}

// awaitLeader waits until this node leads and has applied all that was
// committed before, so that reads see every acknowledged change (I9).
func (n *raftNode) awaitLeader(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !n.leading() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for leadership: %w", ctx.Err())
		case <-n.raft.LeaderCh():
		case <-tick.C:
		}
	}
	if err := n.raft.Barrier(recoveryTimeout).Error(); err != nil {
		return fmt.Errorf("apply what was committed: %w", err)
	}
	return nil
}

func (n *raftNode) leading() bool { return n.raft.State() == raft.Leader }

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
	n.pending.Wait()
	err := n.raft.Shutdown().Error()
	return errors.Join(err, n.transport.Close(), n.store.Close())
}
