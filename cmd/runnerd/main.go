// Command runnerd is the daemon of a compute host. It needs runnerd-shim beside it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"skerry.internal/config"
	"skerry.internal/daemon"
	"skerry.internal/runnerd"
)

// version is set by -ldflags "-X main.version=...".
var version = "0.0.0-dev"

const defaultConfig = "/etc/skerry/runnerd.yaml"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "runnerd:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var path, dataDir, name, metricsListen string
	var printConfig bool
	c := &cobra.Command{
		Use: "runnerd", Short: "Run agents' work on this host",
		Example: "  runnerd --config /etc/skerry/runnerd.yaml\n  runnerd doctor", Args: cobra.NoArgs,
		Version: version, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := map[string]string{}
			for flag, value := range map[string]*string{"data_dir": &dataDir, "name": &name, "metrics_listen": &metricsListen} {
				if *value != "" {
					flags[flag] = *value
				}
			}
			cfg := runnerd.DefaultConfig()
			err := config.Load(&cfg, config.Source{Path: path, Optional: !cmd.Flags().Changed("config"), EnvPrefix: runnerd.EnvPrefix, Environ: os.Environ(), Flags: flags})
			if err != nil {
				return err
			}
			if printConfig {
				return config.Print(cmd.OutOrStdout(), cfg)
			}
			return serve(cmd.Context(), cfg)
		},
	}
	c.Flags().StringVar(&path, "config", defaultConfig, "YAML file; SKERRY_RUNNERD_<KEY> and flags override it")
	c.Flags().StringVar(&dataDir, "data-dir", "", "overrides data_dir")
	c.Flags().StringVar(&name, "name", "", "overrides name")
	c.Flags().StringVar(&metricsListen, "metrics-listen", "", "overrides metrics_listen")
	c.Flags().BoolVar(&printConfig, "print-config", false, "print what is in force and exit")
	c.AddCommand(doctor(), casCommand(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	})
	return c
}

func serve(ctx context.Context, cfg runnerd.Config) error {
	log := cfg.Log.New(os.Stderr)
	registry := daemon.NewRegistry("runnerd", version)
	if len(cfg.Coordinators) == 0 {
		return &config.FieldError{Field: "coordinators", Problem: "is empty", Remedy: "list at least one endpoint, such as https://head:7420"}
	}
	d, err := runnerd.New(ctx, cfg, runnerd.Deps{Logger: log, Metrics: registry, Version: version})
	if err != nil {
		return err
	}
	if err := daemon.NotifyReady(); err != nil {
		log.Warn("systemd not told", "err", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	if cfg.MetricsListen != "" {
		ln, err := net.Listen("tcp", cfg.MetricsListen)
		if err != nil {
			return errors.Join(fmt.Errorf("metrics_listen: %w", err), d.Close())
		}
		group.Go(func() error { return daemon.ServeMetrics(ctx, ln, registry, daemon.Health(d.Ready)) })
	}
	group.Go(func() error { return d.Run(ctx, cfg.Token) })
	return errors.Join(group.Wait(), d.Close())
}
