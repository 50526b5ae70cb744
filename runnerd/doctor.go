package runnerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
// The configured backends come first, the others after them.
func Doctor(ctx context.Context, cfg Config) (Diagnosis, error) {
	var d Diagnosis
	shim, err := findShim(cfg.Sandbox.Shim)
	if err != nil {
		return d, err
	}
	if err := cfg.Sandbox.findReadOnly(); err != nil {
		return d, err
	}
	dir, err := os.MkdirTemp("", "skerry-doctor-")
	if err != nil {
		return d, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	order := slices.Clone(cfg.Sandbox.Backends)
	for _, backend := range []string{sandbox.Bubblewrap, sandbox.Containerd} {
		if !slices.Contains(order, backend) {
			order = append(order, backend)
		}
	}
	for i, backend := range order {
		report, err := sandbox.Probe(ctx, cfg.sandboxConfig(sandbox.Config{Shim: shim, StateDir: dir}, backend))
		if err != nil {
			return d, fmt.Errorf("probe %s: %w", backend, err)
		}
		if i == 0 {
			d.Report = report
		} else {
			d.Others = append(d.Others, report)
		}
	}
	return d, nil
}

// Diagnosis is the report of the backend that is tried first, and of the others.
type Diagnosis struct {
	sandbox.Report
	Others []sandbox.Report `json:"others,omitempty"`
}

// String is all reports as the doctor prints them.
func (d Diagnosis) String() string {
	var b strings.Builder
	b.WriteString(d.Report.String())
	for _, r := range d.Others {
		b.WriteString("\n" + r.String())
	}
	return b.String()
}
