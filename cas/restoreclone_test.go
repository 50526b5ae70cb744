package cas

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// copyClone stands for a clone where the file system has none.
func copyClone(to, from int) error {
	f := os.NewFile(uintptr(from), "from")
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err == nil {
		_, err = fdWriter(to).Write(b)
	}
	dup, dupErr := unix.Dup(from) // the file closes its own
	if err := errors.Join(err, dupErr, f.Close()); err != nil {
		return err
	}
	return unix.Dup3(dup, from, unix.O_CLOEXEC)
}

// TestRestoreClones: whatever the destination holds under a large file's
// path, and whatever becomes of it meanwhile, what is restored is the tree's.
func TestRestoreClones(t *testing.T) {
	content := slices.Concat(randomBytes(1, 6<<20), make([]byte, 2200<<10), randomBytes(2, 1<<20))
	edited := slices.Clone(content)
	copy(edited[3<<20:], "edited")
	for name, tc := range map[string]struct {
		before func(path string) error
		kept   int64 // at least
	}{
		"same":    {func(p string) error { return os.WriteFile(p, content, 0o600) }, int64(len(content))},
		"edited":  {func(p string) error { return os.WriteFile(p, edited, 0o600) }, 6 << 20},
		"longer":  {func(p string) error { return os.WriteFile(p, append(slices.Clone(content), "more"...), 0o600) }, int64(len(content))},
		"shorter": {func(p string) error { return os.WriteFile(p, content[:5<<20], 0o600) }, 2 << 20},
		"other":   {func(p string) error { return os.WriteFile(p, randomBytes(9, len(content)), 0o600) }, 0},
		"empty":   {func(p string) error { return os.WriteFile(p, nil, 0o600) }, 0},
		"sparse":  {func(p string) error { return writeSparse(p, content, true) }, 0},
		"none":    {func(string) error { return nil }, 0},
		"fifo":    {func(p string) error { return unix.Mkfifo(p, 0o600) }, 0},
		"link": {func(p string) error {
			return errors.Join(os.WriteFile(p+"2", content, 0o600), os.Symlink("f2", p))
		}, 0},
		"linked above": {func(p string) error {
			dir := filepath.Dir(p)
			return errors.Join(os.Rename(dir, dir+"2"), os.Symlink("d2", dir), os.WriteFile(p, content, 0o600))
		}, 0},
	} {
		for _, remember := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", name, remember), func(t *testing.T) {
				cfg := Config{clone: copyClone}
				if remember {
					cfg = rememberAll()
					cfg.clone = copyClone
				}
				base := t.TempDir()
				work, dest := filepath.Join(base, "work"), filepath.Join(base, "dest")
				writeFile(t, filepath.Join(work, "d/f"), string(content))
				s := openStore(t, filepath.Join(base, "store"), cfg)
				tree := snapshot(t, s, work, "").Tree
				if err := errors.Join(os.MkdirAll(filepath.Join(dest, "d"), 0o755), tc.before(filepath.Join(dest, "d/f"))); err != nil {
					t.Fatal(err)
				}
				res := restore(t, s, tree, dest, RestoreOptions{Replace: true, CacheKey: "dest"})
				if res.ClonedBytes < tc.kept || tc.kept == 0 && res.ClonedBytes > 0 || res.Bytes+res.ClonedBytes != int64(len(content)) {
					t.Errorf("restored %+v", res)
				}
				if got, err := os.ReadFile(filepath.Join(dest, "d/f")); err != nil || !bytes.Equal(got, content) {
					t.Errorf("content differs, %v", err)
				}
				if cached, full := snapshot(t, s, dest, "dest"), snapshot(t, s, dest, ""); cached.Tree != tree || full.Tree != tree || cached.NewFiles != 0 {
					t.Errorf("snapshots of it: %+v, %+v", cached, full)
				}
			})
		}
	}
}

// TestRestoreClonesOnXFS: on a file system that shares blocks, replacing a
// tree by one that differs little writes little. The test above shows that
// the content is right; this one is for the system call.
func TestRestoreClonesOnXFS(t *testing.T) {
	requireRoot(t)
	mkfs, err := exec.LookPath("mkfs.xfs")
	if err != nil {
		missing(t, "mkfs.xfs is not installed (package xfsprogs)")
	}
	base := t.TempDir()
	image, mount := filepath.Join(base, "image"), filepath.Join(base, "mount")
	writeFile(t, image, "")
	if err := errors.Join(os.Mkdir(mount, 0o755), os.Truncate(image, 320<<20)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), mkfs, "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v: %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, mount).CombinedOutput(); err != nil {
		missing(t, fmt.Sprintf("cannot mount an image: %v: %s", err, out))
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	work, dest := filepath.Join(mount, "work"), filepath.Join(mount, "dest")
	content := randomBytes(1, 8<<20)
	writeFile(t, filepath.Join(work, "f"), string(content))
	s := openStore(t, filepath.Join(base, "store"), Config{})
	tree := snapshot(t, s, work, "").Tree
	copy(content[5<<20:], "edited")
	writeFile(t, filepath.Join(dest, "f"), string(content))
	res := restore(t, s, tree, dest, RestoreOptions{Replace: true})
	if res.ClonedBytes < 5<<20 || res.Bytes+res.ClonedBytes != 8<<20 {
		t.Errorf("restored %+v", res)
	}
	if full := snapshot(t, s, dest, ""); full.Tree != tree {
		t.Error("the restored tree is another")
	}
}
