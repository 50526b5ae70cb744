package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"skerry.internal/sandbox/bubblewrap"
	"skerry.internal/sandbox/cgroup"
	"skerry.internal/sandbox/diskquota"
)

// probeTimeout bounds each single sandbox that is tried.
const probeTimeout = 20 * time.Second

// stageDirs are candidates to be covered in private mount name spaces.
var stageDirs = []string{"/mnt", "/media", "/srv", "/home", "/opt"}

// prober finds out, from the simplest sandbox to the complete one, what works.
type prober struct {
	config Config
	host   *Host
	bwrap  string
	// notMade is why the backend could not make a sandbox.
	notMade error
}

func (p *prober) run(ctx context.Context) error {
	if p.config.Backend == Containerd {
		return p.runContainerd(ctx)
	}
	if !p.findBwrap(ctx) || !p.tryUserns(ctx) || !p.tryProc(ctx) {
		p.host.report.Tier = TierNone
		return ctx.Err()
	}
	disable := p.tryOption(ctx, "--disable-userns")
	p.add(Guarantee{Name: CgroupNamespace, Available: p.tryOption(ctx, "--unshare-cgroup"), Remedy: "a kernel with CONFIG_CGROUPS and cgroup name spaces"})
	p.cgroups()
	p.quotas()
	p.host.backend = bwrapBackend{bubblewrap.New(bubblewrap.Config{
		Path:          p.bwrap,
		BindFD:        p.host.report.has(BindByFD),
		DisableUserns: disable,
		Init:          InitPath,
		SystemDirs:    p.host.system.Dirs,
		StageDirs:     stageDirs,
	})}
	if err := p.tryComplete(ctx, choose(disable, "by bubblewrap and seccomp", "by seccomp")); err != nil {
		return err
	}
	p.host.report.Tier = p.host.report.tier()
	return ctx.Err()
}

func (p *prober) add(g Guarantee) {
	if g.Available {
		g.Remedy = ""
	}
	p.host.report.Guarantees = append(p.host.report.Guarantees, g)
}

func (p *prober) findBwrap(ctx context.Context) bool {
	g := Guarantee{Name: Bubblewrap, Remedy: "install the package bubblewrap (0.8 or newer), or set its path"}
	path := p.config.Bwrap
	if path == "" {
		path = "bwrap"
	}
	path, err := exec.LookPath(path)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		g.Why = err.Error()
		p.add(g)
		return false
	}
	p.bwrap = path
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		g.Why = fmt.Sprintf("%s does not run: %v", path, err)
		p.add(g)
		return false
	}
	help, _ := exec.CommandContext(ctx, path, "--help").CombinedOutput()
	g.Available, g.Why = true, strings.TrimSpace(string(version))
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSetuid != 0 {
		g.Available, g.Why = false, path+" is setuid: a privileged program that takes an agent's arguments"
		g.Remedy = "chmod u-s " + path
	}
	p.add(g)
	p.add(Guarantee{Name: BindByFD, Available: bytes.Contains(help, []byte("--bind-fd")),
		Remedy: "bubblewrap 0.10, or 0.8 of Debian 12; without it, a directory swapped during the set-up is not noticed"})
	return g.Available
}

// base is the least sandbox that can run something.
func (p *prober) base(extra ...string) []string {
	args := []string{"--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/"}
	return append(append(args, extra...), "--", "true")
}

// try runs bubblewrap as the user that agents will be.
func (p *prober) try(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.bwrap, args...)
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.config.ProbeUID, Gid: p.config.ProbeGID}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func (p *prober) tryOption(ctx context.Context, option string) bool {
	return p.try(ctx, p.base(option)) == nil
}

func (p *prober) tryUserns(ctx context.Context) bool {
	err := p.try(ctx, p.base())
	g := Guarantee{Name: UserNamespaces, Available: err == nil}
	if err != nil {
		g.Why, g.Remedy = explainUserns(p.config.sysctls, err)
	}
	p.add(g)
	return err == nil
}

func (p *prober) tryProc(ctx context.Context) bool {
	err := p.try(ctx, p.base("--proc", "/proc"))
	g := Guarantee{Name: ProcMount, Available: err == nil}
	if err != nil {
		g.Why = err.Error()
		g.Remedy = "this looks like a container that masks /proc: run it with unmasked system paths (docker: --security-opt systempaths=unmasked; Kubernetes: procMount: Unmasked), or run the daemon on the host"
	}
	p.add(g)
	return err == nil
}

func (p *prober) cgroups() {
	for _, c := range []struct{ name, controller string }{{MemoryLimit, cgroup.Memory}, {ProcessLimit, cgroup.Pids}, {CPULimit, cgroup.CPU}} {
		g := Guarantee{Name: c.name, Available: p.host.layout.Has(c.controller)}
		switch {
		case c.name == ProcessLimit && p.host.processesByRlimit:
			g.Available, g.Why = true, "by the sandbox's user name space"
		case g.Available:
			g.Why = "control groups, " + p.host.layout.Version()
		case p.config.NoCgroups:
			g.Why, g.Remedy = "control groups are switched off", "switch them on in the daemon's configuration"
		default:
			g.Why = p.host.layout.Why[c.controller]
			g.Remedy = "run the daemon as root or as a systemd unit with Delegate=yes; until then limits hold for single processes only"
		}
		p.add(g)
	}
	root := os.Getuid() == 0
	p.add(Guarantee{Name: UIDSeparation, Available: root, Why: choose(root, "", "the daemon is not root, so all agents share its uid"),
		Remedy: "run the daemon as root; it runs no agent's code as root"})
}

func (p *prober) quotas() {
	g := Guarantee{Name: ProjectQuota, Remedy: "put data_dir on ext4 or xfs mounted with prjquota and run the daemon as root; until then the quota is watched while a command runs, and counted at its end"}
	if p.config.QuotaDir == "" {
		g.Why, g.Remedy = "it is switched off", "limits.project_quota: auto"
	} else if err := diskquota.Enforced(p.config.QuotaDir); err != nil {
		g.Why = err.Error()
	} else {
		g.Available, g.Why = true, "by the file system of data_dir"
	}
	p.add(g)
}

func choose(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

// explainUserns names the cause of a failure to make a user name space, and the
// cure (F15).
func explainUserns(sysctls string, failure error) (why, remedy string) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(sysctls, name))
		if errors.Is(err, os.ErrNotExist) {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	switch {
	case read("kernel/unprivileged_userns_clone") == "0":
		return "user name spaces are switched off (kernel.unprivileged_userns_clone is 0)", "sysctl -w kernel.unprivileged_userns_clone=1, and a file in /etc/sysctl.d to keep it"
	case read("user/max_user_namespaces") == "0":
		return "user name spaces are switched off (user.max_user_namespaces is 0)", "sysctl -w user.max_user_namespaces=63000, and a file in /etc/sysctl.d to keep it"
	case read("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor lets only confined programs make user name spaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
			"load an AppArmor profile that grants bwrap 'userns' (see deploy/apparmor), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	}
	return failure.Error(), "if this is a container, its runtime must allow user name spaces (docker: --security-opt seccomp=unconfined or a profile that allows clone with CLONE_NEWUSER)"
}
