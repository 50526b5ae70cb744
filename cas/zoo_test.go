package cas

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// buildZoo fills dir with everything a workspace may hold that breaks naive
// stores (F27, F28), and returns the paths that a snapshot must skip.
func buildZoo(dir string, files int) (skipped []string, err error) {
	do := func(e error) { err = errors.Join(err, e) }
	write := func(name, content string, mode fs.FileMode) {
		path := filepath.Join(dir, name)
		do(os.MkdirAll(filepath.Dir(path), 0o755))
		do(os.WriteFile(path, []byte(content), 0o600))
		do(os.Chmod(path, mode))
	}
	for i := range files {
		write(fmt.Sprintf("many/%02d/f%05d", i%50, i), fmt.Sprint("file ", i), 0o644)
	}
	write("not-utf8-\xff\xfe", "raw name", 0o644)
	write("new\nline and \\ and 'quote'", "odd name", 0o644)
	write("executable", "#!/bin/sh\n", 0o755)
	write("read-only", "x", 0o444)
	write("empty", "", 0o644)
	write("large", string(cdcInput(5<<20)), 0o644)
	write("linked/a", "one file, three names", 0o640)
	do(os.MkdirAll(filepath.Join(dir, "linked/z"), 0o755))
	do(os.Link(filepath.Join(dir, "linked/a"), filepath.Join(dir, "linked/z/b")))
	do(os.Link(filepath.Join(dir, "linked/a"), filepath.Join(dir, "also-linked")))
	do(os.Mkdir(filepath.Join(dir, "empty-dir"), 0o711))
	do(os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	do(os.Symlink("/etc/passwd", filepath.Join(dir, "outward")))
	do(os.Symlink("../../../../etc", filepath.Join(dir, "outward-dir")))
	do(os.Symlink("target-\xff", filepath.Join(dir, "raw-target")))
	do(sparseFile(filepath.Join(dir, "sparse"), 3<<20))
	do(sparseFile(filepath.Join(dir, "small-sparse"), 256<<10))
	hole, e := os.Create(filepath.Join(dir, "only-hole"))
	do(e)
	do(hole.Truncate(1 << 20))
	do(hole.Close())
	do(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	l, e := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "socket")})
	do(e)
	if e == nil {
		l.SetUnlinkOnClose(false)
		do(l.Close())
	}
	write("mode-0000", "unreadable without privilege", 0)
	write("shut/inside", "in a directory of mode 0000", 0o644)
	do(os.Chtimes(filepath.Join(dir, "executable"), time.Unix(-86400, 5), time.Unix(-86400, 5)))
	do(os.Chtimes(filepath.Join(dir, "read-only"), time.Unix(4e9, 123456789), time.Unix(4e9, 123456789)))
	do(os.Chtimes(filepath.Join(dir, "empty-dir"), time.Unix(1e9, 1), time.Unix(1e9, 1)))
	xattr := func(name, key, value string) {
		if e := unix.Lsetxattr(filepath.Join(dir, name), key, []byte(value), 0); !errors.Is(e, unix.ENOTSUP) {
			do(e)
		}
	}
	do(os.Chmod(filepath.Join(dir, "read-only"), 0o644)) // for a moment
	xattr("read-only", "user.on a read-only file", "value")
	xattr("read-only", "user.empty", "")
	do(os.Chmod(filepath.Join(dir, "read-only"), 0o444))
	xattr("linked/a", "user.all three names", "\x00\xff raw")
	xattr("empty-dir", "user.not-utf8-\xff", strings.Repeat("long", 200))
	xattr("empty", "user.z", "1")
	xattr(".", "user.root", "of the root")
	do(os.Chmod(filepath.Join(dir, "shut"), 0))
	return []string{"fifo", "socket"}, err
}

// sparseFile writes a block at the start of each third and leaves holes.
func sparseFile(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for _, at := range []int64{0, size / 3 &^ 4095, size - 5000} {
		_, e := f.WriteAt(bytes.Repeat([]byte{'d'}, 5000), at)
		err = errors.Join(err, e)
	}
	return errors.Join(err, f.Truncate(size), f.Close())
}

// describe lists what a tree holds, one line an entry, without the store:
// type, mode, time, content, target, names of one file, blocks.
func describe(root string, skip []string) (lines []string, err error) {
	inodes := make(map[uint64]string)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, walkErr error) error {
		rel, _ := filepath.Rel(root, path)
		if slices.Contains(skip, rel) {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%q %o %d.%09d%s", rel, st.Mode, st.Mtim.Sec, st.Mtim.Nsec, describeXattrs(path))
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, _ := os.Readlink(path)
			line += fmt.Sprintf(" -> %q", target)
		case unix.S_IFREG:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %x", st.Size, sha256.Sum256(b))
			if st.Blocks*512 < st.Size {
				line += fmt.Sprint(" sparse ", st.Blocks)
			}
			if st.Nlink > 1 {
				if inodes[st.Ino] == "" {
					inodes[st.Ino] = rel
				}
				line += " same as " + inodes[st.Ino]
			}
		}
		lines = append(lines, line)
		if errors.Is(walkErr, fs.ErrPermission) {
			return nil
		}
		return walkErr
	})
	return lines, err
}

// describeXattrs lists the user's extended attributes of a file.
func describeXattrs(path string) string {
	names, values := make([]byte, 4096), make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	if err != nil || n == 0 {
		return ""
	}
	var out []string
	for _, name := range strings.Split(string(names[:n-1]), "\x00") {
		if size, err := unix.Lgetxattr(path, name, values); err == nil && strings.HasPrefix(name, "user.") {
			out = append(out, fmt.Sprintf(" %q=%q", name, values[:size]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

func compareTrees(want, got []string) error {
	var errs []error
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			errs = append(errs, fmt.Errorf("missing %s", want[i]))
		case i >= len(want):
			errs = append(errs, fmt.Errorf("surplus %s", got[i]))
		case want[i] != got[i]:
			errs = append(errs, fmt.Errorf("got %s, want %s", got[i], want[i]))
		}
		if len(errs) > 5 {
			break
		}
	}
	return errors.Join(errs...)
}

// checkZoo snapshots a zoo, commits, restores it elsewhere and compares.
func checkZoo(base string, files int, unreadable []string) error {
	ctx, cancel := testContext()
	defer cancel()
	zoo := filepath.Join(base, "zoo")
	skipped, err := buildZoo(zoo, files)
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	s, err := Open(ctx, filepath.Join(base, "store"), Config{MaxPackBytes: 2 << 20})
	if err != nil {
		return err
	}
	defer s.Close()
	first, err := snapshotPath(s, zoo, "zoo")
	if err != nil {
		return err
	}
	if first.Files < int64(files) || len(first.Unstable) > 0 {
		return fmt.Errorf("result %+v", first)
	}
	wantSkipped := append(slices.Clone(skipped), unreadable...)
	slices.Sort(wantSkipped)
	var gotSkipped []string
	for _, x := range first.Skipped {
		gotSkipped = append(gotSkipped, x.Path)
	}
	if !slices.Equal(gotSkipped, wantSkipped) {
		return fmt.Errorf("skipped %q, want %q", gotSkipped, wantSkipped)
	}
	h, err := s.Commit(ctx, CommitRequest{Head: "zoo", Tree: first.Tree, Source: "test", Stats: first.TreeStats})
	if err != nil {
		return err
	}
	out := filepath.Join(base, "out")
	res, err := s.Restore(ctx, h.Tree, out, RestoreOptions{UID: -1, GID: -1})
	if err != nil {
		return err
	}
	if res.SkippedTotal != int64(len(wantSkipped)) || res.Links != 2 {
		return fmt.Errorf("restored %+v", res)
	}
	want, err := describe(zoo, wantSkipped)
	if err != nil {
		return err
	}
	got, err := describe(out, nil)
	if err != nil {
		return err
	}
	return errors.Join(compareTrees(want, got), checkAgain(s, zoo, out, first))
}

// checkAgain: snapshots of the same tree with and without cache have the same
// root, and one of the restored copy differs in what was skipped alone.
func checkAgain(s *Store, zoo, out string, first SnapshotResult) error {
	for _, key := range []string{"zoo", ""} {
		again, err := snapshotPath(s, zoo, key)
		if err != nil {
			return err
		}
		if again.Tree != first.Tree || again.NewBytes != 0 {
			return fmt.Errorf("snapshot again with key %q: %+v, want tree %s", key, again, first.Tree)
		}
	}
	copied, err := snapshotPath(s, out, "")
	if err != nil {
		return err
	}
	ctx, cancel := testContext()
	defer cancel()
	err = s.Diff(ctx, first.Tree, copied.Tree, func(c Change) error {
		return fmt.Errorf("the copy differs: %s %q", c.Kind, c.Path)
	})
	rep, verifyErr := s.Verify(ctx, VerifyOptions{Reachable: true})
	if verifyErr == nil && !rep.OK() {
		verifyErr = fmt.Errorf("verify: %+v", rep)
	}
	return errors.Join(err, verifyErr)
}

func snapshotPath(s *Store, path, key string) (SnapshotResult, error) {
	f, err := os.Open(path)
	if err != nil {
		return SnapshotResult{}, err
	}
	defer f.Close()
	ctx, cancel := testContext()
	defer cancel()
	return s.Snapshot(ctx, f, SnapshotOptions{CacheKey: key})
}

// unshut lets the test's clean-up into directories of mode 0000.
func unshut(t *testing.T, base string) {
	t.Cleanup(func() {
		for _, dir := range []string{"zoo/shut", "out/shut"} {
			_ = os.Chmod(filepath.Join(base, dir), 0o700)
		}
	})
}

// TestZoo is the workspace of 10,000 files and one of every oddity,
// as whoever runs the tests: privileged users read mode 0000.
func TestZoo(t *testing.T) {
	base := t.TempDir()
	unshut(t, base)
	var unreadable []string
	if os.Getuid() != 0 {
		unreadable = []string{"mode-0000", "shut"}
	}
	if err := checkZoo(base, 10_000, unreadable); err != nil {
		t.Fatal(err)
	}
}

// TestZooUnprivileged does the same under an ordinary user: what its mode
// forbids to read is skipped and named, and nothing fails.
func TestZooUnprivileged(t *testing.T) {
	requireRoot(t)
	const nobody = 65534
	base, err := os.MkdirTemp("/tmp", "cas-zoo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chown(base, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := reexec(t, "zoo", "BASE="+base)
	exe := filepath.Join(base, "cas.test") // where the user can reach it
	if err := os.Link(cmd.Path, exe); err != nil {
		b, readErr := os.ReadFile(cmd.Path)
		if err := errors.Join(readErr, os.WriteFile(exe, b, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Path, cmd.Dir = exe, base
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func childZoo() error {
	return checkZoo(os.Getenv("BASE"), 500, []string{"mode-0000", "shut"})
}

// TestDeepNesting: paths beyond PATH_MAX, by descriptors alone (F27).
func TestDeepNesting(t *testing.T) {
	base := t.TempDir()
	deep := filepath.Join(base, "deep")
	const depth = 1200
	name := strings.Repeat("n", 40)
	makeDeep(t, deep, name, depth)
	t.Cleanup(func() { _ = os.RemoveAll(deep); _ = os.RemoveAll(filepath.Join(base, "out")) })
	s := openStore(t, filepath.Join(base, "store"), Config{})
	res := snapshot(t, s, deep, "k")
	if res.Dirs != 2*depth || res.Files != depth {
		t.Fatalf("stats %+v", res.TreeStats)
	}
	again := snapshot(t, s, deep, "k")
	if again.Tree != res.Tree {
		t.Error("second snapshot differs")
	}
	out := filepath.Join(base, "out")
	if _, err := s.Restore(t.Context(), res.Tree, out, RestoreOptions{UID: -1, GID: -1}); err != nil {
		t.Fatal(err)
	}
	if copied := snapshot(t, s, out, ""); copied.Tree != res.Tree {
		t.Error("snapshot of the restored tree differs")
	}
	if err := s.Rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
}

// makeDeep nests directories; beside each lies an empty one and a file, so
// that every level has children waiting when the walk goes down.
func makeDeep(t *testing.T, root, name string, depth int) {
	t.Helper()
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(root, openDirFlags, 0)
	for i := 0; err == nil && i < depth; i++ {
		var f int
		if f, err = unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o644); err == nil {
			_, err = unix.Write(f, []byte("deep"))
			_ = unix.Close(f)
		}
		err = errors.Join(err, unix.Mkdirat(fd, name, 0o755), unix.Mkdirat(fd, "zz", 0o755))
		next, openErr := unix.Openat(fd, name, openDirFlags, 0)
		_ = unix.Close(fd)
		fd, err = next, errors.Join(err, openErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
}
