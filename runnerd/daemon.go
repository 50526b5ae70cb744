// Package runnerd is the daemon of a compute host: it keeps workspaces, runs
// executions in sandboxes and serves a coordinator over a connection that it
// dials itself.
package runnerd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"skerry.internal/cas"
	"skerry.internal/cas/reapi"
	"skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	"skerry.internal/runnerd/execution"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/rpc"
	"skerry.internal/runnerd/transfer"
	"skerry.internal/runnerd/upkeep"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox"
)

// Deps are what the daemon gets from its main.
type Deps struct {
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Version string
	// Step is told of each step of an execution after which the daemon may crash.
	// It is for tests, which crash there; nil: nobody is.
	Step func(step string)
}

// Daemon is one runner. Its owner calls Run and then Close.
type Daemon struct {
	cfg        Config
	deps       Deps
	store      *cas.Store
	journal    *journal.Journal
	keeper     *upkeep.Keeper
	cache      *reapi.Server // nil: not served
	launcher   *launcher
	engine     *execution.Engine
	workspaces *workspace.Manager
	handler    http.Handler
	transfers  *transfer.Manager
	peers      *http.Server // nil: other runners go by a coordinator alone
	relay      relayWay
	identity   *identity.Identity
	membership *membership
	// refresh asks for the next certificate.
	refresh chan struct{}

	mu       sync.Mutex
	attached bool
	changed  chan struct{} // closed and renewed when attached changes
}

const (
	metaNumber      = "runner_number"
	metaCluster     = "cluster_id"
	maxRequestBytes = 16 << 20
	maxChangedPaths = 200
	outputBytes     = 40 << 10
	outputLines     = 2000
)

// New opens the data directory, probes the host and takes up what ran before.
func New(ctx context.Context, cfg Config, deps Deps) (*Daemon, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := &Daemon{cfg: cfg, deps: deps, changed: make(chan struct{}), refresh: make(chan struct{}, 1)}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) open(ctx context.Context) (err error) {
	cfg := d.cfg
	if err := os.MkdirAll(cfg.DataDir, 0o711); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	launcher, err := newLauncher(ctx, cfg, d.deps.Logger, d.deps.Metrics)
	if err != nil {
		return err
	}
	d.launcher = launcher
	if d.identity, err = identity.Open(filepath.Join(cfg.DataDir, "tls")); err != nil {
		return err
	}
	d.registerSelf(d.deps.Metrics)
	if d.membership, err = d.newMembership(); err != nil {
		return err
	}
	// The store's lock comes first: two daemons on one directory do no harm.
	if d.store, err = cas.Open(ctx, filepath.Join(cfg.DataDir, "cas"), cas.Config{Logger: d.deps.Logger}); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if d.journal, err = journal.Open(ctx, cfg.DataDir); err != nil {
		return err
	}
	registerStore(d.deps.Metrics, d.store)
	d.keeper = upkeep.New(d.store, d.journal, cfg.DataDir, cfg.Store.upkeep(), d.deps.Logger, d.deps.Metrics)
	d.workspaces, err = workspace.NewManager(filepath.Join(cfg.DataDir, "workspaces"), d.store, d.journal, d.workspaceConfig(), d.deps.Logger, d.deps.Metrics)
	if err != nil {
		return err
	}
	d.engine, err = execution.New(execution.Config{Dir: cfg.executionDir(""), ShimPath: launcher.shim, Slots: cfg.slots(),
		OutputBytes: outputBytes, OutputLines: outputLines, KeepLogs: cfg.KeepLogs.D(), KeepExecutions: cfg.KeepExecutions, Step: d.deps.Step},
		d.journal, d.workspaces, launcher, d.deps.Logger, d.deps.Metrics)
	if err != nil {
		return err
	}
	if err := d.recover(ctx); err != nil {
		return err
	}
	if err := d.openTransfers(ctx); err != nil {
		return err
	}
	d.engine.StartRetention()
	d.keeper.Start()
	if err := d.serveCache(ctx); err != nil {
		return err
	}
	d.handler = rpc.New(rpc.Config{Name: cfg.Name, Version: d.deps.Version, Labels: cfg.Labels, Slots: cfg.slots(), Tier: launcher.Tier(),
		TierAtLeast: launcher.atLeast, Networks: launcher.networks(), DefaultTimeout: cfg.DefaultTimeout.D(), MaxTimeout: cfg.MaxTimeout.D(), ForwardIdle: cfg.ForwardIdle.D(),
		MaxRequestBytes: maxRequestBytes, Attached: d.attach, Watched: func() { d.setAttached(true) }, Refresh: d.refreshCertificate, Coordinators: d.membership.learn, Transfers: d.transfers}, d.engine, d.workspaces, d.store, d.deps.Logger).Handler()
	return nil
}

// serveCache starts the remote cache when it is configured.
func (d *Daemon) serveCache(ctx context.Context) (err error) {
	c := d.cfg.REAPI
	if c.Listen == "" {
		return nil
	}
	d.cache, err = reapi.Listen(ctx, d.store, reapi.ServerConfig{Config: reapi.Config{MaxBytes: int64(c.MaxBytes), MaxBlobs: int64(c.MaxBlobs), Admit: d.keeper.Admit},
		Listen: c.Listen, TokenFile: c.TokenFile, CertFile: c.CertFile, KeyFile: c.KeyFile}, d.deps.Logger)
	if err != nil {
		return fmt.Errorf("reapi: %w", err)
	}
	d.deps.Logger.Info("remote cache served", "address", d.cache.Addr())
	go func() {
		if err := d.cache.Serve(); err != nil {
			d.deps.Logger.Error("remote cache ended", "err", err)
		}
	}()
	return nil
}

func (d *Daemon) workspaceConfig() workspace.Config {
	c := workspace.Config{MaxQueue: d.cfg.Limits.WorkspaceQueue, MaxChangedPaths: maxChangedPaths,
		MaxFileBytes: int64(d.cfg.Limits.UploadBytes), Admit: d.keeper.Admit,
		Quota: workspace.Quota{Bytes: int64(d.cfg.Limits.WorkspaceBytes), Entries: int64(d.cfg.Limits.WorkspaceEntries),
			Project: d.launcher.host.Report().Has(sandbox.ProjectQuota)}, Floor: workspace.Floor{AllowSecrets: d.cfg.AllowSecretPaths}, Step: d.deps.Step}
	if os.Geteuid() == 0 {
		agents := d.cfg.agents()
		c.FirstUID, c.UIDs = agents.First, agents.Count
	}
	return c
}

// recover restores the runner's number and takes up what had not ended.
func (d *Daemon) recover(ctx context.Context) error {
	text, err := d.journal.Meta(ctx, metaNumber)
	if err != nil {
		return err
	}
	if text != "" {
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil || number > ids.MaxRunner {
			return fmt.Errorf("journal has runner number %q", text)
		}
		d.engine.SetNumber(uint32(number))
	}
	recorded, err := d.workspaces.Recorded(ctx)
	if err != nil {
		return err
	}
	if err := d.engine.Recover(ctx, recorded); err != nil {
		return err
	}
	return d.launcher.sweep(d.engine.Live)
}

// attach is called by the coordinator before any other call of a link. A runner
// belongs to one cluster for ever: its ids carry the number that it got there.
func (d *Daemon) attach(ctx context.Context, cluster string, number uint32) error {
	if number == 0 || number > ids.MaxRunner {
		return problem.Invalid("runnerNumber", "send a number from 1 to 16777215", "%d is out of range", number)
	}
	for key, value := range map[string]string{metaCluster: cluster, metaNumber: strconv.FormatUint(uint64(number), 10)} {
		have, err := d.journal.Meta(ctx, key)
		if err != nil {
			return err
		}
		if have != "" && have != value {
			return problem.New(connect.CodeFailedPrecondition, problem.InvalidArgument, "give the runner a new data_dir, or its old coordinator",
				"this runner's %s is %s, not %s", key, have, value)
		}
		if have == "" {
			if err := d.journal.SetMeta(ctx, map[string]string{key: value}); err != nil {
				return err
			}
		}
	}
	d.engine.SetNumber(number)
	return nil
}

func (d *Daemon) setAttached(attached bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attached = attached
	close(d.changed)
	d.changed = make(chan struct{})
}

// AwaitAttached returns when a coordinator is attached, or with ctx's error.
func (d *Daemon) AwaitAttached(ctx context.Context) error {
	for {
		d.mu.Lock()
		attached, changed := d.attached, d.changed
		d.mu.Unlock()
		if attached {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Ready reports whether a coordinator is attached.
func (d *Daemon) Ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attached
}

// Run serves the coordinators until ctx ends. Calls that wait are answered then,
// so that the link can close in order. token is for a runner without a certificate.
func (d *Daemon) Run(ctx context.Context, token func() (string, error)) error {
	defer context.AfterFunc(ctx, func() {
		d.engine.Stop()
		d.workspaces.StopWatching()
	})()
	cfg, keep, err := d.membership.enter(ctx, token)
	if err != nil || ctx.Err() != nil {
		return err
	}
	d.relay.prepare(cfg.TLS, cfg.Token, cfg.Proxy)
	defer d.relay.close()
	cfg.Name, cfg.OnLink = d.cfg.Name, d.onLink
	var kept sync.WaitGroup
	kept.Go(func() { keep(ctx) })
	defer kept.Wait()
	return link.Run(ctx, cfg, d.handler, d.deps.Logger)
}

func (d *Daemon) onLink(endpoint string, up bool) {
	d.relay.onLink(endpoint, up)
	if !up {
		d.setAttached(false)
	}
}

// Token reads the configured token file; each dial calls it, so that a new
// token is used without a restart.
func (c Config) Token() (string, error) {
	b, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token_file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Close releases everything. Running executions go on under their supervisors.
func (d *Daemon) Close() error {
	errs := []error{d.closeTransfers()}
	if d.engine != nil {
		d.engine.Close()
	}
	if d.launcher != nil {
		errs = append(errs, d.launcher.close())
	}
	if d.cache != nil {
		errs = append(errs, d.cache.Close())
	}
	if d.keeper != nil {
		d.keeper.Close()
	}
	if d.journal != nil {
		errs = append(errs, d.journal.Close())
	}
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	return errors.Join(errs...)
}

func (t TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	if t.CAFile == "" {
		return c, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("tls.ca_file: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.ca_file: %s has no PEM certificate", t.CAFile)
	}
	return c, nil
}
