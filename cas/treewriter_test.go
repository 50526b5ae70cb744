package cas

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTreeWriterMakesWhatASnapshotIs: the entries of any tree, written in any
// order, make that tree again.
func TestTreeWriterMakesWhatASnapshotIs(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	base := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		work := rapidDir(rt, base)
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			mutate(rt, work)
		}
		tree := snapshot(t, s, work, "").Tree
		type item struct {
			path string
			x    Entry
		}
		var items []item
		if err := s.Walk(t.Context(), tree, "", func(p string, x Entry) error { items = append(items, item{p, x}); return nil }); err != nil {
			rt.Fatal(err)
		}
		w, err := s.NewTree(t.Context(), 1000)
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Close()
		root, err := s.ReadDir(t.Context(), tree)
		if err != nil {
			rt.Fatal(err)
		}
		errs := []error{w.Dir("", TreeMeta{root.Mode, root.MTime, root.Xattrs})}
		first := map[uint64]string{}
		for _, it := range rapid.Permutation(items).Draw(rt, "order") {
			m := TreeMeta{it.x.Mode, it.x.MTime, it.x.Xattrs}
			switch it.x.Type {
			case TypeDir:
				errs = append(errs, w.Dir(it.path, m))
			case TypeSymlink:
				errs = append(errs, w.Symlink(it.path, it.x.Target, it.x.MTime))
			case TypeFile:
				if at, ok := first[it.x.LinkGroup]; ok && it.x.LinkGroup != 0 {
					errs = append(errs, w.Link(it.path, at))
					continue
				}
				first[it.x.LinkGroup] = it.path
				f, err := s.OpenFile(t.Context(), it.x)
				if err != nil {
					rt.Fatal(err)
				}
				errs = append(errs, w.File(it.path, m, f), f.Close())
			}
		}
		got, stats, err := w.Finish()
		if err := errors.Join(append(errs, err)...); err != nil {
			rt.Fatal(err)
		}
		if got != tree {
			rt.Fatalf("made %s of %s", got, tree)
		}
		if n := stats.Files + stats.Dirs + stats.Symlinks; n != int64(len(items)) {
			rt.Fatalf("%d entries counted, there are %d", n, len(items))
		}
	})
}

func TestTreeWriterRefuses(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	w, err := s.NewTree(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file := func(p string) error { return w.File(p, TreeMeta{Mode: 0o644}, strings.NewReader("x")) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(file("f"))
	must(w.Symlink("loop", "loop", time.Time{}))
	must(w.Symlink("up", strings.Repeat("../", 9000), time.Time{}))
	for p, want := range map[string]error{
		"../x": ErrOutside, "a/../x": ErrOutside, "a\x00b": ErrInvalid, "f/x": ErrNotDir, "": ErrInvalid, "/./": ErrInvalid,
		"loop/x": ErrLoop, "up/x": ErrLoop, strings.Repeat("n", 5000): ErrLimit, strings.Repeat("d/", 5000) + "x": ErrLimit,
	} {
		if err := file(p); !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", p, err, want)
		}
	}
	if err := w.Link("new", "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a link to nothing: %v", err)
	}
	if err := w.File("x", TreeMeta{Xattrs: []Xattr{{"security.x", ""}}}, strings.NewReader("")); !errors.Is(err, ErrInvalid) {
		t.Errorf("an attribute of the system: %v", err)
	}
	must(file("g"))
	must(file("h"))
	if err := file("i"); !errors.Is(err, ErrLimit) {
		t.Errorf("the sixth entry: %v", err)
	}
}

func TestPutFile(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	for _, size := range []int{0, 1, ChunkedFrom - 1, ChunkedFrom, ChunkedFrom + 1, 3*ChunkedFrom + 7} {
		content := randomBytes(uint64(size), size)
		x, err := s.PutFile(t.Context(), io.MultiReader(bytes.NewReader(content[:size/3]), bytes.NewReader(content[size/3:])))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(work, fmt.Sprint(size)), string(content))
		want, err := s.Lookup(t.Context(), snapshot(t, s, work, "").Tree, fmt.Sprint(size))
		if err != nil {
			t.Fatal(err)
		}
		if x.Digest != want.Digest || x.Chunks != want.Chunks || x.Size != want.Size {
			t.Errorf("%d bytes: put %+v, a snapshot has %+v", size, x, want)
		}
	}
	broken := errors.New("broken")
	if _, err := s.PutFile(t.Context(), io.MultiReader(bytes.NewReader(make([]byte, 5<<20)), &failingReader{broken})); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestPutDirectoryNeedsWhatItNames(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	there, err := s.PutBytes(t.Context(), []byte("there"))
	if err != nil {
		t.Fatal(err)
	}
	entry := func(d Digest) *Directory {
		return &Directory{Entries: []Entry{{Name: "f", Type: TypeFile, Size: 5, Digest: d}}}
	}
	if _, err := s.PutDirectory(t.Context(), entry(DigestOf([]byte("gone!")))); !errors.Is(err, ErrNotFound) {
		t.Errorf("a directory of what is not there: %v", err)
	}
	d, err := s.PutDirectory(t.Context(), entry(there))
	if err != nil {
		t.Fatal(err)
	}
	if dir, err := s.ReadDir(t.Context(), d); err != nil || len(dir.Entries) != 1 {
		t.Errorf("read back: %v %v", dir, err)
	}
	if _, err := s.PutDirectory(t.Context(), &Directory{Entries: []Entry{{Name: "../x", Type: TypeSymlink, Target: "y"}}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name with a slash: %v", err)
	}
}

func TestRestoreOneEntry(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work, out := t.TempDir(), t.TempDir()
	for _, p := range []string{"d/a", "d/b", "d/sub/c", "top"} {
		writeFile(t, filepath.Join(work, p), p)
	}
	tree := snapshot(t, s, work, "").Tree
	for only, want := range map[string][]string{"a": {"a"}, "sub": {"sub", "sub/c"}} {
		dest := filepath.Join(out, only)
		if _, err := s.Restore(t.Context(), tree, dest, RestoreOptions{UID: -1, GID: -1, Path: "d", Only: only}); err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := filepath.Walk(dest, func(p string, _ os.FileInfo, err error) error {
			if rel, _ := filepath.Rel(dest, p); rel != "." {
				got = append(got, rel)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("only %s: %v, want %v", only, got, want)
		}
	}
	for _, o := range []RestoreOptions{{Path: "d", Only: "none"}, {Path: "d", Only: "a", CacheKey: "k"}} {
		dest := filepath.Join(out, "refused")
		if _, err := s.Restore(t.Context(), tree, dest, o); !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := os.Lstat(dest); !os.IsNotExist(err) {
			t.Errorf("%+v left %v", o, err)
		}
	}
}

// TestEndRestoresLeavesOthersAlone: what another destination's restore has in
// the same directory is not this one's.
func TestEndRestoresLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, made := range []string{besideName(a) + "X", besideName(a) + "Y.old", besideName(b) + "X", besideName(b) + "Y.old"} {
		writeFile(t, filepath.Join(dir, made, "f"), made)
	}
	if err := EndRestores(a); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range left {
		names = append(names, x.Name())
	}
	want := []string{besideName(b) + "X", besideName(b) + "Y.old", "a"}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Fatalf("left %v, want %v", names, want)
	}
}
