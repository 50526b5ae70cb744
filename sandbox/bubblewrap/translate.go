package bubblewrap

import (
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/supervisor"
)

// translation is one document on its way to a command line.
type translation struct {
	config Config
	spec   *specs.Spec
	files  []supervisor.FileArg
	named  []string // sources named by path
}

// options are bubblewrap's, in the order in which it acts on them.
func (t *translation) options() ([]string, error) {
	out, err := t.namespaces()
	if err != nil {
		return nil, err
	}
	out = append(out, "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--clearenv")
	for _, pair := range t.spec.Process.Env {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, unsupported("environment entry %q", pair)
		}
		out = append(out, "--setenv", supervisor.Literal(name), supervisor.Literal(value))
	}
	out = append(out, t.bind(true, t.spec.Root.Path, "/")...)
	mounts, err := t.mounts()
	if err != nil {
		return nil, err
	}
	out = append(out, mounts...)
	out = append(out, masks(t.spec)...)
	return append(out, "--chdir", supervisor.Literal(t.spec.Process.Cwd)), nil
}

func (t *translation) namespaces() ([]string, error) {
	flags := map[specs.LinuxNamespaceType]string{
		specs.UserNamespace: "--unshare-user", specs.PIDNamespace: "--unshare-pid", specs.IPCNamespace: "--unshare-ipc",
		specs.UTSNamespace: "--unshare-uts", specs.NetworkNamespace: "--unshare-net", specs.CgroupNamespace: "--unshare-cgroup",
		specs.MountNamespace: "", // always
	}
	var out []string
	var have []specs.LinuxNamespaceType
	for _, ns := range t.spec.Linux.Namespaces {
		flag, ok := flags[ns.Type]
		if !ok || ns.Path != "" {
			return nil, unsupported("name space %s %s", ns.Type, ns.Path)
		}
		have = append(have, ns.Type)
		if flag != "" {
			out = append(out, flag)
		}
	}
	for _, needed := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace} {
		if !slices.Contains(have, needed) {
			return nil, unsupported("a sandbox that shares the host's %s name space", needed)
		}
	}
	if t.spec.Hostname != "" {
		if !slices.Contains(have, specs.UTSNamespace) {
			return nil, unsupported("a host name without a uts name space")
		}
		out = append(out, "--hostname", supervisor.Literal(t.spec.Hostname))
	}
	user := t.spec.Process.User
	out = append(out, "--uid", strconv.Itoa(int(user.UID)), "--gid", strconv.Itoa(int(user.GID)))
	if t.config.DisableUserns {
		out = append(out, "--disable-userns")
	}
	return out, nil
}

// bind mounts a host path, by descriptor unless it lies in a system directory.
func (t *translation) bind(readOnly bool, source, target string) []string {
	if under(source, t.config.SystemDirs) {
		t.named = append(t.named, source)
		return []string{choose(readOnly, "--ro-bind", "--bind"), source, target}
	}
	name := "bind" + strconv.Itoa(len(t.files))
	fd := t.addFile(supervisor.FileArg{Name: name, Path: source})
	if t.config.BindFD {
		return []string{choose(readOnly, "--ro-bind-fd", "--bind-fd"), fd, target}
	}
	return []string{choose(readOnly, "--ro-bind", "--bind"), "{path:" + name + "}", target}
}

func (t *translation) addFile(f supervisor.FileArg) (placeholder string) {
	t.files = append(t.files, f)
	return "{fd:" + f.Name + "}"
}

func choose(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

func under(path string, dirs []string) bool {
	for _, dir := range dirs {
		if path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return false
}
