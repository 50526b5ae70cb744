// Package document looks at OCI runtime-spec documents for the backends that run
// them: what they may hold, and what of them the supervisor sees to.
package document

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ErrUnsupported says that a document holds what no backend looks at.
var ErrUnsupported = errors.New("unsupported in a sandbox's document:")

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// Check refuses a document with anything that the backends don't look at, be it
// that bubblewrap has no option for it or that an older runc would ignore it. It works by taking away all that is looked at, and demanding
// that nothing is left: a field that a later runtime-spec adds is refused by
// itself.
func Check(spec *specs.Spec) error {
	if spec.Process == nil || spec.Root == nil || spec.Linux == nil {
		return unsupported("a document without process, root or linux")
	}
	for _, check := range []func(*specs.Spec) error{checkProcess, checkMappings} {
		if err := check(spec); err != nil {
			return err
		}
	}
	rest := *spec
	rest.Version, rest.Hostname, rest.Mounts = "", "", nil
	rest.Process, rest.Root, rest.Linux = nil, nil, nil
	root := *spec.Root
	root.Path, root.Readonly = "", false
	linux := *spec.Linux
	linux.UIDMappings, linux.GIDMappings, linux.Namespaces, linux.Seccomp = nil, nil, nil, nil
	linux.MaskedPaths, linux.ReadonlyPaths, linux.Resources = nil, nil, nil
	for _, left := range []struct {
		name  string
		value any
	}{
		{"", rest}, {"root.", root}, {"linux.", linux},
		{"process.", restOfProcess(spec.Process)}, {"linux.resources.", restOfResources(spec.Linux.Resources)},
	} {
		if field := firstSet(left.value); field != "" {
			return unsupported("%s%s", left.name, field)
		}
	}
	return nil
}

// firstSet names the first field of a struct that isn't zero.
func firstSet(v any) string {
	rv := reflect.ValueOf(v)
	for i := range rv.NumField() {
		if !rv.Field(i).IsZero() {
			name, _, _ := strings.Cut(rv.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

func restOfProcess(p *specs.Process) specs.Process {
	rest := *p
	rest.Args, rest.Cwd, rest.Env, rest.NoNewPrivileges = nil, "", nil, false
	rest.User.UID, rest.User.GID = 0, 0
	rest.Capabilities, rest.Rlimits = nil, nil
	return rest
}

func restOfResources(r *specs.LinuxResources) specs.LinuxResources {
	if r == nil {
		return specs.LinuxResources{}
	}
	rest := *r
	if m := r.Memory; m != nil && reflect.DeepEqual(*m, specs.LinuxMemory{Limit: m.Limit, Swap: m.Swap}) {
		rest.Memory = nil
	}
	if c := r.CPU; c != nil && reflect.DeepEqual(*c, specs.LinuxCPU{Quota: c.Quota, Period: c.Period}) {
		rest.CPU = nil
	}
	rest.Pids = nil
	return rest
}

func checkProcess(spec *specs.Spec) error {
	p := spec.Process
	if !p.NoNewPrivileges {
		return unsupported("a process that may gain privileges") // bwrap sets the flag always
	}
	if !spec.Root.Readonly {
		return unsupported("a writable root")
	}
	if len(p.Args) == 0 {
		return unsupported("a process without arguments")
	}
	if c := p.Capabilities; c == nil || len(c.Bounding)+len(c.Effective)+len(c.Inheritable)+len(c.Permitted)+len(c.Ambient) > 0 {
		return unsupported("a process with capabilities")
	}
	for _, r := range p.Rlimits {
		if !slices.Contains([]string{"RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_FSIZE"}, r.Type) || r.Soft != r.Hard {
			return unsupported("limit %s with soft %d and hard %d", r.Type, r.Soft, r.Hard)
		}
	}
	return nil
}

// checkMappings: exactly the process's own user and group are mapped.
func checkMappings(spec *specs.Spec) error {
	user := spec.Process.User
	for _, m := range []struct {
		name     string
		mappings []specs.LinuxIDMapping
		id       uint32
	}{{"uidMappings", spec.Linux.UIDMappings, user.UID}, {"gidMappings", spec.Linux.GIDMappings, user.GID}} {
		if len(m.mappings) != 1 || m.mappings[0].Size != 1 || m.mappings[0].ContainerID != m.id || m.id == 0 {
			return unsupported("%s other than one, of the process's own id (%d), which isn't 0", m.name, m.id)
		}
	}
	return nil
}
