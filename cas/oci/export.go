package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	layout "oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"

	"skerry.internal/cas"
)

// ExportOptions say how the image looks. The zero value is an image for this
// host's platform, compressed with gzip, with the tree at its root.
type ExportOptions struct {
	// Tag names the image in the layout; "" is "latest". An image of that tag
	// there gives way.
	Tag string
	// At is the directory of the image that the tree becomes; "" is the root.
	At string
	// Compression is Gzip, Zstd or None; "" is Gzip.
	Compression string
	// Platform is OS/ARCH or OS/ARCH/VARIANT; "" is this host's.
	Platform string
	// Entrypoint, WorkingDir and Env go into the image's configuration.
	Entrypoint []string
	WorkingDir string
	Env        []string
}

// Exported tells what was written.
type Exported struct {
	Manifest v1.Descriptor
	Layer    v1.Descriptor
	DiffID   digest.Digest
}

// Export writes the tree as an image into the layout at dir, which is made when
// it is not there. Equal trees and options give equal digests. Other images in
// the layout stay.
func Export(ctx context.Context, store *cas.Store, tree cas.Digest, dir string, o ExportOptions) (Exported, error) {
	out, err := export(ctx, store, tree, dir, o)
	if err != nil {
		return out, fmt.Errorf("export %s: %w", tree, err)
	}
	return out, nil
}

func export(ctx context.Context, store *cas.Store, tree cas.Digest, dir string, o ExportOptions) (out Exported, err error) {
	if err := o.complete(); err != nil {
		return out, err
	}
	if err := makeLayout(dir); err != nil {
		return out, err
	}
	target, err := layout.NewWithContext(ctx, dir)
	if err != nil {
		return out, err
	}
	target.AutoSaveIndex = false
	if out.Layer, out.DiffID, err = pushLayer(ctx, store, tree, dir, target, o); err != nil {
		return out, err
	}
	config, err := pushJSON(ctx, target, v1.MediaTypeImageConfig, o.config(out.DiffID))
	if err != nil {
		return out, err
	}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: config,
		Layers: []v1.Descriptor{out.Layer}, Annotations: map[string]string{AnnotationTree: tree.String()}}
	if out.Manifest, err = pushJSON(ctx, target, v1.MediaTypeImageManifest, m); err != nil {
		return out, err
	}
	return out, enter(dir, out.Manifest, o.Tag)
}

func (o *ExportOptions) complete() error {
	if o.Tag == "" {
		o.Tag = "latest"
	}
	if len(o.Tag) > 255 || !validTag.MatchString(o.Tag) {
		return fmt.Errorf("tag %.100q: letters, digits and _ . - : / @ + only, 255 at most: %w", o.Tag, cas.ErrInvalid)
	}
	if o.Compression == "" {
		o.Compression = Gzip
	}
	if o.Platform == "" {
		o.Platform = "linux/" + runtime.GOARCH
	}
	if _, ok := layerTypes[o.Compression]; !ok {
		return fmt.Errorf("compression %q: use gzip, zstd or none", o.Compression)
	}
	for name := range strings.SplitSeq(o.At, "/") {
		if name == ".." || strings.HasPrefix(name, whiteout) {
			return fmt.Errorf("directory %q in the image: no .. and no name that begins with %s", o.At, whiteout)
		}
	}
	if o.At = strings.Trim(path.Clean("/"+o.At), "/"); strings.ContainsRune(o.At, 0) {
		return errors.New("the directory in the image has a NUL byte")
	}
	_, _, _, err := splitPlatform(o.Platform)
	return err
}

// validTag is the grammar of org.opencontainers.image.ref.name.
var validTag = regexp.MustCompile(`^[A-Za-z0-9]+([-._:@+/]+[A-Za-z0-9]+)*$`)

var layerTypes = map[string]string{Gzip: v1.MediaTypeImageLayerGzip, Zstd: v1.MediaTypeImageLayerZstd, None: v1.MediaTypeImageLayer}

func (o *ExportOptions) config(diffID digest.Digest) v1.Image {
	system, arch, variant, _ := splitPlatform(o.Platform)
	return v1.Image{Platform: v1.Platform{OS: system, Architecture: arch, Variant: variant},
		Config: v1.ImageConfig{Entrypoint: o.Entrypoint, WorkingDir: o.WorkingDir, Env: o.Env},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}}}
}

// pushLayer writes the layer to a file beside the layout first: its digest is
// known when it is whole.
func pushLayer(ctx context.Context, store *cas.Store, tree cas.Digest, dir string, target *layout.Store, o ExportOptions) (v1.Descriptor, digest.Digest, error) {
	tmp, err := os.CreateTemp(dir, ".layer-*")
	if err != nil {
		return v1.Descriptor{}, "", err
	}
	defer func() {
		_ = tmp.Close()
		_ = os.Remove(tmp.Name())
	}()
	stored := digest.SHA256.Digester()
	size := &counter{w: io.MultiWriter(tmp, stored.Hash())}
	packed, err := compressor(o.Compression, size)
	if err != nil {
		return v1.Descriptor{}, "", err
	}
	plain := digest.SHA256.Digester()
	if err := writeLayer(ctx, store, tree, o.At, io.MultiWriter(packed, plain.Hash())); err != nil {
		return v1.Descriptor{}, "", errors.Join(err, packed.Close())
	}
	if err := packed.Close(); err != nil {
		return v1.Descriptor{}, "", err
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return v1.Descriptor{}, "", err
	}
	desc := v1.Descriptor{MediaType: layerTypes[o.Compression], Digest: stored.Digest(), Size: size.n}
	return desc, plain.Digest(), push(ctx, target, desc, tmp)
}

func compressor(kind string, w io.Writer) (io.WriteCloser, error) {
	switch kind {
	case Gzip:
		return gzip.NewWriterLevel(w, gzip.BestSpeed)
	case Zstd:
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	}
	return nopCloser{w}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func pushJSON(ctx context.Context, target *layout.Store, mediaType string, v any) (v1.Descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	desc := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	return desc, push(ctx, target, desc, bytes.NewReader(b))
}

// push stores a blob unless the layout has it.
func push(ctx context.Context, target *layout.Store, desc v1.Descriptor, r io.Reader) error {
	there, err := target.Exists(ctx, desc)
	if err != nil || there {
		return err
	}
	err = target.Push(ctx, desc, r)
	if errors.Is(err, errdef.ErrAlreadyExists) { // another export was faster
		return nil
	}
	return err
}
