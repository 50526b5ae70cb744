package cas

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

func readTree(t *testing.T) (*Store, Digest) {
	t.Helper()
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "a/b/file"), "content")
	writeFile(t, filepath.Join(work, "top"), "top")
	for link, target := range map[string]string{
		"a/up": "../top", "dir": "a/b", "abs": "/etc/passwd", "out": "../../etc", "loop": "loop", "a/self": ".",
		"dangling": "nowhere", "a/round": "../a/../a/b/file", "sneaky": "a/../../top", "through": "top/x",
	} {
		if err := os.Symlink(target, filepath.Join(work, link)); err != nil {
			t.Fatal(err)
		}
	}
	return s, snapshot(t, s, work, "").Tree
}

func TestLookupAndResolve(t *testing.T) {
	s, tree := readTree(t)
	for _, tc := range []struct {
		path, resolved    string
		lookup, resolving error
	}{
		{"", ".", nil, nil},
		{".", ".", nil, nil},
		{"a/b/file", "a/b/file", nil, nil},
		{"a//b/./file", "a/b/file", nil, nil},
		{"a/../top", "top", nil, nil},
		{"a/up", "top", nil, nil},
		{"dir/file", "a/b/file", ErrNotDir, nil},
		{"a/self/self/b", "a/b", ErrNotDir, nil},
		{"a/round", "a/b/file", nil, nil},
		{"dir/../up", "top", ErrNotFound, nil}, // a kernel's "..", not the text's
		{"nope", "", ErrNotFound, ErrNotFound},
		{"dangling", "", nil, ErrNotFound},
		{"top/x", "", ErrNotDir, ErrNotDir},
		{"through", "", nil, ErrNotDir},
		{"loop", "", nil, ErrLoop},
		{"abs", "", nil, ErrOutside},
		{"out", "", nil, ErrOutside},
		{"sneaky", "", nil, ErrOutside},
		{"..", "", ErrOutside, ErrOutside},
		{"a/../../top", "", ErrOutside, ErrOutside},
		{"/top", "", ErrOutside, ErrOutside},
		{"to\x00p", "", ErrInvalid, ErrInvalid},
		{strings.Repeat("x", 5000), "", ErrNotFound, ErrNotFound},
	} {
		t.Run(fmt.Sprintf("%.20q", tc.path), func(t *testing.T) {
			if _, err := s.Lookup(t.Context(), tree, tc.path); !errors.Is(err, tc.lookup) {
				t.Errorf("lookup: %v, want %v", err, tc.lookup)
			}
			x, resolved, err := s.Resolve(t.Context(), tree, tc.path)
			if !errors.Is(err, tc.resolving) || resolved != tc.resolved {
				t.Errorf("resolve: %q, %v; want %q, %v", resolved, err, tc.resolved, tc.resolving)
			}
			if err == nil && x.Type == TypeSymlink {
				t.Error("resolved to a link")
			}
		})
	}
}

func TestWalk(t *testing.T) {
	s, tree := readTree(t)
	var paths []string
	err := s.Walk(t.Context(), tree, "", func(path string, x Entry) error {
		paths = append(paths, path)
		if path == "a/b" {
			return fs.SkipDir
		}
		return nil
	})
	want := "a a/b a/round a/self a/up abs dangling dir loop out sneaky through top"
	if got := strings.Join(paths, " "); err != nil || got != want {
		t.Errorf("walk %q, %v; want %q", got, err, want)
	}
	paths = nil
	err = s.Walk(t.Context(), tree, "./a/b/", func(path string, x Entry) error { paths = append(paths, path); return nil })
	if err != nil || len(paths) != 1 || paths[0] != "a/b/file" {
		t.Errorf("walk of a prefix: %q, %v", paths, err)
	}
}

func TestFileReader(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	for name, content := range map[string][]byte{
		"empty": {}, "small": []byte("small"), "edge": cdcInput(ChunkedFrom), "below": cdcInput(ChunkedFrom - 1), "large": cdcInput(6<<20 + 17),
	} {
		writeFile(t, filepath.Join(work, name), string(content))
	}
	tree := snapshot(t, s, work, "").Tree
	for _, name := range []string{"empty", "small", "edge", "below", "large"} {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(work, name))
			if err != nil {
				t.Fatal(err)
			}
			x, err := s.Lookup(t.Context(), tree, name)
			if err != nil || x.Digest != DigestOf(want) || x.Size != int64(len(want)) || x.Chunks.IsZero() == (len(want) >= ChunkedFrom) {
				t.Fatalf("entry %+v, %v", x, err)
			}
			f, err := s.OpenFile(t.Context(), x)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if len(want) < 100 {
				if err := iotest.TestReader(f, want); err != nil {
					t.Error(err)
				}
			}
			if got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read all: %d bytes, %v", len(got), err)
			}
			if _, err := f.Seek(-1, io.SeekStart); !errors.Is(err, ErrInvalid) {
				t.Errorf("seek: %v", err)
			}
		})
	}
	if _, err := s.OpenFile(t.Context(), Entry{Name: "d", Type: TypeDir}); !errors.Is(err, ErrInvalid) {
		t.Errorf("open of a directory: %v", err)
	}
	if _, err := s.OpenFile(t.Context(), Entry{Type: TypeFile, Size: 1 << 62, Digest: DigestOf([]byte("small"))}); err != nil {
		t.Errorf("open of a forged entry: %v", err)
	}
}

func TestRestoreRefusesAndCleans(t *testing.T) {
	s, tree := readTree(t)
	base := t.TempDir()
	writeFile(t, filepath.Join(base, "full/f"), "x")
	writeFile(t, filepath.Join(base, "file"), "x")
	none := RestoreOptions{UID: -1, GID: -1}
	for _, name := range []string{"full", "file"} {
		if _, err := s.Restore(t.Context(), tree, filepath.Join(base, name), none); !errors.Is(err, ErrExist) {
			t.Errorf("restore over %s: %v", name, err)
		}
	}
	if err := os.Mkdir(filepath.Join(base, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(t.Context(), tree, filepath.Join(base, "empty"), RestoreOptions{UID: -1, GID: -1, Path: "a/b"}); err != nil {
		t.Errorf("restore of a part into an empty directory: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(base, "empty/file")); err != nil || string(b) != "content" {
		t.Errorf("restored %q, %v", b, err)
	}
	if _, err := s.Restore(t.Context(), tree, filepath.Join(base, "x"), RestoreOptions{UID: -1, GID: -1, Path: "top"}); !errors.Is(err, ErrNotDir) {
		t.Errorf("restore of a file: %v", err)
	}
	forged, err := (&Directory{Entries: []Entry{
		{Name: "a", Type: TypeFile, Size: 1, Digest: DigestOf([]byte("top")), Mode: 0o644},
		{Name: "b", Type: TypeFile, Size: 4, Digest: DigestOf([]byte("lost")), Mode: 0o644}}}).marshal()
	if err != nil {
		t.Fatal(err)
	}
	bad, err := s.PutBytes(t.Context(), forged)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(t.Context(), bad, filepath.Join(base, "y"), none); !errors.Is(err, ErrCorrupt) {
		t.Errorf("restore of a forged size: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(base, ".skerry*"))
	if _, statErr := os.Stat(filepath.Join(base, "y")); err != nil || len(names) != 0 || !errors.Is(statErr, os.ErrNotExist) {
		t.Errorf("left behind: %q, %v", names, statErr)
	}
}

// TestRestoreOwner: everything belongs to the workspace's user, links too.
func TestRestoreOwner(t *testing.T) {
	requireRoot(t)
	s, tree := readTree(t)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := s.Restore(t.Context(), tree, out, RestoreOptions{UID: 4321, GID: 1234}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if id := lstatOwner(t, path); id != [2]uint32{4321, 1234} {
			return fmt.Errorf("%s belongs to %v", path, id)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRestoreSharesNothing: writing to a restored file does not reach the
// store or another restore.
func TestRestoreSharesNothing(t *testing.T) {
	s, tree := readTree(t)
	base := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if _, err := s.Restore(t.Context(), tree, filepath.Join(base, name), RestoreOptions{UID: -1, GID: -1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "one/top"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(base, "two/top")); err != nil || string(b) != "top" {
		t.Errorf("the other copy holds %q, %v", b, err)
	}
	if got := readCommitted(t, s, tree, "top"); string(got) != "top" {
		t.Errorf("the store holds %q", got)
	}
}

func TestDiffTypesAndModes(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "becomes-dir"), "x")
	writeFile(t, filepath.Join(work, "becomes-file/inner"), "x")
	writeFile(t, filepath.Join(work, "mode"), "x")
	writeFile(t, filepath.Join(work, "same/f"), "x")
	a := snapshot(t, s, work, "").Tree
	for _, name := range []string{"becomes-dir", "becomes-file"} {
		if err := os.RemoveAll(filepath.Join(work, name)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(work, "becomes-dir/new"), "x")
	writeFile(t, filepath.Join(work, "becomes-file"), "x")
	if err := errors.Join(os.Chmod(filepath.Join(work, "mode"), 0o600),
		os.Chtimes(filepath.Join(work, "same/f"), time.Unix(1, 0), time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	b := snapshot(t, s, work, "").Tree
	var got []string
	err := s.Diff(t.Context(), a, b, func(c Change) error {
		got = append(got, c.Kind.String()+" "+c.Path)
		return nil
	})
	want := "modified becomes-dir,created becomes-dir/new,modified becomes-file,deleted becomes-file/inner,modified mode"
	if strings.Join(got, ",") != want || err != nil {
		t.Errorf("diff %q, %v; want %q", got, err, want)
	}
}

func lstatOwner(t *testing.T, path string) [2]uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return [2]uint32{st.Uid, st.Gid}
}
