package workspace

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

func TestI4ReadsSeeOnlyWhatIsCommitted(t *testing.T) {
	w := newBed(t).workspace(t)
	if err := put(t, w, Write{Path: "f"}, "committed"); err != nil {
		t.Fatal(err)
	}
	old := commit(t, w, "write:f").Snapshot.Digest
	if err := os.WriteFile(w.Tree()+"/f", []byte("half-writ"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, w, "", "f"); got != "committed" {
		t.Fatalf("read %q", got)
	}
	commit(t, w, "execution:1")
	if got := readAll(t, w, "", "f"); got != "half-writ" {
		t.Fatalf("head has %q", got)
	}
	if got := readAll(t, w, old, "f"); got != "committed" {
		t.Fatalf("old snapshot has %q", got)
	}
	if _, err := w.View(t.Context(), cas.DigestOf([]byte("other")).String()); reason(err) != problem.NotFound {
		t.Fatalf("a foreign digest: %v", err)
	}
}

func readAll(t *testing.T, w *Workspace, snapshot, path string) string {
	t.Helper()
	v, err := w.View(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := v.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestF17ReadsStayInside(t *testing.T) {
	w := newBed(t).workspace(t)
	for link, target := range map[string]string{"abs": "/etc/passwd", "up": "../../../../etc/passwd", "dirout": "/etc", "loop": "loop",
		"in": "real", "secret": ".ssh/id"} {
		if err := os.Symlink(target, w.Tree()+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(w.Tree()+"/real", []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.Tree()+"/.ssh", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.Tree()+"/.ssh/id", []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	commit(t, w, "execution:1")
	v, err := w.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"abs": problem.PathOutside, "up": problem.PathOutside, "dirout/passwd": problem.PathOutside,
		"loop": problem.InvalidArgument, "secret": problem.PathSensitive, ".SSH/id": problem.PathSensitive, "nothing": problem.NotFound,
		"real/x": problem.NotFound} {
		if _, _, err := v.Open(t.Context(), path); reason(err) != want {
			t.Errorf("open %s: %v, want %s", path, err, want)
		}
	}
	if got := readAll(t, w, "", "in"); got != "hello" {
		t.Fatalf("a symlink inside gives %q", got)
	}
	files, more, err := v.List(t.Context(), List{Recursive: true, Limit: 100})
	if err != nil || more {
		t.Fatal(err, more)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Path, ".ssh") {
			t.Errorf("the list shows %s", f.Path)
		}
		if f.Path == "abs" && (f.Type != "symlink" || f.SymlinkTarget != "/etc/passwd") {
			t.Errorf("symlink listed as %v", f)
		}
	}
}

func TestListPages(t *testing.T) {
	w := newBed(t).workspace(t)
	for _, p := range []string{"a/b/c", "a/d"} {
		if err := put(t, w, Write{Path: p}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"a!", "b\xff", "z"} {
		if err := os.WriteFile(w.Tree()+"/"+p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"a", "a/b", "a/b/c", "a/d", "a!", "b\xff", "z"}
	commit(t, w, "execution:1")
	v, err := w.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit <= len(want); limit++ {
		var got []string
		after := ""
		for {
			page, more, err := v.List(t.Context(), List{Recursive: true, Limit: limit, After: after})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range page {
				after = f.Path
				if f.RawPath != nil {
					after = string(f.RawPath)
				}
				got = append(got, after)
			}
			if !more {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("limit %d: %q, want %q", limit, got, want)
		}
	}
}

func TestReadTextPages(t *testing.T) {
	w := newBed(t).workspace(t)
	var lines []string
	for i := range 5000 {
		lines = append(lines, fmt.Sprintf("line %d äöü", i))
	}
	text := strings.Join(lines, "\n")
	for path, content := range map[string]string{"t": text, "long": strings.Repeat("ä", 60<<10) + "\nend\n", "bin": "a\x00b", "latin": "caf\xe9", "empty": ""} {
		if err := put(t, w, Write{Path: path}, content); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, w, "write:t")
	v, err := w.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for offset, pages := uint64(1), 0; offset != 0; pages++ {
		page, err := v.ReadText(t.Context(), "t", offset, MaxPageLines)
		if err != nil || len(page.Text) > MaxPageBytes || page.Lines > MaxPageLines || pages > 20 {
			t.Fatal(err, len(page.Text), page.Lines)
		}
		got.WriteString(page.Text)
		offset = page.NextOffset
	}
	if got.String() != text {
		t.Fatal("pages do not add up to the file")
	}
	long, err := v.ReadText(t.Context(), "long", 1, 10)
	if err != nil || long.OmittedBytes == 0 || strings.ContainsRune(long.Text, '\uFFFD') || long.NextOffset != 2 {
		t.Fatalf("long line: omitted %d next %d %v", long.OmittedBytes, long.NextOffset, err)
	}
	for path, binary := range map[string]bool{"bin": true, "latin": true, "empty": false} {
		page, err := v.ReadText(t.Context(), path, 1, 10)
		if err != nil || page.Binary != binary || page.Text != "" || page.File.Digest == "" {
			t.Errorf("%s: %v %v", path, page, err)
		}
	}
	tail, err := v.ReadText(t.Context(), "t", 5000, 10)
	if err != nil || tail.Text != lines[4999] || tail.NextOffset != 0 {
		t.Fatalf("last line: %v %v", tail, err)
	}
}

// What lists show of a digest is enough to name a snapshot, as long as it is
// the beginning of one only.
func TestASnapshotIsNamedByTheBeginningOfItsDigest(t *testing.T) {
	w := newBed(t).workspace(t)
	var digests []string
	for i := range 3 {
		shell(t, w, "echo "+string(rune('a'+i))+" > f")
		digests = append(digests, commit(t, w, "execution:x").Snapshot.Digest)
	}
	for _, d := range digests {
		for _, name := range []string{d[:len("sha256:")+12], d[len("sha256:"):][:8], d} {
			v, err := w.View(t.Context(), name)
			if err != nil || v.Digest() != d {
				t.Errorf("%s: %v, want %s", name, err, d)
			}
		}
	}
	for name, want := range map[string]string{"sha256:0123": problem.InvalidArgument, "0123456789ab": problem.NotFound, "sha256:xyzxyzxyzxyz": problem.InvalidArgument,
		digests[0][:len("sha256:")+7]: problem.InvalidArgument} {
		if _, err := w.View(t.Context(), name); reason(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
