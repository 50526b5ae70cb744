package runnerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/execution"
	"skerry.internal/runnerd/rpc"
	"skerry.internal/runnerd/workspace"
	"skerry.internal/sandbox"
	"skerry.internal/sandbox/egress"
	"skerry.internal/sandbox/supervisor"
)

// launcher turns what an agent asked for into a sandbox of this host.
type launcher struct {
	cfg  Config
	host *sandbox.Host
	shim string
	net  *egress.Gateway
	ends *ends
	cpus *sandbox.Processors
}

// newLauncher probes the host. A host that cannot make sandboxes at all, or not
// as strong ones as the configuration requires, is an error that says why.
func newLauncher(ctx context.Context, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*launcher, error) {
	shim, err := findShim(cfg.Sandbox.Shim)
	if err != nil {
		return nil, err
	}
	if err := cfg.Sandbox.findReadOnly(); err != nil {
		return nil, err
	}
	state := filepath.Join(cfg.DataDir, "sandbox")
	if err := os.MkdirAll(state, 0o755); err != nil {
		return nil, err
	}
	host, err := openSandbox(ctx, cfg, sandbox.Config{Shim: shim, StateDir: state}, log)
	if err != nil {
		return nil, err
	}
	l := &launcher{cfg: cfg, host: host, shim: shim, ends: newEnds(host.End, log)}
	l.net, err = openGateway(cfg, log, reg)
	if err == nil {
		l.cpus, err = sandbox.NewProcessors()
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// close leaves all sandboxes as they are.
func (l *launcher) close() error {
	if l.net != nil {
		l.net.Close()
	}
	l.ends.close()
	return l.host.Close()
}

func openGateway(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*egress.Gateway, error) {
	network, err := cfg.Network.gateway(filepath.Join(cfg.DataDir, "egress"), sandbox.EgressSocket, cfg.Name)
	if err != nil {
		return nil, err
	}
	return egress.New(network, log, reg)
}

// networks is what calls may choose from.
func (l *launcher) networks() rpc.Networks {
	n := l.cfg.Network
	return rpc.Networks{Default: n.Default, All: slices.Sorted(maps.Keys(n.Policies)), Public: n.public(), Missing: l.host.Report().Require(sandbox.NetworkAllowed)}
}

// findShim gives the supervisor's program: as configured, or beside this one.
func findShim(configured string) (string, error) {
	shim := configured
	if shim == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		shim = filepath.Join(filepath.Dir(self), "runnerd-shim")
	}
	info, err := os.Stat(shim)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = errors.New("not an executable file")
	}
	if err != nil {
		return "", fmt.Errorf("sandbox.shim: %w; install runnerd-shim beside the daemon, or set its path", err)
	}
	return filepath.Abs(shim)
}

// Tier implements execution.Launcher.
func (l *launcher) Tier() string { return string(l.host.Report().Tier) }

func (l *launcher) atLeast(tier string) bool {
	return l.host.Report().Tier.AtLeast(sandbox.Tier(tier))
}

// Backend implements execution.Launcher.
func (l *launcher) Backend() string { return l.host.Backend() }

// policy is what an execution may see and use. Its way to the gateway is made
// once and found again when asked for again.
func (l *launcher) policy(id string, w *workspace.Workspace, launch execution.Launch) (sandbox.Policy, error) {
	limits := l.cfg.Limits
	policy := sandbox.Policy{
		Workspace: w.Tree(),
		Args:      launch.Argv,
		Cwd:       path.Join(sandbox.WorkspaceDir, launch.Cwd),
		Env:       launch.Env,
		TmpBytes:  int64(limits.TmpBytes),
		ShmBytes:  int64(limits.ShmBytes),
		Network:   sandbox.NetworkNone,
		Limits: sandbox.Limits{CPUs: limits.CPUs, MemoryBytes: int64(limits.Memory), MaxProcs: int64(limits.Processes),
			NoFile: limits.OpenFiles, FileSize: uint64(limits.FileBytes)},
		CPUSet:      l.cpus.Take(id, limits.CPUs),
		ThreadsHint: limits.ThreadsHint,
	}
	for _, p := range l.cfg.Sandbox.ReadOnly {
		policy.ReadOnly = append(policy.ReadOnly, sandbox.Bind{Source: p, Target: p})
	}
	if w.UID >= 0 {
		policy.HostUID, policy.HostGID = uint32(w.UID), uint32(w.GID)
	}
	return policy, l.openNetwork(id, w, launch, &policy)
}

// Spec implements execution.Launcher.
func (l *launcher) Spec(_ context.Context, id string, w *workspace.Workspace, launch execution.Launch) (supervisor.Spec, error) {
	limits := l.cfg.Limits
	policy, err := l.policy(id, w, launch)
	if err != nil {
		return supervisor.Spec{}, err
	}
	spec, err := l.host.Command(id, policy)
	if err != nil {
		return spec, err
	}
	spec.Timeout, spec.Grace = launch.Timeout, l.cfg.Grace.D()
	spec.Quota = w.WatchedQuota()
	spec.Log = supervisor.LogLimits{HeadBytes: int64(limits.LogHead), TailBytes: int64(limits.LogTail)}
	return spec, nil
}

// openNetwork makes the execution's way to the gateway, if its policy has one.
func (l *launcher) openNetwork(id string, w *workspace.Workspace, launch execution.Launch, policy *sandbox.Policy) error {
	if !networked(launch) {
		return nil
	}
	dir, err := l.net.Open(id, launch.Network, gateGroup(w))
	if errors.Is(err, egress.ErrNoPolicy) {
		return &execution.RefusedError{Detail: fmt.Sprintf("the network policy %q is no longer in the runner's configuration", launch.Network)}
	}
	policy.Network, policy.Egress = sandbox.NetworkAllowlist, dir
	for _, s := range l.cfg.Network.Policies[launch.Network].Secrets {
		policy.Secrets = append(policy.Secrets, sandbox.Secret{Path: s.ValueFile, Env: s.Env, File: s.File})
	}
	return err
}

// Resume implements execution.Launcher.
func (l *launcher) Resume(id string, w *workspace.Workspace, launch execution.Launch) error {
	l.cpus.Resume(id, supervisor.CPUSet(l.cfg.executionDir(id)), l.cfg.Limits.CPUs)
	if !networked(launch) {
		return nil
	}
	return l.net.Resume(id, launch.Network, gateGroup(w))
}

// Begin implements execution.Launcher.
func (l *launcher) Begin(ctx context.Context, id string, w *workspace.Workspace, launch execution.Launch, h *supervisor.Handle, found bool) error {
	if !h.Connects() {
		return nil
	}
	policy, err := l.policy(id, w, launch)
	if err != nil {
		_, aborted := h.Abort(ctx, err.Error())
		return errors.Join(err, aborted)
	}
	if found {
		return l.host.Resume(ctx, id, h, policy)
	}
	return l.host.Begin(ctx, id, h, policy)
}

// Release implements execution.Launcher.
func (l *launcher) Release(id string) {
	l.cpus.Release(id)
	l.net.Release(id)
	if l.host.Backend() != sandbox.Bubblewrap {
		l.ends.add(id)
	}
}

// sweep removes what a daemon that was killed left of executions that are no
// more. Sandboxes go off the daemon's way to its start, as a runtime that hangs
// with one of them must not keep all other work waiting.
func (l *launcher) sweep(live func(id string) bool) error {
	l.ends.until("sandboxes of ended executions not removed", func() error { return l.host.Sweep(l.ends.ctx, live) })
	return l.net.Sweep()
}

func networked(launch execution.Launch) bool {
	return launch.Network != "" && launch.Network != skerryv1.NetworkNone
}

// gateGroup is the host's group that may pass the directory of the gateway's socket.
func gateGroup(w *workspace.Workspace) int {
	if w.UID < 0 {
		return os.Getgid()
	}
	return w.GID
}
