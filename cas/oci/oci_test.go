package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
)

func newStore(t testing.TB) *cas.Store {
	t.Helper()
	s, err := cas.Open(t.Context(), filepath.Join(t.TempDir(), "store"), cas.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// scene is a directory with everything that an image can carry.
func scene(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	big := make([]byte, 5<<20)
	_, _ = rand.Read(big)
	must(t, os.Mkdir(dir+"/sub", 0o750), os.Mkdir(dir+"/empty", 0o700),
		os.WriteFile(dir+"/sub/exec", []byte("#!/bin/sh\n"), 0o755),
		os.WriteFile(dir+"/sub/big", big, 0o640),
		os.WriteFile(dir+"/none", nil, 0o600),
		os.WriteFile(dir+"/not utf-8 \xff\xfe", []byte("x"), 0o644),
		os.WriteFile(dir+"/"+strings.Repeat("long", 50), []byte("y"), 0o644),
		os.Link(dir+"/sub/exec", dir+"/again"),
		os.Symlink("../outside", dir+"/sub/dangling"),
		unix.Setxattr(dir+"/sub/exec", "user.origin", []byte("a=b\x00c"), 0), unix.Setxattr(dir+"/empty", "user.tag", []byte("x"), 0),
		os.Symlink("/etc/passwd", dir+"/absolute"),
		os.Chtimes(dir+"/sub/exec", time.Unix(1_600_000_000, 123_456_789), time.Unix(1_600_000_000, 123_456_789)))
	return dir
}

func snapshot(t testing.TB, s *cas.Store, path string) cas.SnapshotResult {
	t.Helper()
	dir, err := os.Open(path)
	must(t, err)
	defer dir.Close()
	res, err := s.Snapshot(t.Context(), dir, cas.SnapshotOptions{})
	must(t, err)
	must(t, s.Pin(t.Context(), "p:"+res.Tree.Hex(), res.Tree))
	return res
}

func TestRoundTrip(t *testing.T) {
	for _, compression := range []string{Gzip, Zstd, None} {
		t.Run(compression, func(t *testing.T) {
			s, layout := newStore(t), t.TempDir()
			shot := snapshot(t, s, scene(t))
			out, err := Export(t.Context(), s, shot.Tree, layout, ExportOptions{Compression: compression, Tag: "one"})
			must(t, err)
			again, err := Export(t.Context(), s, shot.Tree, t.TempDir(), ExportOptions{Compression: compression, Tag: "two"})
			must(t, err)
			if out.Manifest.Digest != again.Manifest.Digest {
				t.Fatalf("equal trees give %s and %s", out.Manifest.Digest, again.Manifest.Digest)
			}
			other := newStore(t)
			in, err := Import(t.Context(), other, layout, ImportOptions{Tag: "one"}, func(i Imported) error { return other.Pin(t.Context(), "image", i.Tree) })
			must(t, err)
			if in.Tree != shot.Tree {
				t.Errorf("exported %s, imported %s", shot.Tree, in.Tree)
			}
			if got, want := list(t, other, in.Tree), list(t, s, shot.Tree); got != want {
				t.Fatalf("imported:\n%s\nexported:\n%s", got, want)
			}
			if in.Stats.Files != shot.Files || in.Stats.Dirs != shot.Dirs || in.Stats.Symlinks != shot.Symlinks || in.Stats.Bytes != shot.Bytes {
				t.Fatalf("stats %+v, want %+v", in.Stats, shot.TreeStats)
			}
			rep, err := other.Verify(t.Context(), cas.VerifyOptions{})
			if err != nil || !rep.OK() {
				t.Fatalf("verify: %+v %v", rep, err)
			}
		})
	}
}

// list shows a tree in full.
func list(t testing.TB, s *cas.Store, tree cas.Digest) string {
	t.Helper()
	var b strings.Builder
	must(t, s.Walk(t.Context(), tree, "", func(p string, x cas.Entry) error {
		if x.Type == cas.TypeDir {
			x.Digest = cas.Digest{} // of what is listed below
		}
		if x.Type == cas.TypeSymlink {
			x.Mode = 0
		}
		fmt.Fprintf(&b, "%q %v %o %d %s %d %v %q %d %q\n", p, x.Type, x.Mode, x.Size, x.Digest, min(x.LinkGroup, 1), x.MTime.UTC(), x.Target, len(x.Extents), x.Xattrs)
		return nil
	}))
	return b.String()
}

func TestAt(t *testing.T) {
	s, layout := newStore(t), t.TempDir()
	shot := snapshot(t, s, scene(t))
	_, err := Export(t.Context(), s, shot.Tree, layout, ExportOptions{At: "/opt/work/"})
	must(t, err)
	in, err := Import(t.Context(), s, layout, ImportOptions{}, func(i Imported) error { return s.Pin(t.Context(), "image", i.Tree) })
	must(t, err)
	x, err := s.Lookup(t.Context(), in.Tree, "opt/work")
	must(t, err)
	if got, want := list(t, s, x.Digest), list(t, s, shot.Tree); got != want {
		t.Fatalf("below opt/work:\n%s\nwant:\n%s", got, want)
	}
}

func TestExportRefuses(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	must(t, os.WriteFile(dir+"/.wh.x", nil, 0o644))
	shot := snapshot(t, s, dir)
	if _, err := Export(t.Context(), s, shot.Tree, t.TempDir(), ExportOptions{}); !errors.Is(err, ErrUnsupported) {
		t.Fatalf("a name that means a deletion: %v", err)
	}
	for _, o := range []ExportOptions{{Compression: "lzma"}, {Platform: "linux"}, {At: "../x"}, {At: "a/.wh.b"}, {Tag: "a b"}, {Tag: "-x"}, {Tag: strings.Repeat("t", 256)}} {
		if _, err := Export(t.Context(), s, shot.Tree, t.TempDir(), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// image is a layout made by hand.
type image struct {
	dir    string
	layers []v1.Descriptor
	ids    []digest.Digest
}

func newImage(t testing.TB) *image {
	t.Helper()
	m := &image{dir: t.TempDir()}
	must(t, os.MkdirAll(m.dir+"/blobs/sha256", 0o755), os.WriteFile(m.dir+"/oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
	return m
}

func (m *image) blob(t testing.TB, mediaType string, content []byte) v1.Descriptor {
	t.Helper()
	d := digest.FromBytes(content)
	must(t, os.WriteFile(m.dir+"/blobs/sha256/"+d.Encoded(), content, 0o644))
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
}

func (m *image) layer(t testing.TB, headers ...*tar.Header) {
	t.Helper()
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range headers {
		content := []byte(h.PAXRecords["content"])
		h.PAXRecords = nil
		h.Size = int64(len(content))
		must(t, w.WriteHeader(h))
		_, err := w.Write(content)
		must(t, err)
	}
	must(t, w.Close())
	z := gzip.NewWriter(&packed)
	_, err := z.Write(plain.Bytes())
	must(t, err, z.Close())
	m.layers = append(m.layers, m.blob(t, v1.MediaTypeImageLayerGzip, packed.Bytes()))
	m.ids = append(m.ids, digest.FromBytes(plain.Bytes()))
}

func (m *image) finish(t testing.TB) {
	t.Helper()
	put := func(mediaType string, v any) v1.Descriptor {
		b, err := json.Marshal(v)
		must(t, err)
		return m.blob(t, mediaType, b)
	}
	config := put(v1.MediaTypeImageConfig, v1.Image{RootFS: v1.RootFS{Type: "layers", DiffIDs: m.ids}})
	manifest := put(v1.MediaTypeImageManifest, v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: config, Layers: m.layers})
	b, err := json.Marshal(v1.Index{Manifests: []v1.Descriptor{manifest}})
	must(t, err, os.WriteFile(m.dir+"/index.json", b, 0o644))
}

func file(name, content string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, PAXRecords: map[string]string{"content": content}}
}

func dir(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}

func link(kind byte, name, target string) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
}

func (m *image) load(t testing.TB, o ImportOptions) (*cas.Store, Imported, error) {
	t.Helper()
	s := newStore(t)
	in, err := Import(t.Context(), s, m.dir, o, func(i Imported) error { return s.Pin(context.Background(), "image", i.Tree) })
	return s, in, err
}

// names shows each path with the content of files and the target of links.
func names(t testing.TB, s *cas.Store, tree cas.Digest) string {
	t.Helper()
	var out []string
	must(t, s.Walk(t.Context(), tree, "", func(p string, x cas.Entry) error {
		switch x.Type {
		case cas.TypeFile:
			f, err := s.OpenFile(t.Context(), x)
			must(t, err)
			b, err := io.ReadAll(f)
			must(t, err, f.Close())
			p += "=" + string(b)
		case cas.TypeSymlink:
			p += "->" + x.Target
		case cas.TypeDir:
		}
		out = append(out, p)
		return nil
	}))
	return strings.Join(out, " ")
}

func TestLayers(t *testing.T) {
	m := newImage(t)
	m.layer(t, dir("./"), dir("usr/"), dir("usr/lib"), link(tar.TypeSymlink, "lib", "usr/lib"), file("usr/lib/a", "1"), file("keep", "1"),
		file("gone", "1"), dir("opaque"), file("opaque/old", "1"), dir("opaque/sub"), file("opaque/sub/old", "1"), dir("dir"), file("dir/x", "1"),
		link(tar.TypeLink, "hard", "keep"), link(tar.TypeSymlink, "up", "../../../usr"), &tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666})
	m.layer(t, file("lib/b", "2"), file(".wh.gone", ""), file("opaque/sub/new", "2"), file("opaque/.wh..wh..opq", ""), file("opaque/new", "2"),
		file("dir", "2"), file(".wh.dir2", ""), file("up/c", "2"), file("/abs", "2"), file("lib/.wh.none", ""), file("nowhere/.wh.x", ""))
	m.layer(t, file(".wh.hard", ""), file("again", "3"), file(".wh.again", ""))
	m.finish(t)
	s, in, err := m.load(t, ImportOptions{})
	must(t, err)
	want := "abs=2 again=3 dir=2 keep=1 lib->usr/lib opaque opaque/new=2 opaque/sub opaque/sub/new=2 up->../../../usr usr usr/c=2 usr/lib usr/lib/a=1 usr/lib/b=2"
	if got := names(t, s, in.Tree); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if in.SkippedTotal != 1 || in.Skipped[0] != "null" || in.Layers != 3 {
		t.Fatalf("%+v", in)
	}
}

func TestHostileImages(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		make func(*image)
		opt  ImportOptions
		want error
	}{
		"dot dot":          {func(m *image) { m.layer(t, file("a/../../etc/x", "")) }, ImportOptions{}, cas.ErrOutside},
		"whiteout dot dot": {func(m *image) { m.layer(t, file("a/.wh...", "")) }, ImportOptions{}, cas.ErrInvalid},
		"link to nothing":  {func(m *image) { m.layer(t, link(tar.TypeLink, "a", "/etc/passwd")) }, ImportOptions{}, cas.ErrNotFound},
		"link to dot dot":  {func(m *image) { m.layer(t, link(tar.TypeLink, "a", "../../etc/passwd")) }, ImportOptions{}, cas.ErrOutside},
		"loop": {func(m *image) {
			m.layer(t, link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a"), file("a/x", ""))
		}, ImportOptions{}, cas.ErrLoop},
		"file as parent":      {func(m *image) { m.layer(t, file("a", ""), file("a/x", "")) }, ImportOptions{}, cas.ErrNotDir},
		"file as root":        {func(m *image) { m.layer(t, file(".", "")) }, ImportOptions{}, cas.ErrInvalid},
		"too many bytes":      {func(m *image) { m.layer(t, file("a", big)) }, ImportOptions{MaxBytes: 1 << 19}, cas.ErrLimit},
		"too many entries":    {func(m *image) { m.layer(t, file("a", ""), file("b", ""), file("c", "")) }, ImportOptions{MaxEntries: 2}, cas.ErrLimit},
		"too deep":            {func(m *image) { m.layer(t, file(strings.Repeat("d/", 5000)+"x", "")) }, ImportOptions{}, cas.ErrLimit},
		"wrong diff id":       {func(m *image) { m.layer(t, file("a", "")); m.ids[0] = digest.FromString("x") }, ImportOptions{}, cas.ErrCorrupt},
		"layer not named":     {func(m *image) { m.layer(t, file("a", "")); m.ids = nil }, ImportOptions{}, cas.ErrInvalid},
		"size that is a lie":  {func(m *image) { m.layer(t, file("a", "")); m.layers[0].Size = 1 << 60 }, ImportOptions{}, cas.ErrCorrupt},
		"unknown compression": {func(m *image) { m.layer(t, file("a", "")); m.layers[0].MediaType = "x/y" }, ImportOptions{}, ErrUnsupported},
		"digest with a path":  {func(m *image) { m.layer(t, file("a", "")); m.layers[0].Digest = "sha256:../../../etc/passwd" }, ImportOptions{}, ErrUnsupported},
		"blob that is a link": {func(m *image) {
			m.layer(t, file("a", ""))
			p := m.dir + "/blobs/sha256/" + m.layers[0].Digest.Encoded()
			must(t, os.Remove(p), os.Symlink("/etc/passwd", p))
		}, ImportOptions{}, nil},
		"blob that is a pipe": {func(m *image) {
			m.layer(t, file("a", ""))
			p := m.dir + "/blobs/sha256/" + m.layers[0].Digest.Encoded()
			must(t, os.Remove(p), unix.Mkfifo(p, 0o644))
		}, ImportOptions{}, cas.ErrCorrupt},
		"changed blob": {func(m *image) {
			m.layer(t, file("a", strings.Repeat("abc", 1000)))
			p := m.dir + "/blobs/sha256/" + m.layers[0].Digest.Encoded()
			b, err := os.ReadFile(p)
			must(t, err)
			b[4] ^= 1 // the header's time: the content still unpacks
			must(t, os.WriteFile(p, b, 0o644))
		}, ImportOptions{}, cas.ErrCorrupt},
		"no such tag": {func(m *image) { m.layer(t, file("a", "")) }, ImportOptions{Tag: "other"}, cas.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			m := newImage(t)
			c.make(m)
			m.finish(t)
			kept := false
			s := newStore(t)
			_, err := Import(t.Context(), s, m.dir, c.opt, func(Imported) error { kept = true; return nil })
			if err == nil || kept || (c.want != nil && !errors.Is(err, c.want)) {
				t.Fatalf("kept %v, error %v, want %v", kept, err, c.want)
			}
		})
	}
}

func TestExportLeavesOtherDirectoriesAlone(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	must(t, os.WriteFile(dir+"/thesis.tex", nil, 0o644))
	shot := snapshot(t, s, scene(t))
	if _, err := Export(t.Context(), s, shot.Tree, dir, ExportOptions{}); !errors.Is(err, cas.ErrExist) {
		t.Fatalf("into a directory of other things: %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Fatalf("it wrote there: %v %v", names, err)
	}
}

func TestImportChecksItsOptions(t *testing.T) {
	m := newImage(t)
	m.layer(t, file("a", ""))
	m.finish(t)
	for _, o := range []ImportOptions{{MaxBytes: -10}, {MaxEntries: -1}, {Platform: "foo"}} {
		if _, _, err := m.load(t, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
