package oci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"skerry.internal/cas"
)

// ImportOptions choose the image and bound it.
type ImportOptions struct {
	// Tag is the image's tag or digest; "" is the only image of the layout.
	Tag string
	// Platform chooses from a multi-platform image; "" is this host's.
	Platform string
	// MaxBytes bounds all layers together, uncompressed; 0 is 1 TiB.
	MaxBytes int64
	// MaxEntries bounds the tree; 0 is 20 million.
	MaxEntries int64
}

// Imported tells what an image gave.
type Imported struct {
	Tree     cas.Digest
	Stats    cas.TreeStats
	Manifest digest.Digest
	Layers   int
	// Skipped are devices, FIFOs and the like, at most 1000; SkippedTotal counts all.
	Skipped      []string
	SkippedTotal int64
	// DroppedBits counts files and directories with set-id or sticky bits,
	// DroppedXattrs those with extended attributes other than "user.*", or with
	// more than are kept. Owners are not kept either.
	DroppedBits, DroppedXattrs int64
}

const (
	defaultMaxBytes   = 1 << 40
	defaultMaxEntries = 20_000_000
	maxSkipped        = 1000
)

// Import reads an image of the layout at dir into the store and calls keep with
// the tree, which must commit or pin it: afterwards nothing keeps it. Nothing is
// written outside the store. Every blob is checked against its digest and every
// layer against the configuration before keep is called.
func Import(ctx context.Context, store *cas.Store, dir string, o ImportOptions, keep func(Imported) error) (Imported, error) {
	res, err := importImage(ctx, store, dir, o, keep)
	if err != nil {
		return res, fmt.Errorf("import: %w", err)
	}
	return res, nil
}

func importImage(ctx context.Context, store *cas.Store, dir string, o ImportOptions, keep func(Imported) error) (res Imported, err error) {
	if o.MaxBytes < 0 || o.MaxEntries < 0 {
		return res, fmt.Errorf("bounds of %d bytes and %d entries: give positive ones, or 0 for the default: %w", o.MaxBytes, o.MaxEntries, cas.ErrInvalid)
	}
	if o.Platform != "" {
		if _, _, _, err := splitPlatform(o.Platform); err != nil {
			return res, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return res, err
	}
	defer func() { _ = root.Close() }()
	src := source{root}
	desc, manifest, err := src.image(o.Tag, o.Platform)
	if err != nil {
		return res, err
	}
	var config v1.Image
	if err := src.blobJSON(manifest.Config, &config); err != nil {
		return res, err
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return res, fmt.Errorf("%d layers, but the configuration names %d: %w", len(manifest.Layers), len(config.RootFS.DiffIDs), cas.ErrInvalid)
	}
	tree, err := store.NewTree(ctx, orDefault(o.MaxEntries, defaultMaxEntries))
	if err != nil {
		return res, err
	}
	defer tree.Close()
	in := &importer{ctx: ctx, tree: tree, res: &res, left: orDefault(o.MaxBytes, defaultMaxBytes), most: orDefault(o.MaxBytes, defaultMaxBytes)}
	for i, layer := range manifest.Layers {
		tree.NextLayer()
		if err := in.layer(src, layer, config.RootFS.DiffIDs[i]); err != nil {
			return res, fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	res.Manifest, res.Layers = desc.Digest, len(manifest.Layers)
	if res.Tree, res.Stats, err = tree.Finish(); err != nil {
		return res, err
	}
	return res, keep(res)
}

func orDefault(n, otherwise int64) int64 {
	if n > 0 {
		return n
	}
	return otherwise
}

type importer struct {
	ctx        context.Context //nolint:containedctx // lives as long as the call
	tree       *cas.TreeWriter
	res        *Imported
	left, most int64 // bytes of uncompressed layers
	files      int64 // bytes of files
}

// layer applies one layer and checks both of its digests.
func (in *importer) layer(src source, desc v1.Descriptor, diffID digest.Digest) error {
	if err := diffID.Validate(); err != nil || diffID.Algorithm() != digest.SHA256 {
		return fmt.Errorf("diff id %.100q: want sha256: %w", diffID, ErrUnsupported)
	}
	blob, err := src.blob(desc)
	if err != nil {
		return err
	}
	defer func() { _ = blob.Close() }()
	plain, done, err := decompress(desc.MediaType, blob)
	if err != nil {
		return err
	}
	defer done()
	sum := diffID.Verifier()
	stream := io.TeeReader(&bounded{in, plain}, sum)
	if err := in.apply(tar.NewReader(stream)); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil { // padding behind the archive
		return err
	}
	if !sum.Verified() {
		return fmt.Errorf("uncompressed content is not %s: %w", diffID, cas.ErrCorrupt)
	}
	return blob.verify()
}

// bounded stops a layer that unpacks to more than is allowed, and one that is
// still being read when the caller has gone.
type bounded struct {
	in *importer
	r  io.Reader
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if err := b.in.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.in.left -= int64(n); b.in.left < 0 {
		return 0, &cas.LimitError{What: "bytes in an image", Limit: b.in.most}
	}
	return n, err
}

// maxWindow bounds the memory of a zstd stream, as its command-line tool does.
const maxWindow = 128 << 20

func decompress(mediaType string, r io.Reader) (io.Reader, func(), error) {
	switch mediaType {
	case v1.MediaTypeImageLayer:
		return r, func() {}, nil
	case v1.MediaTypeImageLayerGzip, dockerLayer:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil
	case v1.MediaTypeImageLayerZstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return nil, nil, fmt.Errorf("layer of media type %.100q: %w", mediaType, ErrUnsupported)
}

func (in *importer) apply(t *tar.Reader) error {
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := in.entry(h, t); err != nil {
			return err
		}
	}
}

func (in *importer) entry(h *tar.Header, content io.Reader) error {
	if name := path.Base(h.Name); strings.HasPrefix(name, whiteout) {
		return in.white(h.Name, name)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return in.tree.Dir(h.Name, in.meta(h))
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		// A sparse entry is longer than what the archive has of it.
		if in.files += h.Size; in.files > in.most || in.files < 0 {
			return &cas.LimitError{What: "bytes in an image", Limit: in.most}
		}
		return in.tree.File(h.Name, in.meta(h), content)
	case tar.TypeSymlink:
		return in.tree.Symlink(h.Name, h.Linkname, h.ModTime)
	case tar.TypeLink:
		return in.tree.Link(h.Name, h.Linkname)
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		in.skip(h.Name)
		return nil
	}
	return fmt.Errorf("%.200q: entry of type %q: %w", h.Name, h.Typeflag, ErrUnsupported)
}

func (in *importer) skip(name string) {
	in.res.SkippedTotal++
	if len(in.res.Skipped) < maxSkipped {
		in.res.Skipped = append(in.res.Skipped, name)
	}
}

func (in *importer) white(p, name string) error {
	if name == whiteoutOpaque {
		return in.tree.Clear(path.Dir(p))
	}
	hidden := strings.TrimPrefix(name, whiteout)
	if hidden == "" || hidden == "." || hidden == ".." {
		return fmt.Errorf("%.200q: %w", p, cas.ErrInvalid)
	}
	return in.tree.Remove(path.Join(path.Dir(p), hidden))
}

// meta gives what is kept of an entry, and counts what is not.
func (in *importer) meta(h *tar.Header) cas.TreeMeta {
	m := cas.TreeMeta{Mode: uint32(h.Mode & 0o777), MTime: h.ModTime}
	if h.Mode&0o7000 != 0 {
		in.res.DroppedBits++
	}
	dropped := false
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrRecord)
		switch {
		case !ok:
		case strings.HasPrefix(name, "user."):
			m.Xattrs = append(m.Xattrs, cas.Xattr{Name: name, Value: value})
		default:
			dropped = true
		}
	}
	slices.SortFunc(m.Xattrs, func(a, b cas.Xattr) int { return strings.Compare(a.Name, b.Name) })
	if !cas.ValidXattrs(m.Xattrs) {
		m.Xattrs, dropped = nil, true
	}
	if dropped {
		in.res.DroppedXattrs++
	}
	return m
}
