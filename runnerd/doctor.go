package runnerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"skerry.internal/sandbox"
)

// nearest is dir or, before the daemon made it, what it will be made in.
func nearest(dir string) string {
	for dir != "" && dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

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
	report, err := sandbox.Probe(ctx, sandbox.Config{Shim: shim, StateDir: dir, Bwrap: cfg.Sandbox.Bwrap, QuotaDir: nearest(cfg.quotaDir())})
	if err != nil {
		return report, fmt.Errorf("probe: %w", err)
	}
	return report, nil
}
