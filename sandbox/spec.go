package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/seccomp"
	"skerry.internal/sandbox/supervisor"
)

// Spec writes the policy down as an OCI runtime-spec document. Source paths are
// the host's; process.args is the agent's command alone: how pid 1 gets in
// front of it is the runtime's affair.
func (p Policy) Spec() (*specs.Spec, error) {
	p = p.withDefaults()
	if err := p.validate(); err != nil {
		return nil, err
	}
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: p.Hostname,
		Root:     &specs.Root{Path: p.Rootfs, Readonly: true},
		Process:  p.process(),
		Mounts:   p.mounts(),
		Linux: &specs.Linux{
			UIDMappings:   []specs.LinuxIDMapping{{ContainerID: UserID, HostID: p.HostUID, Size: 1}},
			GIDMappings:   []specs.LinuxIDMapping{{ContainerID: GroupID, HostID: p.HostGID, Size: 1}},
			Namespaces:    p.namespaces(),
			Resources:     p.resources(),
			Seccomp:       seccomp.Default(),
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}, nil
}

// maskedPaths of the kernel tell of the host's hardware, keys and timing.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func (p Policy) process() *specs.Process {
	return &specs.Process{
		User:            specs.User{UID: UserID, GID: GroupID},
		Args:            p.Args,
		Cwd:             p.Cwd,
		Env:             p.environment(),
		Capabilities:    &specs.LinuxCapabilities{},
		NoNewPrivileges: true,
		Rlimits:         p.rlimits(),
	}
}

// threadVariables are what libraries and tools read the number of threads from.
var threadVariables = []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS", "GOMAXPROCS", "PYTHON_CPU_COUNT"}

// environment gives NAME=value pairs in order. The CPU limit is told to the
// libraries that would otherwise start a thread for every visible core (F20).
func (p Policy) environment() []string {
	env := map[string]string{
		"HOME": HomeDir, "USER": UserName, "LOGNAME": UserName, "SHELL": "/bin/bash",
		"LANG": "C.UTF-8", "TMPDIR": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin",
	}
	if p.EnvPrefix != "" {
		env["PATH"] = EnvDir + "/bin:" + env["PATH"]
	}
	if threads := p.threads(); threads > 0 {
		n := strconv.Itoa(threads)
		for _, name := range threadVariables {
			env[name] = n
		}
		env["MAKEFLAGS"] = "-j" + n
	}
	maps.Copy(env, p.proxyEnvironment())
	maps.Copy(env, p.Env)
	pairs := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		pairs = append(pairs, name+"="+env[name])
	}
	return pairs
}

// proxyEnvironment tells programs of the only way out. A command's own values
// override it: without the proxy nothing is reached, so that they weaken nothing.
func (p Policy) proxyEnvironment() map[string]string {
	if p.Network != NetworkAllowlist {
		return nil
	}
	proxy := "http://127.0.0.1:" + strconv.Itoa(ProxyPort)
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"http_proxy": proxy, "HTTP_PROXY": proxy, "https_proxy": proxy, "HTTPS_PROXY": proxy,
		"all_proxy": proxy, "ALL_PROXY": proxy, "no_proxy": direct, "NO_PROXY": direct,
	}
}

// forward is what pid 1 must do for the network; nil: nothing.
func (p Policy) forward() *supervisor.Forward {
	if p.Network != NetworkAllowlist {
		return nil
	}
	return &supervisor.Forward{Port: ProxyPort, Socket: EgressDir + "/" + EgressSocket}
}

// secrets is what pid 1 must hand to the command.
func (p Policy) secrets() []supervisor.Secret {
	var out []supervisor.Secret
	for _, s := range p.Secrets {
		secret := supervisor.Secret{Path: s.Path, Env: s.Env}
		if s.File != "" {
			secret.File = SecretDir + "/" + s.File
		}
		out = append(out, secret)
	}
	return out
}

func (p Policy) rlimits() []specs.POSIXRlimit {
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}
	if n := p.Limits.FileSize; n > 0 {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_FSIZE", Hard: n, Soft: n})
	}
	if n := p.Limits.NoFile; n > 0 {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: n, Soft: n})
	}
	return limits
}

func (p Policy) mounts() []specs.Mount {
	var mounts []specs.Mount
	for _, dir := range p.System {
		mounts = append(mounts, readOnly(dir, dir))
	}
	mounts = append(mounts,
		specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		tmpfs("/dev/shm", p.ShmBytes, "1777"),
		tmpfs("/tmp", p.TmpBytes, "1777"),
		tmpfs("/run", runBytes, "755"),
		tmpfs(HomeDir, p.HomeBytes, "700"),
		specs.Mount{Destination: WorkspaceDir, Type: "bind", Source: p.Workspace, Options: []string{"rbind", "rw", "nosuid", "nodev"}},
	)
	if p.EnvPrefix != "" {
		mounts = append(mounts, readOnly(p.EnvPrefix, EnvDir))
	}
	mounts = append(mounts, readOnly(p.Init, InitPath))
	if p.Egress != "" {
		mounts = append(mounts, readOnly(p.Egress, EgressDir))
	}
	for _, b := range p.ReadOnly {
		mounts = append(mounts, readOnly(b.Source, b.Target))
	}
	return mounts
}

func readOnly(source, target string) specs.Mount {
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"rbind", "ro", "nosuid", "nodev"}}
}

func tmpfs(target string, bytes int64, mode string) specs.Mount {
	return specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs",
		Options: []string{"nosuid", "nodev", "mode=" + mode, fmt.Sprintf("size=%d", bytes)}}
}

func (p Policy) namespaces() []specs.LinuxNamespace {
	namespaces := []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
		{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
	}
	if p.CgroupNamespace {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return namespaces
}

// cpuPeriod in microseconds is the kernel's default.
const cpuPeriod = 100_000

func (p Policy) resources() *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if n := p.Limits.MemoryBytes; n > 0 {
		swap := n // memory and swap together: no swap
		r.Memory = &specs.LinuxMemory{Limit: &n, Swap: &swap}
	}
	if n := p.Limits.MaxProcs; n > 0 {
		r.Pids = &specs.LinuxPids{Limit: &n}
	}
	if p.Limits.CPUs > 0 {
		period := uint64(cpuPeriod)
		quota := int64(p.Limits.CPUs * cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return r
}
