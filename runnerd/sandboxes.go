package runnerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"skerry.internal/config"
	"skerry.internal/sandbox"
)

// Sandbox says how sandboxes are made.
type Sandbox struct {
	// Backends are tried in this order, and the first that works and reaches
	// RequireTier makes all sandboxes: bubblewrap, containerd.
	Backends []string `yaml:"backends"`
	// Containerd is used if Backends names it.
	Containerd Containerd `yaml:"containerd"`
	// Bwrap is the bubblewrap program; empty: found in PATH.
	Bwrap string `yaml:"bwrap"`
	// Shim is runnerd-shim; empty: beside the daemon's own program.
	Shim string `yaml:"shim"`
	// RequireTier makes the daemon refuse to start on a host that gives less.
	RequireTier string `yaml:"require_tier"`
	// ReadOnly are host paths that every sandbox sees read-only beside the system's.
	ReadOnly []string `yaml:"read_only"`
}

// Containerd says which containerd makes sandboxes.
type Containerd struct {
	// Address of its socket.
	Address string `yaml:"address"`
	// Namespace that the containers, and the image, are in.
	Namespace string `yaml:"namespace"`
	// Runtime is the name of its runtime.
	Runtime string `yaml:"runtime"`
	// Rootfs is host, for the host's read-only system as with bubblewrap, or image.
	Rootfs string `yaml:"rootfs"`
	// Image of the namespace, with rootfs image. It is not pulled.
	Image string `yaml:"image"`
	// Snapshotter that unpacks the image.
	Snapshotter string `yaml:"snapshotter"`
}

// What Containerd.Rootfs may be.
const (
	rootfsHost  = "host"
	rootfsImage = "image"
)

// What containerd takes for names.
var (
	containerdName = regexp.MustCompile(`^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$`)
	runtimeName    = regexp.MustCompile(`^io\.containerd\.[a-z0-9-]+\.v[0-9]+$`)
)

const maxContainerdName = 76

func defaultSandbox() Sandbox {
	return Sandbox{Backends: []string{sandbox.Bubblewrap}, Containerd: Containerd{Address: "/run/containerd/containerd.sock", Namespace: "skerry",
		Runtime: "io.containerd.runc.v2", Rootfs: rootfsHost, Snapshotter: "overlayfs"}}
}

func (s Sandbox) uses(backend string) bool { return slices.Contains(s.Backends, backend) }

func (s Sandbox) validate(uids UIDs) error {
	if len(s.Backends) == 0 {
		return &config.FieldError{Field: "sandbox.backends", Problem: "is empty", Remedy: "use the default, [bubblewrap]"}
	}
	for i, b := range s.Backends {
		if b != sandbox.Bubblewrap && b != sandbox.Containerd || slices.Contains(s.Backends[:i], b) {
			return &config.FieldError{Field: "sandbox.backends", Problem: fmt.Sprintf("has %q, which is unknown or there already", b), Remedy: "list bubblewrap and containerd in the order of your choice"}
		}
	}
	if s.RequireTier != "" && !sandbox.Tier(s.RequireTier).AtLeast(sandbox.TierNone) {
		return &config.FieldError{Field: "sandbox.require_tier", Problem: fmt.Sprintf("is %q, which is no tier", s.RequireTier), Remedy: "use one that runnerd doctor prints"}
	}
	if err := s.validateReadOnly(); err != nil {
		return err
	}
	c := s.Containerd
	switch {
	case !s.uses(sandbox.Containerd):
		return nil
	case !filepath.IsAbs(c.Address) || len(c.Address) > 100:
		return &config.FieldError{Field: "sandbox.containerd.address", Problem: "is not an absolute path of at most 100 bytes", Remedy: "use the default, /run/containerd/containerd.sock"}
	case c.Namespace == "" || c.Runtime == "" || c.Snapshotter == "":
		return &config.FieldError{Field: "sandbox.containerd", Problem: "has an empty namespace, runtime or snapshotter", Remedy: "use the defaults"}
	case !containerdName.MatchString(c.Namespace) || len(c.Namespace) > maxContainerdName:
		return &config.FieldError{Field: "sandbox.containerd.namespace", Problem: fmt.Sprintf("is %q, which containerd takes for no name", c.Namespace), Remedy: "use letters and digits, with single . _ - between them, at most 76"}
	case !runtimeName.MatchString(c.Runtime) && !filepath.IsAbs(c.Runtime):
		return &config.FieldError{Field: "sandbox.containerd.runtime", Problem: fmt.Sprintf("is %q, which is neither io.containerd.NAME.vN nor an absolute path", c.Runtime), Remedy: "use the default, io.containerd.runc.v2"}
	case c.Rootfs != rootfsHost && c.Rootfs != rootfsImage:
		return &config.FieldError{Field: "sandbox.containerd.rootfs", Problem: fmt.Sprintf("is %q", c.Rootfs), Remedy: "use host or image"}
	case (c.Rootfs == rootfsImage) != (c.Image != ""):
		return &config.FieldError{Field: "sandbox.containerd.image", Problem: "goes with rootfs: image, and with no other", Remedy: "set both, or neither"}
	case os.Geteuid() == 0 && uids.Count < 2:
		return &config.FieldError{Field: "agent_uids", Problem: "has less than two uids: containerd needs one that no agent has", Remedy: "widen the range"}
	}
	return nil
}

// validateReadOnly refuses what can't be shown at its own path: what isn't named
// plainly, and what would cover, or lie in, a place of the sandbox's own.
func (s Sandbox) validateReadOnly() error {
	for i, p := range s.ReadOnly {
		field := fmt.Sprintf("sandbox.read_only[%d]", i)
		if !filepath.IsAbs(p) || filepath.Clean(p) != p {
			return &config.FieldError{Field: field, Problem: fmt.Sprintf("is %q, which is not a clean absolute path", p), Remedy: "name a directory of the host such as /opt/tools"}
		}
		if own := sandbox.OwnPlace(p); own != "" {
			return &config.FieldError{Field: field, Problem: fmt.Sprintf("is %s, but a sandbox has its own %s", p, own), Remedy: "show another directory"}
		}
	}
	return nil
}

// findReadOnly looks for the directories on this host: without one of them no
// execution would start.
func (s Sandbox) findReadOnly() error {
	for i, p := range s.ReadOnly {
		if info, err := os.Stat(p); err != nil || !info.IsDir() {
			return &config.FieldError{Field: fmt.Sprintf("sandbox.read_only[%d]", i), Problem: p + " is not a directory of this host", Remedy: "make it, or leave it out"}
		}
	}
	return nil
}

// agents is the range of uids that agents get. The last one is left out for the
// root of containers, if there may be any.
func (c Config) agents() UIDs {
	uids := c.AgentUIDs
	if c.Sandbox.uses(sandbox.Containerd) && uids.Count > 0 {
		uids.Count--
	}
	return uids
}

// sandboxConfig fills in what the configuration says about a backend.
func (c Config) sandboxConfig(base sandbox.Config, backend string) sandbox.Config {
	base.Backend, base.Bwrap, base.MountPoints, base.QuotaDir = backend, c.Sandbox.Bwrap, c.Sandbox.ReadOnly, nearest(c.quotaDir())
	ctrd := c.Sandbox.Containerd
	base.Containerd = sandbox.ContainerdConfig{Address: ctrd.Address, Namespace: ctrd.Namespace, Runtime: ctrd.Runtime, Snapshotter: ctrd.Snapshotter}
	if ctrd.Rootfs == rootfsImage {
		base.Containerd.Image = ctrd.Image
	}
	if c.AgentUIDs.Count > 0 {
		base.Containerd.RootUID = c.AgentUIDs.First + c.AgentUIDs.Count - 1
	}
	return base
}

// openSandbox takes the first backend that works and is strong enough. The order
// is the operator's: an earlier one that is passed over is told as a warning,
// and if none is left, all reasons are the error.
func openSandbox(ctx context.Context, cfg Config, base sandbox.Config, log *slog.Logger) (*sandbox.Host, error) {
	required := sandbox.Tier(cfg.Sandbox.RequireTier)
	if required == "" {
		required = sandbox.TierBase
	}
	var refusals []error
	for i, backend := range cfg.Sandbox.Backends {
		host, err := sandbox.Open(ctx, cfg.sandboxConfig(base, backend))
		if err != nil {
			return nil, err
		}
		report := host.Report()
		if report.Tier.AtLeast(required) {
			tellMissing(log, report)
			log.Info("sandbox", "backend", backend, "tier", report.Tier)
			return host, nil
		}
		refusals = append(refusals, fmt.Errorf("this host's sandbox tier with %s is %s, but %s is required (sandbox.require_tier):\n%s", backend, report.Tier, required, report))
		if i+1 < len(cfg.Sandbox.Backends) {
			log.Warn("sandbox backend passed over for the next of sandbox.backends", "backend", backend, "next", cfg.Sandbox.Backends[i+1], "tier", report.Tier, "required", required, "missing", missing(report))
		}
		if err := host.Close(); err != nil {
			return nil, err
		}
	}
	return nil, errors.Join(refusals...)
}

func tellMissing(log *slog.Logger, report sandbox.Report) {
	for _, g := range report.Guarantees {
		if !g.Available {
			log.Warn("sandbox guarantee missing", "guarantee", g.Name, "why", g.Why, "remedy", g.Remedy)
		}
	}
}

// missing says what a backend lacks, why, and how to get it.
func missing(report sandbox.Report) string {
	var out []string
	for _, g := range report.Guarantees {
		if !g.Available {
			out = append(out, fmt.Sprintf("%s: %s (%s)", g.Name, g.Why, g.Remedy))
		}
	}
	return strings.Join(out, "; ")
}
