package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"skerry.internal/config"
	"skerry.internal/coordinator"
	"skerry.internal/daemon"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd"
)

// devRunner is the runner's name and devAgent the agent of the token in a dev set-up.
const (
	devRunner = "local"
	devAgent  = "dev"
)

type devFlags struct {
	data, listen, metricsListen, readyFile string
	runnerConfig                           string
	log                                    config.Log
}

// ready is what --ready-file has once a call would succeed.
type ready struct {
	Endpoint   string `json:"endpoint"`
	Token      string `json:"token"`
	MetricsURL string `json:"metricsUrl"`
	PID        int    `json:"pid"`
}

func (a *app) devCommand() *cobra.Command {
	f := devFlags{log: config.DefaultLog()}
	c := &cobra.Command{
		Use: "dev", Short: "Run a coordinator and a runner in one process on loopback",
		Long: "The data directory keeps everything: workspaces, snapshots, executions and the tokens. Executions survive a restart.\n" +
			"Variables SKERRY_RUNNERD_<KEY> set the runner's options, such as SKERRY_RUNNERD_LIMITS_MEMORY=2GiB; --runner-config names a\n" +
			"file with them, for what variables can't hold (network policies).",
		Example: "  skerry dev --data ./data --listen 127.0.0.1:7420", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.dev(cmd.Context(), f)
		},
	}
	c.Flags().StringVar(&f.data, "data", defaultData(), "directory for all state")
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:7420", "address to serve, on loopback; port 0 takes any free one")
	c.Flags().StringVar(&f.metricsListen, "metrics-listen", "127.0.0.1:0", "address of /metrics, /healthz and /readyz")
	c.Flags().StringVar(&f.runnerConfig, "runner-config", "", "file with the runner's configuration, as runnerd.yaml")
	c.Flags().StringVar(&f.readyFile, "ready-file", "", "write {endpoint, token, metricsUrl, pid} here when calls are served")
	c.Flags().StringVar(&f.log.Level, "log-level", f.log.Level, "debug, info, warn or error")
	c.Flags().StringVar(&f.log.Format, "log-format", f.log.Format, "text or json")
	return c
}

// defaultData lies apart from where people work: a workspace within a source
// tree would be found, and what agents wrote there be built and run, by the
// tools that walk that tree.
func defaultData() string {
	if os.Geteuid() == 0 {
		return "/var/lib/skerry/dev"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "skerry", "dev")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), fmt.Sprintf("skerry-dev-%d", os.Getuid()))
	}
	return filepath.Join(home, ".local", "share", "skerry", "dev")
}

// devServer is the coordinator and the runner of one data directory.
type devServer struct {
	log      *slog.Logger
	registry *prometheus.Registry
	coord    *coordinator.Coordinator
	runner   *runnerd.Daemon
}

func (a *app) dev(ctx context.Context, f devFlags) error {
	if err := f.log.Validate("log"); err != nil {
		return err
	}
	data, err := filepath.Abs(f.data)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o711); err != nil {
		return err
	}
	if f.readyFile != "" { // an old one would tell a lie
		if err := os.Remove(f.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	s := &devServer{log: f.log.New(a.stderr), registry: daemon.NewRegistry("dev", version)}
	api, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = api.Close() }()
	metrics, err := net.Listen("tcp", f.metricsListen)
	if err != nil {
		return fmt.Errorf("metrics-listen: %w", err)
	}
	defer func() { _ = metrics.Close() }()
	if err := s.open(ctx, data, f, "http://"+api.Addr().String()); err != nil {
		return err
	}
	return errors.Join(s.serve(ctx, a, f, api, metrics, data), s.close())
}

func (s *devServer) open(ctx context.Context, data string, f devFlags, endpoint string) (err error) {
	cc := coordinator.DefaultConfig()
	cc.DataDir, cc.Listen, cc.MetricsListen = filepath.Join(data, "coordinator"), f.listen, ""
	if s.coord, err = coordinator.New(ctx, cc, coordinator.Deps{Logger: s.log, Registerer: s.registry, Version: version}); err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	rc := runnerd.DefaultConfig()
	fix := func() {
		rc.DataDir, rc.Name, rc.Coordinators, rc.MetricsListen = filepath.Join(data, "runner"), devRunner, []string{endpoint}, ""
	}
	fix() // a host's name need not be a runner's, and Load checks it
	if err := config.Load(&rc, config.Source{Path: f.runnerConfig, EnvPrefix: runnerd.EnvPrefix, Environ: os.Environ()}); err != nil {
		return errors.Join(fmt.Errorf("runner: %w", err), s.close())
	}
	fix()
	if s.runner, err = runnerd.New(ctx, rc, runnerd.Deps{Logger: s.log, Metrics: s.registry, Version: version}); err != nil {
		return errors.Join(fmt.Errorf("runner: %w", err), s.close())
	}
	return nil
}

func (s *devServer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if s.runner != nil {
		errs = append(errs, s.runner.Close())
	}
	if s.coord != nil {
		errs = append(errs, s.coord.Close(ctx))
	}
	return errors.Join(errs...)
}

// serve runs until ctx ends. The runner dials the coordinator as it would from
// another host.
func (s *devServer) serve(ctx context.Context, a *app, f devFlags, api, metrics net.Listener, data string) error {
	endpoint := "http://" + api.Addr().String()
	runnerToken, err := s.coord.EnsureToken(ctx, filepath.Join(data, "runner.token"), skerryv1.RoleRunner, devRunner)
	if err != nil {
		return err
	}
	token, err := s.coord.EnsureToken(ctx, filepath.Join(data, "dev.token"), skerryv1.RoleAdmin, devAgent)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.coord.Serve(ctx, api) })
	group.Go(func() error { return daemon.ServeMetrics(ctx, metrics, s.registry, s.coord.HealthHandler()) })
	group.Go(func() error {
		return s.runner.Run(ctx, func() (string, error) { return runnerToken, nil })
	})
	group.Go(func() error {
		return s.announce(ctx, a, f, ready{Endpoint: endpoint, Token: token, MetricsURL: "http://" + metrics.Addr().String() + "/metrics", PID: os.Getpid()})
	})
	return group.Wait()
}

// announce waits until a call would succeed and then says so.
func (s *devServer) announce(ctx context.Context, a *app, f devFlags, r ready) error {
	if err := s.runner.AwaitAttached(ctx); err != nil {
		return nil //nolint:nilerr // stopped before it was ready
	}
	path, err := a.contextPath()
	if err == nil {
		err = savedContext{Endpoint: r.Endpoint, Token: r.Token}.save(path)
	}
	if err != nil { // a host without a home can still use the ready file
		s.log.Warn("context not saved", "err", err)
	}
	if f.readyFile != "" {
		if err := writeJSONFile(f.readyFile, r); err != nil {
			return fmt.Errorf("ready-file: %w", err)
		}
	}
	if f.readyFile != "" {
		context.AfterFunc(ctx, func() { _ = os.Remove(f.readyFile) }) // from now on it would be a lie
	}
	s.log.Info("ready", "endpoint", r.Endpoint, "metrics", r.MetricsURL, "context", path)
	return nil
}
