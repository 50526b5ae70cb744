// Package oci turns a tree of the store into a container image in an OCI image
// layout, and an image in a layout into a tree. Both follow the OCI image
// specification 1.1: an exported tree is one layer, and the layers of an imported
// image are applied in order, whiteouts included.
package oci

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnsupported says that the tree cannot be an image, or the image no tree.
var ErrUnsupported = errors.New("unsupported")

// AnnotationTree is the annotation of an exported manifest that names the tree.
// Import does not rely on it.
const AnnotationTree = "internal.skerry.tree"

const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	// xattrRecord begins the PAX records of extended attributes.
	xattrRecord = "SCHILY.xattr."
)

// Compression of an exported layer.
const (
	Gzip = "gzip"
	Zstd = "zstd"
	None = "none"
)

// splitPlatform parses OS/ARCH or OS/ARCH/VARIANT.
func splitPlatform(p string) (os, arch, variant string, err error) {
	parts := strings.Split(p, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return "", "", "", fmt.Errorf("platform %q: want OS/ARCH or OS/ARCH/VARIANT, such as linux/arm64", p)
	}
	if len(parts) == 3 {
		variant = parts[2]
	}
	return parts[0], parts[1], variant, nil
}
