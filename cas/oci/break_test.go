package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"skerry.internal/cas"
)

// rawLayer adds an uncompressed layer as it is.
func (m *image) rawLayer(t testing.TB, plain []byte) {
	t.Helper()
	m.layers = append(m.layers, m.blob(t, v1.MediaTypeImageLayer, plain))
	m.ids = append(m.ids, digest.FromBytes(plain))
}

// What GNU tar makes of a file with holes is a file, in each of its formats.
func TestSparseFilesOfTar(t *testing.T) {
	tool(t, "tar")
	for _, format := range []string{"gnu", "oldgnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1", "posix --sparse-version=1.0"} {
		t.Run(format, func(t *testing.T) {
			src := t.TempDir()
			f, err := os.Create(src + "/holes")
			must(t, err)
			for i := range 12 { // more pieces than a header has room for
				_, err = f.WriteAt([]byte(strings.Repeat("x", 5000)), int64(i)*200_000)
				must(t, err)
			}
			must(t, f.Truncate(3_000_000), f.Close())
			want, err := os.ReadFile(src + "/holes")
			must(t, err)
			plain, err := exec.CommandContext(t.Context(), "sh", "-c", "tar -S -c --format="+format+" -C "+src+" holes").Output()
			must(t, err)
			if len(plain) > 200_000 {
				t.Skip("this file system has no holes")
			}
			m := newImage(t)
			m.rawLayer(t, plain)
			m.finish(t)
			s, in, err := m.load(t, ImportOptions{})
			must(t, err)
			if got := names(t, s, in.Tree); got != "holes="+string(want) {
				t.Fatalf("%d bytes, skipped %v", len(got), in.Skipped)
			}
			_, _, err = m.load(t, ImportOptions{MaxBytes: 1_000_000})
			if !errors.Is(err, cas.ErrLimit) {
				t.Fatalf("limit: %v", err)
			}
		})
	}
}

// A contiguous file is a file; what is neither a file nor a device is refused
// and not dropped.
func TestRareTypesOfEntries(t *testing.T) {
	m := newImage(t)
	cont := file("cont", "content")
	cont.Typeflag = tar.TypeCont
	m.layer(t, cont)
	m.finish(t)
	s, in, err := m.load(t, ImportOptions{})
	must(t, err)
	if got := names(t, s, in.Tree); got != "cont=content" {
		t.Errorf("got %q, skipped %v", got, in.Skipped)
	}
	for _, kind := range []byte{'D', 'M', 'N', 'Z'} {
		m := newImage(t)
		strange := file("strange", "")
		strange.Typeflag = kind
		m.layer(t, strange)
		m.finish(t)
		if _, in, err := m.load(t, ImportOptions{}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("type %q: %v, skipped %v", kind, err, in.Skipped)
		}
	}
}

// countdown ends after so many looks at it.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// An import ends with its context whatever a layer consists of.
func TestImportEndsWithItsContext(t *testing.T) {
	pad := make([]byte, 8<<20)
	many := &bytes.Buffer{}
	w := tar.NewWriter(many)
	for i := range 8000 {
		must(t, w.WriteHeader(file(fmt.Sprintf("%d/.wh..wh..opq", i), "")))
	}
	for name, layer := range map[string][]byte{"padding": pad, "whiteouts": append(many.Bytes(), pad[:1024]...)} {
		m := newImage(t)
		m.rawLayer(t, layer)
		m.finish(t)
		s := newStore(t)
		_, err := Import(&countdown{t.Context(), 8}, s, m.dir, ImportOptions{MaxBytes: 2 << 20}, func(Imported) error { return nil })
		if !errors.Is(err, context.Canceled) { // without it, the limit is met
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExportsAtOnceKeepEachOther(t *testing.T) {
	s, layout := newStore(t), t.TempDir()
	shot := snapshot(t, s, scene(t))
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 8 {
		g.Go(func() error {
			_, err := Export(ctx, s, shot.Tree, layout, ExportOptions{Tag: fmt.Sprint("tag", i), At: fmt.Sprint("at", i)})
			return err
		})
	}
	must(t, g.Wait())
	for i := range 8 {
		_, err := Import(t.Context(), s, layout, ImportOptions{Tag: fmt.Sprint("tag", i)}, func(Imported) error { return nil })
		if err != nil {
			t.Error(err)
		}
	}
}

// A tag that is exported again is one image, not two.
func TestExportReplacesItsTag(t *testing.T) {
	s, layout := newStore(t), t.TempDir()
	first, second := snapshot(t, s, scene(t)), snapshot(t, s, scene(t))
	_, err := Export(t.Context(), s, first.Tree, layout, ExportOptions{})
	must(t, err)
	_, err = Export(t.Context(), s, second.Tree, layout, ExportOptions{})
	must(t, err)
	in, err := Import(t.Context(), s, layout, ImportOptions{}, func(Imported) error { return nil })
	must(t, err)
	if in.Tree != second.Tree {
		t.Fatal("another tree")
	}
}

// The index is replaced and never written in place: a crash while it is
// written must not cost the images that a layout has.
func TestIndexIsReplacedWhole(t *testing.T) {
	s, layout := newStore(t), t.TempDir()
	shot := snapshot(t, s, scene(t))
	_, err := Export(t.Context(), s, shot.Tree, layout, ExportOptions{Tag: "one"})
	must(t, err)
	// Another name of the file shows whether its content changes.
	must(t, os.Link(layout+"/index.json", layout+"/before"))
	before, err := os.ReadFile(layout + "/before")
	must(t, err)
	_, err = Export(t.Context(), s, shot.Tree, layout, ExportOptions{Tag: "two"})
	must(t, err)
	after, err := os.ReadFile(layout + "/before")
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Fatal("index.json was written in place")
	}
}

// Whiteouts of one layer go through a directory once, and still take out all
// that earlier layers have there, wherever they stand among what the layer adds.
func TestWhiteoutsAmongAdditions(t *testing.T) {
	m := newImage(t)
	m.layer(t, dir("d"), file("d/old", "1"), dir("d/s"), file("d/s/old", "1"), dir("e"), file("e/old", "1"))
	m.layer(t, file("d/s/new", "2"), file("d/.wh..wh..opq", ""), file("d/s/late", "2"), file("d/.wh..wh..opq", ""), file(".wh.d", ""), file("e/.wh.old", ""), file(".wh.e", ""))
	m.layer(t, file("d/s/third", "3"), file("d/.wh..wh..opq", ""), file("d/s/.wh.third", ""))
	m.finish(t)
	s, in, err := m.load(t, ImportOptions{})
	must(t, err)
	if got, want := names(t, s, in.Tree), "d d/s d/s/third=3"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}
