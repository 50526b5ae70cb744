package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
)

// maxManifest bounds each JSON document of an image, as registries do.
const maxManifest = 4 << 20

// source reads a layout that nobody vouches for. It is our own reading: the
// library that writes layouts allocates as many bytes as a descriptor claims.
// os.Root keeps symlinks in the layout from leading out of it.
type source struct{ root *os.Root }

// image finds the image called tag, or the only one when tag is "". Of an index
// it takes the image of the platform.
func (s source) image(tag, platform string) (v1.Descriptor, v1.Manifest, error) {
	var index v1.Index
	if err := s.decode("index.json", &index); err != nil {
		return v1.Descriptor{}, v1.Manifest{}, err
	}
	desc, err := tagged(index.Manifests, tag)
	if err != nil {
		return desc, v1.Manifest{}, err
	}
	for range 4 { // indexes may name indexes
		switch desc.MediaType {
		case v1.MediaTypeImageManifest, dockerManifest:
			var m v1.Manifest
			err := s.blobJSON(desc, &m)
			return desc, m, err
		case v1.MediaTypeImageIndex, dockerIndex:
			var inner v1.Index
			if err := s.blobJSON(desc, &inner); err != nil {
				return desc, v1.Manifest{}, err
			}
			if desc, err = forPlatform(inner.Manifests, platform); err != nil {
				return desc, v1.Manifest{}, err
			}
		default:
			return desc, v1.Manifest{}, fmt.Errorf("media type %.100q: %w", desc.MediaType, ErrUnsupported)
		}
	}
	return desc, v1.Manifest{}, fmt.Errorf("indexes within indexes: %w", ErrUnsupported)
}

const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

func tagged(all []v1.Descriptor, tag string) (v1.Descriptor, error) {
	var found []v1.Descriptor
	for _, d := range all {
		if tag == "" || d.Annotations[v1.AnnotationRefName] == tag || d.Digest.String() == tag {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return v1.Descriptor{}, fmt.Errorf("image %.100q in the layout: %w", tag, cas.ErrNotFound)
	}
	return v1.Descriptor{}, fmt.Errorf("%d images in the layout match %.100q; name one by its tag or digest: %w", len(found), tag, cas.ErrInvalid)
}

func forPlatform(all []v1.Descriptor, platform string) (v1.Descriptor, error) {
	if platform == "" {
		platform = "linux/" + runtime.GOARCH
	}
	system, arch, variant, err := splitPlatform(platform)
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, d := range all {
		p := d.Platform
		if p != nil && p.OS == system && p.Architecture == arch && (variant == "" || p.Variant == variant) {
			return d, nil
		}
	}
	return v1.Descriptor{}, fmt.Errorf("no image for %s in the index: %w", platform, cas.ErrNotFound)
}

// open opens a regular file of the layout; a FIFO would keep it waiting.
func (s source) open(name string) (*os.File, error) {
	f, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: %w", name, cas.ErrCorrupt)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// blob opens a blob. Its content is checked when it is read to the end.
func (s source) blob(desc v1.Descriptor) (*checked, error) {
	if err := desc.Digest.Validate(); err != nil || desc.Digest.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("digest %.100q: want sha256: %w", desc.Digest, ErrUnsupported)
	}
	f, err := s.open("blobs/sha256/" + desc.Digest.Encoded())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, cas.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != desc.Size {
		err = fmt.Errorf("blob %s is no file of %d bytes: %w", desc.Digest, desc.Size, cas.ErrCorrupt)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &checked{Reader: io.LimitReader(f, desc.Size), Closer: f, want: desc.Digest, sum: desc.Digest.Verifier()}, nil
}

// checked reads a blob and compares its digest.
type checked struct {
	io.Reader
	io.Closer
	want digest.Digest
	sum  digest.Verifier
}

// Read implements io.Reader.
func (c *checked) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	_, _ = c.sum.Write(p[:n]) // a hash never fails
	return n, err
}

// verify reads what is left and reports content that is not what its name says.
func (c *checked) verify() error {
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	if !c.sum.Verified() {
		return fmt.Errorf("blob %s has other content: %w", c.want, cas.ErrCorrupt)
	}
	return nil
}

func (s source) blobJSON(desc v1.Descriptor, into any) error {
	if desc.Size > maxManifest {
		return &cas.LimitError{What: "bytes in a manifest", Limit: maxManifest}
	}
	b, err := s.blob(desc)
	if err != nil {
		return err
	}
	content, err := io.ReadAll(b)
	if err == nil {
		err = b.verify()
	}
	if err = errors.Join(err, b.Close()); err != nil {
		return err
	}
	return decode(content, desc.Digest.String(), into)
}

func (s source) decode(name string, into any) error {
	f, err := s.open(name)
	if err != nil {
		return fmt.Errorf("not an OCI image layout: %w", err)
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return err
	}
	if len(content) > maxManifest {
		return &cas.LimitError{What: "bytes in " + name, Limit: maxManifest}
	}
	return decode(content, name, into)
}

func decode(content []byte, name string, into any) error {
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w: %w", name, cas.ErrInvalid, err)
	}
	return nil
}
