package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"skerry.internal/sandbox/cgroup"
	"skerry.internal/sandbox/supervisor"
)

// Config is what Open must be told.
type Config struct {
	// Shim is the path of runnerd-shim.
	Shim string
	// StateDir, which must exist, holds the shared root directories.
	StateDir string
	// Bwrap is bubblewrap's path; empty looks for it in PATH.
	Bwrap string
	// ProbeUID and ProbeGID are who the probes run as if the daemon is root;
	// take an unused one of the agents' range. Zero means 65533.
	ProbeUID uint32
	ProbeGID uint32
	// NoCgroups leaves control groups alone: limits are then rlimits.
	NoCgroups bool
	// QuotaDir is where workspaces lie; empty: project quotas are not wanted.
	QuotaDir string
	// MountPoints are further targets for Policy.ReadOnly.
	MountPoints []string

	// Backend is Bubblewrap, the default, or Containerd.
	Backend    string
	Containerd ContainerdConfig

	sysctls string // for tests; "/proc/sys"
}

// defaultProbeID is the user next to nobody, which hardly anything uses.
const defaultProbeID = 65533

// Host makes sandboxes on this machine. It is safe for concurrent use.
type Host struct {
	config  Config
	report  Report
	system  System
	rootfs  string
	layout  cgroup.Layout
	backend backend // nil where none works
	// processesByRlimit: the kernel counts processes by user name space (since
	// Linux 5.14), so that RLIMIT_NPROC holds for exactly one sandbox.
	processesByRlimit bool
}

// Open probes the machine with throwaway sandboxes, which takes a fraction of a
// second. A machine on which no sandbox works is no error here: the report says
// what is missing, and Command refuses.
func Open(ctx context.Context, config Config) (*Host, error) {
	if !filepath.IsAbs(config.Shim) || !filepath.IsAbs(config.StateDir) {
		return nil, fmt.Errorf("open sandbox: Shim and StateDir must be absolute paths")
	}
	orDefault(&config.ProbeUID, uint32(defaultProbeID))
	orDefault(&config.ProbeGID, config.ProbeUID)
	orDefault(&config.sysctls, "/proc/sys")
	orDefault(&config.Backend, Bubblewrap)
	h := &Host{config: config, report: Report{Backend: config.Backend}}
	h.processesByRlimit = kernelAtLeast(5, 14)
	var err error
	if h.system, err = DetectSystem(); err != nil {
		return nil, err
	}
	if h.rootfs, err = BuildRootfs(config.StateDir, h.system, config.MountPoints); err != nil {
		return nil, err
	}
	if !config.NoCgroups {
		if h.layout, err = cgroup.Setup(); err != nil {
			return nil, err
		}
	}
	p := &prober{config: config, host: h}
	if err := p.run(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("probe sandbox: %w", err), h.Close())
	}
	return h, nil
}

// Probe reports what this machine can guarantee.
func Probe(ctx context.Context, config Config) (Report, error) {
	h, err := Open(ctx, config)
	if err != nil {
		return Report{}, err
	}
	return h.Report(), h.Close()
}

// Close lets go of what the host holds. Sandboxes go on.
func (h *Host) Close() error {
	if h.backend == nil {
		return nil
	}
	return h.backend.Close()
}

// Report says what was found when the host was opened.
func (h *Host) Report() Report { return h.report }

// ErrID says that an execution's id can't name a control group.
var ErrID = errors.New("execution id must be of letters, digits, '_' and '-' only")

// Command makes the supervisor's spec for one execution. Of the policy it fills
// in what the host decides: Rootfs, System, Init and CgroupNamespace. Time-outs,
// stdin and log limits are for the caller to add.
func (h *Host) Command(id string, p Policy) (supervisor.Spec, error) {
	if err := checkID(id); err != nil {
		return supervisor.Spec{}, err
	}
	if err := h.report.Require(needed(h.config.Backend)...); err != nil {
		return supervisor.Spec{}, err
	}
	return h.command(id, p)
}

// document is the policy's, with what the host decides.
func (h *Host) document(p Policy) (*specs.Spec, error) {
	p.Rootfs, p.System, p.Init = h.rootfs, h.system.Dirs, h.config.Shim
	p.CgroupNamespace = h.report.has(CgroupNamespace)
	p, err := h.tellProcessors(p)
	if err != nil {
		return nil, err
	}
	return p.Spec()
}

func (h *Host) command(id string, p Policy) (supervisor.Spec, error) {
	doc, err := h.document(p)
	if err != nil {
		return supervisor.Spec{}, err
	}
	spec, err := h.backend.Command(doc)
	if err != nil {
		return supervisor.Spec{}, err
	}
	spec.ID = id
	spec.Forward, spec.Secrets = p.forward(), p.secrets()
	spec.CPUs = p.CPUSet
	limits := cgroup.Limits{MemoryBytes: int64(spec.Limits.MemoryBytes), CPUs: spec.Limits.CPUs}
	// Entering a group can take 10 ms: none for what a resource limit does too.
	if !h.processesByRlimit {
		limits.MaxProcs = int64(spec.Limits.MaxProcs)
	}
	spec.Cgroups = h.layout.Dirs(id, limits)
	return spec, nil
}

func checkID(id string) error {
	ok := id != "" && len(id) <= 128 && strings.IndexFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	}) < 0
	if !ok {
		return fmt.Errorf("%w: %q", ErrID, id)
	}
	return nil
}

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}
