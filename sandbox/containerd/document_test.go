package containerd

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/seccomp"
	"skerry.internal/sandbox/supervisor"
)

func plain() *specs.Spec {
	memory, pids := int64(1<<30), int64(100)
	doc := &specs.Spec{
		Version: specs.Version, Hostname: "h", Root: &specs.Root{Path: "/srv/root", Readonly: true},
		Process: &specs.Process{User: specs.User{UID: 1000, GID: 1000}, Args: []string{"cmd", "{fd:x}"}, Cwd: "/w", Env: []string{"SECRET=value", "PATH=/usr/bin"},
			Capabilities: &specs.LinuxCapabilities{}, NoNewPrivileges: true, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 64, Soft: 64}}},
		Mounts: []specs.Mount{
			{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=1"}},
			{Destination: "/w", Type: "bind", Source: "/data/w", Options: []string{"rbind", "rw"}},
		},
		Linux: &specs.Linux{
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 5000, Size: 1}}, GIDMappings: []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 5001, Size: 1}},
			Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}, Pids: &specs.LinuxPids{Limit: &pids}}, Seccomp: seccomp.Default(),
			MaskedPaths: []string{"/proc/keys"}, ReadonlyPaths: []string{"/proc/sys"},
		},
	}
	for _, ns := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.NetworkNamespace} {
		doc.Linux.Namespaces = append(doc.Linux.Namespaces, specs.LinuxNamespace{Type: ns})
	}
	return doc
}

func newBackend(t *testing.T, image string) *Backend {
	t.Helper()
	b, err := New(Config{Address: "/no/such/socket", Namespace: "n", Runtime: DefaultRuntime, Owner: "o", RootUID: 9000, RootGID: 9001, Init: "/i", ControlDir: "/c", Image: image, System: []string{"/usr"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// What runc runs differs from the policy's document in the listed things alone.
func TestAdaptChangesOnlyWhatItSays(t *testing.T) {
	doc := plain()
	before, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	got, err := newBackend(t, "").adapt("ex_1", "/exec", doc)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := json.Marshal(doc); err != nil || string(after) != string(before) {
		t.Errorf("the policy's document was changed: %v", err)
	}
	want := plain()
	score := 1000
	want.Root.Path = "rootfs"
	want.Process.Args = []string{"/i", "init", "--connect", "/c/sock", "--", "cmd", "{fd:x}"}
	want.Process.Cwd, want.Process.Env, want.Process.Rlimits, want.Process.OOMScoreAdj = "/", nil, nil, &score
	want.Mounts[1].Options = []string{"mode=755", "ro"}
	want.Mounts[2].Options = []string{"size=1", "uid=1000", "gid=1000"}
	want.Mounts = append(want.Mounts, specs.Mount{Destination: "/c", Type: "bind", Source: "/exec/control", Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec"}})
	want.Linux.UIDMappings = append([]specs.LinuxIDMapping{{ContainerID: 0, HostID: 9000, Size: 1}}, want.Linux.UIDMappings...)
	want.Linux.GIDMappings = append([]specs.LinuxIDMapping{{ContainerID: 0, HostID: 9001, Size: 1}}, want.Linux.GIDMappings...)
	want.Linux.CgroupsPath = "/skerry-containerd/ex_1"
	want.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}
	want.Linux.Seccomp = got.Linux.Seccomp // see below
	if !reflect.DeepEqual(got, want) {
		a, _ := json.MarshalIndent(got, "", " ")
		b, _ := json.MarshalIndent(want, "", " ")
		t.Errorf("got %s\nwant %s", a, b)
	}
	image, err := newBackend(t, "an/image").adapt("ex_1", "/exec", plain())
	if err != nil || len(image.Mounts) != len(want.Mounts)-1 || image.Mounts[0].Destination == "/usr" {
		t.Errorf("with an image the host's system is shown: %v, %v", image.Mounts, err)
	}
}

// libseccomp gets every rule but those whose meaning hangs on their order.
func TestForLibseccompKeepsDenials(t *testing.T) {
	full, reduced := seccomp.Default(), forLibseccomp(seccomp.Default())
	names := func(p *specs.LinuxSeccomp) (all []string) {
		for _, r := range p.Syscalls {
			if r.Action == p.DefaultAction {
				continue
			}
			all = append(all, r.Names...)
		}
		return all
	}
	for _, n := range names(full) {
		if n != "personality" && !slices.Contains(names(reduced), n) {
			t.Errorf("%s is lost", n)
		}
	}
	for _, r := range reduced.Syscalls {
		if r.Action == reduced.DefaultAction || slices.Contains(r.Names, "personality") {
			t.Errorf("rule %+v", r)
		}
	}
}

// Values of an agent go to the supervisor, and the whole filter with them.
func TestCommandKeepsValuesFromContainerd(t *testing.T) {
	b := newBackend(t, "")
	spec, err := b.Command(plain())
	if err != nil {
		t.Fatal(err)
	}
	spec.Version = supervisor.SpecVersion
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
	if got := spec.Files[0].Args; !slices.Equal(got, []string{"/w", "SECRET=value", "PATH=/usr/bin"}) {
		t.Errorf("place %q", got)
	}
	if spec.Credential.UID != 5000 || spec.Credential.GID != 5001 || spec.Limits.NoFile != 64 || spec.Limits.MemoryBytes != 1<<30 || len(spec.Files[1].Data) == 0 {
		t.Errorf("spec %+v", spec)
	}
	doc, err := b.adapt("ex_1", "/exec", plain())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(doc); err != nil || strings.Contains(string(text), "SECRET") {
		t.Errorf("containerd gets the environment (%v)", err)
	}
}

func TestRefusedDocuments(t *testing.T) {
	b := newBackend(t, "")
	for name, change := range map[string]func(*specs.Spec){
		"host's root":        func(d *specs.Spec) { d.Linux.UIDMappings[0].HostID = 0 },
		"host's group":       func(d *specs.Spec) { d.Linux.GIDMappings[0].HostID = 0 },
		"container's root":   func(d *specs.Spec) { d.Process.User.UID, d.Linux.UIDMappings[0].ContainerID = 0, 0 },
		"root's own uid":     func(d *specs.Spec) { d.Linux.UIDMappings[0].HostID = 9000 },
		"capabilities":       func(d *specs.Spec) { d.Process.Capabilities.Effective = []string{"CAP_CHOWN"} },
		"new privileges":     func(d *specs.Spec) { d.Process.NoNewPrivileges = false },
		"writable root":      func(d *specs.Spec) { d.Root.Readonly = false },
		"host's network":     func(d *specs.Spec) { d.Linux.Namespaces = d.Linux.Namespaces[:5] },
		"joined name space":  func(d *specs.Spec) { d.Linux.Namespaces[1].Path = "/proc/1/ns/pid" },
		"hooks":              func(d *specs.Spec) { d.Hooks = &specs.Hooks{} },
		"time offsets":       func(d *specs.Spec) { d.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {}} },
		"devices":            func(d *specs.Spec) { d.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x"}} },
		"a newer field":      func(d *specs.Spec) { d.Process.IOPriority = &specs.LinuxIOPriority{} },
		"limits not ours":    func(d *specs.Spec) { d.Linux.Resources.Unified = map[string]string{"a": "b"} },
		"no command":         func(d *specs.Spec) { d.Process.Args = nil },
		"unknown call":       func(d *specs.Spec) { d.Linux.Seccomp.Syscalls[0].Names = []string{"no_such_call"} },
		"listener":           func(d *specs.Spec) { d.Linux.Seccomp.ListenerPath = "/x" },
		"no user name space": func(d *specs.Spec) { d.Linux.Namespaces = d.Linux.Namespaces[1:] },
	} {
		doc := plain()
		change(doc)
		_, err := b.Command(doc)
		if name == "root's own uid" {
			_, err = b.adapt("ex_1", "/exec", doc)
		}
		typed := errors.Is(err, ErrUnsupported)
		if name == "unknown call" || name == "listener" {
			typed = err != nil // package seccomp's
		}
		if !typed {
			t.Errorf("%s: %v", name, err)
		}
	}
}
