package cas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// deepTree makes directories of a name of 200 bytes in each other, with a file
// in each and a locked directory at the end.
func deepTree(t *testing.T, levels int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	must(t, os.Mkdir(dir, 0o700))
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	must(t, err)
	for range levels {
		name := strings.Repeat("n", 200)
		must(t, unix.Mkdirat(fd, name, 0o700))
		f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY, 0o600)
		must(t, err)
		must(t, unix.Close(f))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_RDONLY, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Mkdirat(fd, "locked", 0o700))
	must(t, unix.Mkdirat(fd, "locked/below", 0o700))
	must(t, unix.Symlinkat("/", fd, "locked/below/link"))
	must(t, unix.Fchmodat(fd, "locked/below", 0, 0))
	must(t, unix.Fchmodat(fd, "locked", 0, 0))
	must(t, unix.Close(fd))
	return dir
}

// As an ordinary user this fails when modes are mended by path.
func TestRemoveTreeDeepAndLocked(t *testing.T) {
	for _, levels := range []int{1, mostHeld - 1, mostHeld, mostHeld + 1, 5 * mostHeld} {
		dir := deepTree(t, levels)
		if err := RemoveTree(dir); err != nil {
			t.Fatalf("%d levels: %v", levels, err)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Fatalf("%d levels: still there: %v", levels, err)
		}
	}
}

// Root passes every mode, so that only this takes the long way for it.
func TestTreeRemoverEmptiesDeepTrees(t *testing.T) {
	dir := deepTree(t, 5*mostHeld)
	top, err := openToRemove(unix.AT_FDCWD, dir)
	must(t, err)
	defer func() { must(t, unix.Close(top)) }()
	must(t, (&treeRemover{top: top}).all())
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Fatalf("left %v, %v", left, err)
	}
}
