package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// mutate makes one random change below dir. Few names, so that changes meet.
// No link leads to anything outside: the changes go through links.
func mutate(t *rapid.T, dir string) {
	names := []string{"a", "b", "c\xff", "a/x", "a/y", "b/x", "b/x/deep", "d"}
	path := filepath.Join(dir, rapid.SampledFrom(names).Draw(t, "path"))
	other := filepath.Join(dir, rapid.SampledFrom(names).Draw(t, "other"))
	content := rapid.SampledFrom([]string{"", "one", "two", "longer content", string(cdcInput(100_000))}).Draw(t, "content")
	mode := rapid.SampledFrom([]fs.FileMode{0o644, 0o600, 0o755, 0o777}).Draw(t, "mode")
	switch rapid.IntRange(0, 8).Draw(t, "action") {
	case 0, 1:
		_ = os.WriteFile(path, []byte(content), mode)
	case 2:
		_ = os.MkdirAll(path, mode|0o700)
	case 3:
		_ = os.RemoveAll(path)
	case 4:
		_ = os.Symlink(rapid.SampledFrom([]string{"a", ".", "../nowhere", "/nonexistent/place"}).Draw(t, "target"), path)
	case 5:
		_ = os.Link(path, other)
	case 6:
		_ = os.Rename(path, other)
	case 7:
		if info, err := os.Lstat(path); err == nil && info.Mode().Type()&fs.ModeSymlink == 0 {
			_ = os.Chmod(path, mode|0o700&info.Mode().Perm())
		}
	case 8:
		if rapid.Bool().Draw(t, "remove") {
			_ = unix.Lremovexattr(path, "user.x")
		} else {
			_ = unix.Lsetxattr(path, "user.x", []byte(content[:min(len(content), 9)]), 0)
		}
	}
}

// rapidDir makes a directory for one try.
func rapidDir(t *rapid.T, base string) string {
	dir, err := os.MkdirTemp(base, "try-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTreeProperties: after any series of changes
//   - a snapshot with the stat cache is that of a walk that reads everything,
//   - the restored tree looks the same and has the same root,
//   - Diff finds what comparing the two trees entry by entry finds.
func TestTreeProperties(t *testing.T) {
	base := t.TempDir()
	s := openStore(t, filepath.Join(base, "store"), Config{MaxPackBytes: 1 << 20})
	try := 0
	rapid.Check(t, func(rt *rapid.T) {
		try++
		key := fmt.Sprint("try", try)
		dir := rapidDir(rt, base)
		defer os.RemoveAll(dir)
		work := filepath.Join(dir, "work")
		if err := os.Mkdir(work, 0o755); err != nil {
			rt.Fatal(err)
		}
		var last Digest
		for range rapid.IntRange(1, 4).Draw(rt, "snapshots") {
			for range rapid.IntRange(0, 6).Draw(rt, "changes") {
				mutate(rt, work)
			}
			res, err := snapshotPath(s, work, key)
			if err != nil {
				rt.Fatal(err)
			}
			checkSnapshot(rt, s, work, filepath.Join(dir, "out"), res.Tree)
			checkDiff(rt, s, last, res.Tree)
			last = res.Tree
		}
	})
}

func checkSnapshot(t *rapid.T, s *Store, work, out string, tree Digest) {
	ctx, cancel := testContext()
	defer cancel()
	if full, err := snapshotPath(s, work, ""); err != nil || full.Tree != tree {
		t.Fatalf("without cache %s, %v; with cache %s", full.Tree, err, tree)
	}
	if _, err := s.Restore(ctx, tree, out, RestoreOptions{UID: -1, GID: -1}); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(out)
	want, err1 := describe(work, nil)
	got, err2 := describe(out, nil)
	if err := errors.Join(err1, err2, compareTrees(want, got)); err != nil {
		t.Fatal(err)
	}
	if copied, err := snapshotPath(s, out, ""); err != nil || copied.Tree != tree {
		t.Fatalf("copy has root %s, %v; want %s", copied.Tree, err, tree)
	}
}

// checkDiff compares Diff with the plain comparison of two listings.
func checkDiff(t *rapid.T, s *Store, a, b Digest) {
	ctx, cancel := testContext()
	defer cancel()
	list := func(tree Digest) map[string]string {
		out := make(map[string]string)
		if tree.IsZero() {
			return out
		}
		err := s.Walk(ctx, tree, "", func(path string, x Entry) error {
			out[path] = fmt.Sprint(x.Type, x.Target)
			if x.Type != TypeSymlink {
				out[path] += fmt.Sprint(x.Mode)
			}
			if x.Type == TypeFile {
				out[path] += x.Digest.String()
			}
			out[path] += fmt.Sprint(x.Xattrs)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	olds, news := list(a), list(b)
	var want []string
	for path, x := range news {
		if was, ok := olds[path]; !ok {
			want = append(want, "created "+path)
		} else if was != x {
			want = append(want, "modified "+path)
		}
	}
	for path := range olds {
		if _, ok := news[path]; !ok {
			want = append(want, "deleted "+path)
		}
	}
	var got []string
	err := s.Diff(ctx, a, b, func(c Change) error {
		got = append(got, c.Kind.String()+" "+c.Path)
		return nil
	})
	slices.Sort(want)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("diff %q, %v; want %q", got, err, want)
	}
}
