package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// System is what of the host's own tools a sandbox shows.
type System struct {
	// Dirs are seen read-only at their own paths.
	Dirs []string
	// Links are symlinks of the root directory, such as bin -> usr/bin.
	Links map[string]string
}

// DetectSystem looks at the root directory of the host.
func DetectSystem() (System, error) {
	s := System{Dirs: []string{"/usr"}, Links: map[string]string{}}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		info, err := os.Lstat("/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("look at the host's tools: %w", err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			s.Dirs = append(s.Dirs, "/"+name)
			continue
		}
		target, err := os.Readlink("/" + name)
		if err != nil {
			return s, fmt.Errorf("look at the host's tools: %w", err)
		}
		s.Links[name] = target
	}
	return s, nil
}

// BuildRootfs makes the root directory that all sandboxes share, below parent,
// and gives its path: an /etc that knows the sandbox's user and otherwise holds
// only public files of the host, and the mount points, mountPoints in addition.
// A directory that exists is never changed: another content gets another name,
// so that running sandboxes keep theirs.
func BuildRootfs(parent string, system System, mountPoints []string) (string, error) {
	tmp, err := os.MkdirTemp(parent, ".rootfs-")
	if err != nil {
		return "", fmt.Errorf("build rootfs: %w", err)
	}
	defer os.RemoveAll(tmp)
	b := &rootfsBuilder{dir: tmp, sum: sha256.New()}
	if err := b.build(system, mountPoints); err != nil {
		return "", fmt.Errorf("build rootfs: %w", err)
	}
	final := filepath.Join(parent, "rootfs-"+hex.EncodeToString(b.sum.Sum(nil))[:16])
	err = os.Rename(tmp, final)
	if errors.Is(err, fs.ErrExist) { // the same content is there already
		return final, nil
	}
	if err != nil {
		return "", fmt.Errorf("build rootfs: %w", err)
	}
	return final, nil
}

// rootfsBuilder writes a tree and sums up what it writes.
type rootfsBuilder struct {
	dir   string
	sum   hash.Hash
	bytes int64
}

func (b *rootfsBuilder) build(system System, mountPoints []string) error {
	dirs := []string{"/proc", "/dev", "/tmp", "/run", HomeDir, WorkspaceDir, EnvDir, EgressDir, ControlDir, "/etc", "/var"}
	dirs = append(append(dirs, system.Dirs...), mountPoints...)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("mount point %q is not an absolute path", dir)
		}
		if err := b.mkdir(dir); err != nil {
			return err
		}
	}
	links := []string{"/var/tmp", "/tmp", "/var/run", "/run", "/etc/mtab", "/proc/self/mounts"}
	for _, name := range slices.Sorted(maps.Keys(system.Links)) {
		links = append(links, "/"+name, system.Links[name])
	}
	for pair := range slices.Chunk(links, 2) {
		if err := b.symlink(pair[0], pair[1]); err != nil {
			return err
		}
	}
	if err := b.write(InitPath, nil); err != nil {
		return err
	}
	if err := b.writeOnline(); err != nil {
		return err
	}
	for _, name := range publicEtc {
		if err := b.copyPublic("/etc/" + name); err != nil {
			return err
		}
	}
	return b.writeGenerated()
}

// writeOnline is the only file of /sys: see tellProcessors. Empty, on a host
// without sysfs, it makes the C library look elsewhere.
func (b *rootfsBuilder) writeOnline() error {
	online, _ := os.ReadFile(onlineFile)
	return b.write(onlineFile, online)
}

func (b *rootfsBuilder) host(path string) string { return filepath.Join(b.dir, path) }

func (b *rootfsBuilder) note(kind, path, content string) {
	fmt.Fprintf(b.sum, "%s %q %d\n%s\n", kind, path, len(content), content)
}

func (b *rootfsBuilder) mkdir(path string) error {
	b.note("dir", path, "")
	if err := os.MkdirAll(b.host(path), 0o755); err != nil {
		return err
	}
	// Whatever the umask: the sandbox's user must get through.
	for p := path; ; p = filepath.Dir(p) {
		if err := os.Chmod(b.host(p), 0o755); err != nil || p == "/" {
			return err
		}
	}
}

func (b *rootfsBuilder) symlink(path, target string) error {
	b.note("link", path, target)
	return os.Symlink(target, b.host(path))
}

func (b *rootfsBuilder) write(path string, content []byte) error {
	if err := b.mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	b.note("file", path, string(content))
	if err := os.WriteFile(b.host(path), content, 0o644); err != nil {
		return err
	}
	return os.Chmod(b.host(path), 0o644)
}

// maxEtcBytes bounds what is copied of the host's /etc.
const maxEtcBytes = 64 << 20

// copyPublic copies a file or tree as far as every user of the host may read
// it. What isn't there is left out, what is neither file, directory nor link
// too.
func (b *rootfsBuilder) copyPublic(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return b.symlink(path, target)
	case info.IsDir() && info.Mode()&0o005 == 0o005:
		return b.copyDir(path)
	case info.Mode().IsRegular() && info.Mode()&0o004 != 0:
		return b.copyFile(path, info.Size())
	}
	return nil
}

func (b *rootfsBuilder) copyDir(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if err := b.mkdir(path); err != nil {
		return err
	}
	for _, e := range entries {
		if err := b.copyPublic(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (b *rootfsBuilder) copyFile(path string, size int64) error {
	if b.bytes += size; b.bytes > maxEtcBytes {
		return fmt.Errorf("the public part of /etc is over %d MiB (at %s)", maxEtcBytes>>20, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return b.write(path, content)
}

// writeGenerated writes the files that name users and hosts: never the host's.
func (b *rootfsBuilder) writeGenerated() error {
	for _, path := range slices.Sorted(maps.Keys(generatedEtc)) {
		content := generatedEtc[path]
		if err := os.Remove(b.host(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := b.write(path, []byte(strings.TrimLeft(content, "\n"))); err != nil {
			return err
		}
	}
	return nil
}
