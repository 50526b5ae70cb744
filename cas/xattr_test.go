package cas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// xattrDir is a directory whose file system has user attributes.
func xattrDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Setxattr(dir, "user.probe", []byte("x"), 0); err != nil {
		missing(t, fmt.Sprintf("no user attributes here: %v", err))
	}
	if err := unix.Removexattr(dir, "user.probe"); err != nil {
		t.Fatal(err)
	}
	return dir
}

func setXattr(t *testing.T, path, name, value string) {
	t.Helper()
	if err := unix.Lsetxattr(path, name, []byte(value), 0); err != nil {
		t.Fatalf("%s: set %q: %v", path, name, err)
	}
}

// mountTmpfs mounts a file system that takes attributes of any size, or, being
// limited to few inodes, as few as it is told.
func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	requireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		missing(t, fmt.Sprintf("cannot mount here: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestXattrChanges: attributes are kept of files, directories and the root;
// setting, changing and removing one alone is a modification and costs one
// read; the root's own are in the digest.
func TestXattrChanges(t *testing.T) {
	work := xattrDir(t)
	s := openStore(t, t.TempDir(), Config{})
	writeFile(t, filepath.Join(work, "d/f"), "content")
	writeFile(t, filepath.Join(work, "other"), "content")
	waitUntilSettled(t, s, work)
	last := snapshot(t, s, work, "k")
	plain := last.Tree
	for _, step := range []struct {
		path, name, value string // "-": removed
		want              []string
	}{
		{"d/f", "user.a", "1", []string{"modified d/f"}},
		{"d/f", "user.a", "2", []string{"modified d/f"}},
		{"d", "user.\xff\xfe", "x\x00y", []string{"modified d"}},
		{".", "user.root", "r", nil},
		{"d/f", "user.a", "-", []string{"modified d/f"}},
		{"d", "user.\xff\xfe", "-", []string{"modified d"}},
		{".", "user.root", "-", nil},
	} {
		path := filepath.Join(work, step.path)
		if step.value == "-" {
			if err := unix.Removexattr(path, step.name); err != nil {
				t.Fatal(err)
			}
		} else {
			setXattr(t, path, step.name, step.value)
		}
		now := snapshot(t, s, work, "k")
		var got []string
		err := s.Diff(t.Context(), last.Tree, now.Tree, func(c Change) error {
			got = append(got, c.Kind.String()+" "+c.Path)
			return nil
		})
		if err != nil || !slices.Equal(got, step.want) || now.Tree == last.Tree {
			t.Errorf("%+v: diff %q, %v", step, got, err)
		}
		x, err := s.Lookup(t.Context(), now.Tree, step.path)
		if err != nil || step.value != "-" && !slices.Contains(x.Xattrs, Xattr{step.name, step.value}) {
			t.Errorf("%+v: entry %+v, %v", step, x, err)
		}
		if full := snapshot(t, s, work, ""); full.Tree != now.Tree {
			t.Errorf("%+v: the cache led to another tree", step)
		}
		last = now
	}
	if last.Tree != plain {
		t.Error("without its attributes the tree is not what it was")
	}
}

// TestXattrLimits: an entry that passes a limit keeps none of its attributes
// and is named; what is just below passes, and comes back.
func TestXattrLimits(t *testing.T) {
	base := mountTmpfs(t, "size=64m")
	work := filepath.Join(base, "work")
	for _, name := range []string{"fine", "many", "large", "long", "acl"} {
		writeFile(t, filepath.Join(work, name), name)
	}
	for i := range 3000 {
		setXattr(t, filepath.Join(work, "many"), fmt.Sprintf("user.%06d", i), "")
	}
	for i := range maxXattrs {
		setXattr(t, filepath.Join(work, "fine"), fmt.Sprintf("user.%06d", i), strings.Repeat("v", maxXattrBytes/maxXattrs-11))
	}
	setXattr(t, filepath.Join(work, "large"), "user.large", strings.Repeat("x", 64<<10))
	setXattr(t, filepath.Join(work, "long"), "user.b", strings.Repeat("x", maxXattrBytes-len("user.a")-len("user.b")+1))
	setXattr(t, filepath.Join(work, "long"), "user.a", "")
	setACL(t, filepath.Join(work, "acl"))
	setXattr(t, filepath.Join(work, "acl"), "user.kept", "beside the list")
	s := openStore(t, t.TempDir(), Config{})
	want := []DroppedXattrs{{"acl", LostACL}, {"large", LostTooLarge}, {"long", LostTooLarge}, {"many", LostTooMany}}
	var res SnapshotResult
	for range 2 { // from the cache as well
		res = snapshot(t, s, work, "k")
		if !slices.Equal(res.DroppedXattrs, want) || res.DroppedXattrsTotal != 4 {
			t.Errorf("dropped %+v", res.DroppedXattrs)
		}
	}
	out := filepath.Join(base, "out")
	if got := restore(t, s, res.Tree, out, RestoreOptions{CacheKey: "out"}); got.NoXattrsTotal != 0 {
		t.Errorf("restored %+v", got)
	}
	for _, name := range []string{"fine", "acl"} {
		if want, got := describeXattrs(filepath.Join(work, name)), describeXattrs(filepath.Join(out, name)); want != got || want == "" {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if again := snapshot(t, s, out, "out"); again.NewFiles != 0 || again.Tree != res.Tree {
		t.Errorf("snapshot of the restored tree %+v", again)
	}
}

// setACL gives a file a list that lets user 12345 read it.
func setACL(t *testing.T, path string) {
	t.Helper()
	none := "\xff\xff\xff\xff"
	list := "\x02\x00\x00\x00" + "\x01\x00\x06\x00" + none + "\x02\x00\x04\x00\x39\x30\x00\x00" +
		"\x04\x00\x04\x00" + none + "\x10\x00\x04\x00" + none + "\x20\x00\x04\x00" + none
	setXattr(t, path, "system.posix_acl_access", list)
}

// TestXattrsOverall: attributes of the whole tree are bounded, and what was
// over is named.
func TestXattrsOverall(t *testing.T) {
	work := xattrDir(t)
	for i := range 4 {
		writeFile(t, filepath.Join(work, fmt.Sprint(i)), "x")
		setXattr(t, filepath.Join(work, fmt.Sprint(i)), "user.v", strings.Repeat("v", 1000))
	}
	w := &walker{}
	w.xattrRoom.Store(2500)
	var kept, lost int
	for i := range 4 {
		fd, err := unix.Open(filepath.Join(work, fmt.Sprint(i)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		switch a := w.readAttrs(fd); {
		case len(a.xattrs()) == 1 && a.loss() == 0:
			kept++
		case len(a.xattrs()) == 0 && a.loss() == LostOverall:
			lost++
		}
		_ = unix.Close(fd)
	}
	if kept != 2 || lost != 2 {
		t.Errorf("%d kept, %d named as lost", kept, lost)
	}
}

// TestRestoreWithoutXattrs: where the destination takes no attributes the
// files are restored, those that lack theirs are named, and the next snapshot
// says what is there.
func TestRestoreWithoutXattrs(t *testing.T) {
	work := xattrDir(t)
	writeFile(t, filepath.Join(work, "d/f"), "content")
	writeFile(t, filepath.Join(work, "plain"), "content")
	setXattr(t, filepath.Join(work, "d/f"), "user.a", "1")
	setXattr(t, filepath.Join(work, "d"), "user.b", "2")
	setXattr(t, work, "user.root", "3")
	s := openStore(t, t.TempDir(), Config{})
	tree := snapshot(t, s, work, "").Tree
	base := mountTmpfs(t, "size=8m")
	if err := unix.Mount("none", base, "ramfs", 0, ""); err != nil { // which has no attributes at all
		missing(t, fmt.Sprintf("cannot mount a ramfs: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	if err := unix.Setxattr(base, "user.x", []byte("x"), 0); !errors.Is(err, unix.ENOTSUP) {
		missing(t, fmt.Sprintf("ramfs answers %v to an attribute", err))
	}
	out := filepath.Join(base, "out")
	res := restore(t, s, tree, out, RestoreOptions{CacheKey: "out"})
	if !slices.Equal(res.NoXattrs, []string{"", "d", "d/f"}) || res.NoXattrsTotal != 3 || res.Files != 2 {
		t.Errorf("restored %+v", res)
	}
	if b, err := os.ReadFile(filepath.Join(out, "d/f")); string(b) != "content" {
		t.Errorf("content %q, %v", b, err)
	}
	cached, full := snapshot(t, s, out, "out"), snapshot(t, s, out, "")
	if cached.Tree != full.Tree || cached.Tree == tree {
		t.Error("the seeded cache says that the attributes are there")
	}
}

// TestXattrsReadAgain: what is read again, in a directory too, or takes the
// place of what is gone, counts once against the tree's limit.
func TestXattrsReadAgain(t *testing.T) {
	work := xattrDir(t)
	s := openStore(t, t.TempDir(), Config{treeXattrBytes: 15 * 506})
	fill := func(dir string) {
		for i := range 10 {
			path := filepath.Join(work, dir, fmt.Sprint(i))
			writeFile(t, path, "x")
			setXattr(t, path, "user.v", strings.Repeat("v", 500))
		}
		setXattr(t, filepath.Join(work, dir), "user.v", strings.Repeat("v", 500))
	}
	fill("a")
	check := func(what string) {
		t.Helper()
		if res := snapshot(t, s, work, "k"); res.DroppedXattrsTotal != 0 {
			t.Errorf("%s: %d entries lost their attributes", what, res.DroppedXattrsTotal)
		}
	}
	check("first")
	for i := range 10 {
		if err := os.Chmod(filepath.Join(work, "a", fmt.Sprint(i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("all files changed")
	if err := os.RemoveAll(filepath.Join(work, "a")); err != nil {
		t.Fatal(err)
	}
	fill("b")
	check("all files replaced")
	for i := range 10 {
		path := filepath.Join(work, "b", fmt.Sprint(i))
		if err := errors.Join(os.Remove(path), os.Symlink("nowhere", path)); err != nil {
			t.Fatal(err)
		}
	}
	check("files became links")
	fill("c") // by itself: directories are read side by side, and room counts from when it is given back
	check("others took their place")
}
