// Command coordinator keeps the state of a Skerry cluster and routes agents'
// calls to runners.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"skerry.internal/config"
	"skerry.internal/coordinator"
	"skerry.internal/daemon"
)

// version is set by -ldflags "-X main.version=...".
var version = "dev"

// startTimeout bounds the wait for leadership, the replay of the log included.
const startTimeout = 5 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(os.Environ()).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "coordinator:", err)
		os.Exit(exitCode(err))
	}
}

// exitRemoved tells whoever starts the coordinator not to do so again.
const exitRemoved = 3

func exitCode(err error) int {
	if errors.Is(err, coordinator.ErrRemoved) {
		return exitRemoved
	}
	return 1
}

// flags name the keys of the configuration that each sets.
var flags = []struct{ name, key, usage string }{
	{"data-dir", "data_dir", "directory of the Raft log and snapshots"},
	{"name", "name", "name of this coordinator in its cluster, for ever"},
	{"listen", "listen", "host:port of the API; without TLS a loopback address"},
	{"advertise", "advertise", "https://host:port of the API as the other coordinators reach it"},
	{"cluster-listen", "cluster.listen", "host:port of Raft; empty: a lone coordinator"},
	{"metrics-listen", "metrics_listen", "host:port of /metrics, /healthz and /readyz; empty: none"},
	{"log-level", "log.level", "debug, info, warn or error"},
	{"log-format", "log.format", "text or json"},
}

func command(environ []string) *cobra.Command {
	var path string
	var printConfig bool
	cmd := &cobra.Command{
		Use:           "coordinator",
		Short:         "Keep the state of a Skerry cluster and route agents' calls to runners",
		Example:       "  coordinator --data-dir /var/lib/skerry/coordinator --listen 127.0.0.1:7420",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(cmd, path, environ)
			if err != nil {
				return err
			}
			if printConfig {
				return config.Print(cmd.OutOrStdout(), cfg)
			}
			return run(cmd.Context(), cfg, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML file (default "+coordinator.DefaultConfigPath+", when it exists)")
	cmd.Flags().BoolVar(&printConfig, "print-config", false, "print the configuration in force and exit")
	for _, f := range flags {
		cmd.Flags().String(f.name, "", f.usage)
	}
	cmd.AddCommand(&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), "coordinator", version) }})
	return cmd
}

func load(cmd *cobra.Command, path string, environ []string) (coordinator.Config, error) {
	cfg := coordinator.DefaultConfig()
	src := config.Source{Path: path, EnvPrefix: coordinator.EnvPrefix, Environ: environ, Flags: map[string]string{}}
	if path == "" {
		src.Path, src.Optional = coordinator.DefaultConfigPath, true
	}
	for _, f := range flags {
		if flag := cmd.Flags().Lookup(f.name); flag.Changed {
			src.Flags[f.key] = flag.Value.String()
		}
	}
	return cfg, config.Load(&cfg, src)
}

// run serves until ctx ends, then stops in order.
func run(ctx context.Context, cfg coordinator.Config, stderr io.Writer) (err error) {
	logger := cfg.Log.New(stderr)
	slog.SetDefault(logger)
	registry := daemon.NewRegistry("coordinator", version)

	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := coordinator.New(starting, cfg, coordinator.Deps{Logger: logger, Registerer: registry, Version: version})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	defer func() { err = errors.Join(err, closeIn(ctx, cfg, c)) }()
	if err := firstToken(starting, cfg, c, logger); err != nil {
		return errors.Join(err, ln.Close())
	}
	return serve(ctx, cfg, c, ln, registry, logger)
}

// serve answers on all ports until ctx ends or one fails.
func serve(ctx context.Context, cfg coordinator.Config, c *coordinator.Coordinator, ln net.Listener, registry *prometheus.Registry, logger *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	if cfg.MetricsListen != "" {
		metrics, err := net.Listen("tcp", cfg.MetricsListen)
		if err != nil {
			return errors.Join(fmt.Errorf("metrics_listen: %w", err), ln.Close())
		}
		group.Go(func() error { return daemon.ServeMetrics(ctx, metrics, registry, c.HealthHandler()) })
	}
	group.Go(func() error { return c.Serve(ctx, ln) })
	logger.InfoContext(ctx, "serving", "listen", ln.Addr().String(), "version", version)
	if err := daemon.NotifyReady(); err != nil {
		logger.WarnContext(ctx, "systemd not told", "error", err)
	}
	return group.Wait()
}

// firstToken gives a new lone coordinator its admin token; the first leader of a
// cluster makes it by itself.
func firstToken(ctx context.Context, cfg coordinator.Config, c *coordinator.Coordinator, logger *slog.Logger) error {
	if cfg.Cluster.Enabled() {
		return nil
	}
	file := filepath.Join(cfg.DataDir, coordinator.AdminTokenFile)
	created, err := c.Bootstrap(ctx, file)
	if created {
		logger.InfoContext(ctx, "first start: the admin token is in a file", "file", file)
	}
	return err
}

func closeIn(ctx context.Context, cfg coordinator.Config, c *coordinator.Coordinator) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cfg.Limits.ShutdownGrace.D()+time.Second)
	defer cancel()
	return c.Close(ctx)
}
