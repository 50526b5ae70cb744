package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"testing"

	"skerry.internal/cas"
)

// FuzzImport applies any bytes as a layer above a layer of everything: it is
// refused, or becomes a tree that can be walked.
func FuzzImport(f *testing.F) {
	plain := func(headers ...*tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.PAXRecords = nil
			if err := w.WriteHeader(h); err != nil {
				f.Fatal(err)
			}
		}
		return b.Bytes()
	}
	f.Add(plain(file("d/.wh..wh..opq", ""), file(".wh.f", ""), link(tar.TypeLink, "again", "f"), link(tar.TypeSymlink, "d", "..")))
	f.Add(plain(&tar.Header{Typeflag: tar.TypeReg, Name: "long", Format: tar.FormatPAX, Xattrs: map[string]string{"user.a": "b"}})) //nolint:staticcheck // what images have
	f.Add(plain(dir("d/s"), dir("l/x"), file("l/../y", ""), dir("."), dir("/")))
	s, err := cas.Open(context.Background(), f.TempDir(), cas.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, layer []byte) {
		m := newImage(t)
		m.layer(t, dir("d"), file("d/x", "1"), file("f", "2"), link(tar.TypeSymlink, "l", "d"), link(tar.TypeLink, "h", "f"))
		m.rawLayer(t, layer)
		m.finish(t)
		_, err := Import(t.Context(), s, m.dir, ImportOptions{MaxBytes: 1 << 20, MaxEntries: 100}, func(i Imported) error {
			_ = names(t, s, i.Tree)
			return s.Pin(t.Context(), "image", i.Tree)
		})
		_ = err // most are refused
	})
}
