package containerd

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/document"
	"skerry.internal/sandbox/supervisor"
)

// ErrUnsupported says that the document asks for something that this backend
// can't give.
var ErrUnsupported = errors.New("containerd can't express")

// groupDir holds runc's control groups in each hierarchy.
const groupDir = "/skerry-containerd"

// check refuses what an older runc would ignore.
func check(doc *specs.Spec) error {
	if err := document.Check(doc); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	var have []specs.LinuxNamespaceType
	for _, ns := range doc.Linux.Namespaces {
		if ns.Path != "" {
			return fmt.Errorf("%w the %s name space %s", ErrUnsupported, ns.Type, ns.Path)
		}
		have = append(have, ns.Type)
	}
	for _, needed := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		if !slices.Contains(have, needed) {
			return fmt.Errorf("%w a sandbox that shares the host's %s name space", ErrUnsupported, needed)
		}
	}
	if doc.Linux.UIDMappings[0].HostID == 0 || doc.Linux.GIDMappings[0].HostID == 0 {
		return fmt.Errorf("%w the host's uid or gid 0 in a sandbox", ErrUnsupported)
	}
	return nil
}

// adapt gives the document as runc runs it. It differs in this, and in nothing
// else:
//
//   - The process is init, which connects to the supervisor; the command's
//     directory, environment and resource limits are given to it there. Its own
//     directory is the root, which no agent chose.
//   - The kernel takes the sandbox first when the host's memory runs out, as
//     bubblewrap's.
//   - The container's root, whom runc makes the mounts as, is an unprivileged
//     user of the host that no agent has. No process of the container is it, and
//     there are no capabilities to become it.
//   - Private file systems belong to the command's user, and /dev is read-only.
//   - No limits: runc makes an empty control group, and the supervisor puts the
//     command into groups of ours. With runc's, init would share the command's
//     limits and be killed by its bombs, the figures would be gone with the
//     container before anybody read them, and on version 1 there'd be one path
//     for controllers whose usable roots differ.
//   - With an image, the host's system directories are not shown.
func (b *Backend) adapt(id, dir string, doc *specs.Spec) (*specs.Spec, error) {
	if err := check(doc); err != nil {
		return nil, err
	}
	out, process, linux := *doc, *doc.Process, *doc.Linux
	out.Process, out.Linux = &process, &linux
	out.Root = &specs.Root{Path: "rootfs", Readonly: true}
	socket := filepath.Join(b.config.ControlDir, supervisor.ControlSocket)
	process.Args = append([]string{b.config.Init, "init", "--connect", socket, "--"}, doc.Process.Args...)
	process.Cwd, process.Env = "/", nil
	process.Rlimits = nil
	first := 1000
	process.OOMScoreAdj = &first
	out.Mounts = b.mounts(dir, doc)
	root := specs.LinuxIDMapping{ContainerID: 0, Size: 1}
	root.HostID = b.config.RootUID
	linux.UIDMappings = append([]specs.LinuxIDMapping{root}, doc.Linux.UIDMappings...)
	root.HostID = b.config.RootGID
	linux.GIDMappings = append([]specs.LinuxIDMapping{root}, doc.Linux.GIDMappings...)
	for _, m := range doc.Linux.UIDMappings {
		if m.HostID == b.config.RootUID {
			return nil, fmt.Errorf("%w the agent's uid %d as the container's root too", ErrUnsupported, m.HostID)
		}
	}
	linux.CgroupsPath = filepath.Join(groupDir, id)
	linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	linux.Seccomp = forLibseccomp(doc.Linux.Seccomp)
	return &out, nil
}

func (b *Backend) mounts(dir string, doc *specs.Spec) []specs.Mount {
	user := doc.Process.User
	owner := []string{fmt.Sprintf("uid=%d", user.UID), fmt.Sprintf("gid=%d", user.GID)}
	var out []specs.Mount
	for _, m := range doc.Mounts {
		switch {
		case b.config.Image != "" && b.isSystem(m):
			continue
		case m.Type == "tmpfs" && m.Destination == "/dev":
			m.Options = append(slices.Clone(m.Options), "ro")
		case m.Type == "tmpfs":
			m.Options = append(slices.Clone(m.Options), owner...)
		}
		out = append(out, m)
	}
	return append(out, specs.Mount{Destination: b.config.ControlDir, Type: "bind", Source: filepath.Join(dir, supervisor.ControlDir),
		Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec"}})
}

// isSystem: a directory of the host's own system, not one that a policy shows
// beside it, which may well lie below /usr.
func (b *Backend) isSystem(m specs.Mount) bool {
	return m.Type == "bind" && m.Source == m.Destination && slices.Contains(b.config.System, m.Destination)
}

// forLibseccomp gives what of the profile libseccomp takes: it knows no order of
// rules, so that an exception and the rule behind it both go. This is the second
// wall: init loads the complete profile, compiled, before the command starts.
func forLibseccomp(profile *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	if profile == nil {
		return nil
	}
	out := *profile
	excepted := map[string]bool{}
	for _, rule := range profile.Syscalls {
		if rule.Action == profile.DefaultAction {
			for _, name := range rule.Names {
				excepted[name] = true
			}
		}
	}
	out.Syscalls = nil
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(n string) bool { return excepted[n] })
		if len(rule.Names) > 0 {
			out.Syscalls = append(out.Syscalls, rule)
		}
	}
	return &out
}
