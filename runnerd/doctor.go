package runnerd

import (
	"context"
	"fmt"
	"os"

	"skerry.internal/sandbox"
)

// Doctor probes what sandboxes this host gives, without a daemon.
func Doctor(ctx context.Context, cfg Config) (sandbox.Report, error) {
	shim, err := findShim(cfg.Sandbox.Shim)
	if err != nil {
		return sandbox.Report{}, err
	}
	dir, err := os.MkdirTemp("", "skerry-doctor-")
	if err != nil {
		return sandbox.Report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	report, err := sandbox.Probe(ctx, sandbox.Config{Shim: shim, StateDir: dir, Bwrap: cfg.Sandbox.Bwrap})
	if err != nil {
		return report, fmt.Errorf("probe: %w", err)
	}
	return report, nil
}
