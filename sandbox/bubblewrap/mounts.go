package bubblewrap

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts translates the document's mounts in their order. bubblewrap makes
// every bind nosuid and nodev, and every tmpfs too.
func (t *translation) mounts() ([]string, error) {
	var out []string
	for _, m := range t.spec.Mounts {
		args, err := t.mount(m)
		if err != nil {
			return nil, err
		}
		out = append(out, args...)
	}
	if t.hasMount("/dev") {
		// --dev makes a tmpfs without a size, which would be a hole in every
		// limit of memory. Its nodes work on a read-only mount as well.
		out = append(out, "--remount-ro", "/dev")
	}
	return out, nil
}

func (t *translation) hasMount(target string) bool {
	return slices.ContainsFunc(t.spec.Mounts, func(m specs.Mount) bool { return m.Destination == target })
}

func (t *translation) mount(m specs.Mount) ([]string, error) {
	if !path.IsAbs(m.Destination) || path.Clean(m.Destination) != m.Destination {
		return nil, unsupported("mount target %q", m.Destination)
	}
	if len(m.UIDMappings)+len(m.GIDMappings) > 0 {
		return nil, unsupported("an idmapped mount at %s", m.Destination)
	}
	switch {
	case m.Type == "proc" && m.Destination == "/proc":
		return []string{"--proc", "/proc"}, onlyOptions(m, "nosuid", "noexec", "nodev")
	case m.Type == "tmpfs" && m.Destination == "/dev":
		return t.dev(m)
	case m.Type == "devpts" && m.Destination == "/dev/pts":
		// Part of --dev.
		return nil, onlyOptions(m, "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620")
	case m.Type == "tmpfs":
		return tmpfs(m)
	case m.Type == "bind":
		readOnly := slices.Contains(m.Options, "ro")
		return t.bind(readOnly, m.Source, m.Destination), onlyOptions(m, "rbind", "ro", "rw", "nosuid", "nodev")
	}
	return nil, unsupported("a mount of type %q at %s", m.Type, m.Destination)
}

func (t *translation) dev(m specs.Mount) ([]string, error) {
	if !t.hasMount("/dev/pts") {
		return nil, unsupported("/dev without /dev/pts")
	}
	// It becomes read-only, which is stricter than any size.
	return []string{"--dev", "/dev"}, onlyOptions(m, "nosuid", "strictatime", "mode=755", "size=65536k")
}

func tmpfs(m specs.Mount) ([]string, error) {
	var size, mode string
	for _, option := range m.Options {
		if v, ok := strings.CutPrefix(option, "size="); ok {
			if _, err := strconv.ParseUint(v, 10, 63); err != nil {
				return nil, unsupported("tmpfs size %q at %s: want bytes", v, m.Destination)
			}
			size = v
		}
		if v, ok := strings.CutPrefix(option, "mode="); ok {
			mode = v
		}
	}
	if size == "" || size == "0" {
		return nil, unsupported("a tmpfs without a size at %s", m.Destination)
	}
	out := []string{"--size", size}
	if mode != "" {
		out = append(out, "--perms", mode)
	}
	return append(out, "--tmpfs", m.Destination), onlyOptions(m, "nosuid", "nodev", "size="+size, "mode="+mode)
}

// onlyOptions refuses an option that the translation would drop.
func onlyOptions(m specs.Mount, known ...string) error {
	for _, option := range m.Options {
		if !slices.Contains(known, option) {
			return unsupported("mount option %q at %s", option, m.Destination)
		}
	}
	return nil
}

// masks covers kernel files that the sandbox's user could read otherwise. What
// this kernel lacks, or lets only root read, needs no cover: the sandbox has no
// root. The same goes for ReadonlyPaths: files of /proc belong to the host's
// root, whom no sandbox maps.
func masks(spec *specs.Spec) []string {
	var out []string
	for _, p := range spec.Linux.MaskedPaths {
		if !strings.HasPrefix(p, "/proc/") {
			continue // checkExpressible has seen to it that nothing is mounted there
		}
		info, err := os.Stat(p)
		switch {
		case err != nil || info.Mode().Perm()&0o007 == 0:
		case info.IsDir():
			out = append(out, "--size", "4096", "--tmpfs", p, "--remount-ro", p)
		default:
			// A device node on a mount with nodev can't even be opened.
			out = append(out, "--ro-bind", "/dev/null", p)
		}
	}
	return out
}

// checkMasks: what can't be covered must not be visible at all.
func checkMasks(spec *specs.Spec) error {
	for _, p := range append(slices.Clone(spec.Linux.MaskedPaths), spec.Linux.ReadonlyPaths...) {
		if strings.HasPrefix(p, "/proc/") {
			continue
		}
		for _, m := range spec.Mounts {
			if under(p, []string{m.Destination}) || under(m.Destination, []string{p}) {
				return unsupported("a masked or read-only path %s within the mount at %s", p, m.Destination)
			}
		}
	}
	return nil
}
