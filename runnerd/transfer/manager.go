// Package transfer copies files between the workspaces of runners: as the
// source it makes and keeps the tree that holds just what is to be copied and
// lets others read it; as the target it pulls that tree into the store and puts
// its files into a workspace, in batches that are committed one by one, so that
// each file has one true outcome whatever crashes when. It also pulls replicas.
package transfer

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/peerrpc"
	"skerry.internal/runnerd/workspace"
)

// Config is what an operator may choose, and the ways to other runners.
type Config struct {
	// Name of this runner.
	Name string
	// MaxRunning bounds the transfers into this runner at once; more wait.
	MaxRunning int
	// Bandwidth bounds bytes a second, each way; 0: no bound.
	Bandwidth int64
	// Advertise is host:port where others reach this runner's store; empty: they
	// go by a coordinator.
	Advertise string
	// Direct gives the TLS configuration for a connection to another runner, nil
	// while this runner has no certificate. May be nil.
	Direct func() *tls.Config
	// Relay gives the way through the coordinator that this runner is linked to.
	Relay func() (Relay, error)
	// Batch bounds one commit; zero values are defaults.
	Batch Batch
}

// Relay is a coordinator as a way to other runners.
type Relay struct {
	URL string
	// Client authenticates this runner.
	Client connect.HTTPClient
}

// Manager runs the transfers of one runner. Its owner calls Start and then Close.
type Manager struct {
	cfg        Config
	store      *cas.Store
	journal    *journal.Journal
	workspaces *workspace.Manager
	log        *slog.Logger
	server     *peer.Server
	in         *peer.Limiter
	host       string
	slots      chan struct{}
	pulls      chan struct{} // replicas at once
	metrics    *metrics

	ctx    context.Context //nolint:containedctx // lifetime of the jobs
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	jobs   map[string]*job
	keys   []ed25519.PublicKey
}

// MaxEntries bounds the files, directories and symlinks of one transfer.
const MaxEntries = 1_000_000

const (
	metaKeys    = "grant_keys"
	maxKeys     = 16
	pullsAtOnce = 2
)

type metrics struct {
	ended *prometheus.CounterVec
	files *prometheus.CounterVec
	bytes *prometheus.CounterVec
}

// begin has all series there from the start: a rate sees the first event of none
// that comes into being with it.
func (m *metrics) begin() {
	for _, state := range []string{skerryv1.StateCompleted, skerryv1.StatePartial, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown} {
		m.ended.WithLabelValues(state)
	}
	for _, outcome := range []string{skerryv1.StateCompleted, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown} {
		m.files.WithLabelValues(outcome)
	}
	for _, route := range []string{skerryv1.RouteDirect, skerryv1.RouteRelay} {
		m.bytes.WithLabelValues(route)
	}
}

// New makes a manager; it owns neither the store nor the journal.
func New(cfg Config, store *cas.Store, j *journal.Journal, workspaces *workspace.Manager, log *slog.Logger, reg prometheus.Registerer) *Manager {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	if cfg.MaxRunning <= 0 {
		cfg.MaxRunning = 4
	}
	cfg.Batch = cfg.Batch.withDefaults()
	m := &Manager{cfg: cfg, store: store, journal: j, workspaces: workspaces, log: log, in: peer.NewLimiter(cfg.Bandwidth), host: bootID(),
		slots: make(chan struct{}, cfg.MaxRunning), pulls: make(chan struct{}, pullsAtOnce), jobs: map[string]*job{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.server = peer.NewServer(store, peer.ServerConfig{Verifier: peer.Verifier{Current: m.grantKeys, Source: cfg.Name},
		Bandwidth: peer.NewLimiter(cfg.Bandwidth), Logger: log})
	f := promauto.With(reg)
	m.metrics = &metrics{
		ended: f.NewCounterVec(prometheus.CounterOpts{Name: "skerry_transfers_ended_total", Help: "Transfers into this runner that ended, by state."}, []string{"state"}),
		files: f.NewCounterVec(prometheus.CounterOpts{Name: "skerry_transfer_files_total", Help: "Files, directories and symlinks of transfers, by outcome."}, []string{"outcome"}),
		bytes: f.NewCounterVec(prometheus.CounterOpts{Name: "skerry_transfer_received_bytes_total", Help: "Bytes received from other runners, by route."}, []string{"route"}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "skerry_transfers_running", Help: "Transfers into this runner that hold a slot."},
		func() float64 { return float64(len(m.slots)) })
	m.metrics.begin()
	return m
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Start takes up the transfers that had not ended. The executions of before
// must have taken their places in the workspaces' queues already.
func (m *Manager) Start(ctx context.Context) error {
	text, err := m.journal.Meta(ctx, metaKeys)
	if err != nil {
		return err
	}
	for key := range strings.FieldsSeq(text) {
		raw, err := hex.DecodeString(key)
		if err != nil || len(raw) != ed25519.PublicKeySize {
			return fmt.Errorf("journal has grant key %q", key)
		}
		m.keys = append(m.keys, raw)
	}
	open, err := m.journal.OpenTransfers(ctx)
	if err != nil {
		return fmt.Errorf("recover transfers: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range open {
		m.begin(t)
	}
	return nil
}

// begin needs mu.
func (m *Manager) begin(t journal.Transfer) *job {
	j := newJob(m, t)
	m.jobs[j.id] = j
	m.wg.Go(func() {
		j.run()
		m.mu.Lock()
		delete(m.jobs, j.id)
		m.mu.Unlock()
		close(j.done)
	})
	return j
}

// Close ends the work and waits for it; the next Start goes on with it.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	m.server.Close()
}

// PeerHandler is what others read this runner's store by; receiver tells who
// they are, as the transport or a coordinator vouches.
func (m *Manager) PeerHandler(receiver func(*http.Request) string) (string, http.Handler) {
	return peerrpc.NewHandler(m.server, receiver, m.log)
}

func (m *Manager) grantKeys() []ed25519.PublicKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.keys)
}

// SetGrantKeys replaces the keys whose grants are taken, also for after a restart.
func (m *Manager) SetGrantKeys(ctx context.Context, raw [][]byte) error {
	if len(raw) > maxKeys {
		return problem.Limit("keys", "16 keys", "retire old ones")
	}
	var keys []ed25519.PublicKey
	var text []string
	for _, k := range raw {
		if len(k) != ed25519.PublicKeySize {
			return problem.Invalid("keys", "send Ed25519 public keys of 32 bytes", "a key has %d bytes", len(k))
		}
		keys = append(keys, k)
		text = append(text, hex.EncodeToString(k))
	}
	m.mu.Lock()
	same := slices.EqualFunc(m.keys, keys, func(a, b ed25519.PublicKey) bool { return a.Equal(b) })
	m.keys = keys
	m.mu.Unlock()
	if same {
		return nil
	}
	return m.journal.SetMeta(ctx, map[string]string{metaKeys: strings.Join(text, " ")})
}

func (m *Manager) address() *skerryv1.PeerAddress {
	return &skerryv1.PeerAddress{Address: m.cfg.Advertise, Host: m.host}
}
