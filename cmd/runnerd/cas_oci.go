package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"skerry.internal/cas"
	"skerry.internal/cas/oci"
)

// exportReport is what `cas export --json` prints.
type exportReport struct {
	Digest     cas.Digest `json:"digest"` // of the tree
	Manifest   string     `json:"manifest"`
	Layer      string     `json:"layer"`
	LayerBytes int64      `json:"layerBytes"`
	DiffID     string     `json:"diffId"` // of the uncompressed layer
	Tag        string     `json:"tag"`
	Seconds    float64    `json:"seconds"`
}

func casExport(f *casFlags) *cobra.Command {
	o := oci.ExportOptions{}
	c := &cobra.Command{
		Use: "export DIGEST LAYOUT", Short: "Write a tree as a container image into an OCI image layout",
		Long: "Write a tree as a container image of one layer into an OCI image layout, a directory that is made when it is not there.\n" +
			"DIGEST is that of a tree or a commit, or a head's name. Equal trees and options give equal images.",
		Example: "  runnerd cas export sha256:... /tmp/layout --tag results --at /workspace --store /var/backups/store\n" +
			"  skopeo copy oci:/tmp/layout:results docker-archive:results.tar", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			start := time.Now()
			var r exportReport
			err := f.withStore(cmd.Context(), false, func(s *cas.Store) error {
				tree, err := resolveTree(cmd.Context(), s, args[0])
				if err != nil {
					return err
				}
				out, err := oci.Export(cmd.Context(), s, tree, args[1], o)
				r = exportReport{Digest: tree, Manifest: out.Manifest.Digest.String(), Layer: out.Layer.Digest.String(), LayerBytes: out.Layer.Size,
					DiffID: out.DiffID.String(), Tag: o.Tag}
				return err
			})
			if err != nil {
				return err
			}
			r.Seconds = time.Since(start).Seconds()
			return f.print(cmd.OutOrStdout(), r, r.text)
		},
	}
	c.Flags().StringVar(&o.Tag, "tag", "latest", "name of the image in the layout")
	c.Flags().StringVar(&o.At, "at", "/", "directory of the image that the tree becomes")
	c.Flags().StringVar(&o.Compression, "compress", oci.Gzip, "gzip, zstd or none")
	c.Flags().StringVar(&o.Platform, "platform", "", "OS/ARCH or OS/ARCH/VARIANT (default: this host's)")
	c.Flags().StringSliceVar(&o.Entrypoint, "entrypoint", nil, "program and arguments, separated by commas")
	c.Flags().StringVar(&o.WorkingDir, "workdir", "", "working directory in the image")
	return c
}

func (r exportReport) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s: %s, layer of %d bytes, %.3f s\n", r.Manifest, r.Tag, r.Digest, r.LayerBytes, r.Seconds)
	return err
}

// importReport is what `cas import --json` prints.
type importReport struct {
	Digest        cas.Digest `json:"digest"` // of the tree
	Commit        cas.Digest `json:"commit"`
	Head          string     `json:"head"`
	Manifest      string     `json:"manifest"`
	Layers        int        `json:"layers"`
	Files         int64      `json:"files"`
	Dirs          int64      `json:"dirs"`
	Symlinks      int64      `json:"symlinks"`
	Bytes         int64      `json:"bytes"`
	Skipped       int64      `json:"skipped"` // devices and the like
	DroppedBits   int64      `json:"droppedBits"`
	DroppedXattrs int64      `json:"droppedXattrs"`
	Seconds       float64    `json:"seconds"`
}

func casImport(f *casFlags) *cobra.Command {
	o := oci.ImportOptions{}
	var head string
	c := &cobra.Command{
		Use: "import LAYOUT", Short: "Store a container image of an OCI image layout as a tree",
		Long: "Store a container image of an OCI image layout as a tree, the next commit of a head. All layers are applied, and every\n" +
			"digest is checked. Owners, set-id bits, extended attributes other than user.* and devices are not kept.",
		Example: "  skopeo copy docker-archive:image.tar oci:/tmp/layout:image\n" +
			"  runnerd cas import /tmp/layout --tag image --store /var/backups/store", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			start := time.Now()
			if head == "" {
				abs, err := filepath.Abs(args[0])
				if err != nil {
					return err
				}
				head = "oci:" + abs + ":" + o.Tag
			}
			r := importReport{Head: head}
			err := f.withStore(cmd.Context(), true, func(s *cas.Store) error {
				in, err := oci.Import(cmd.Context(), s, args[0], o, func(in oci.Imported) (err error) {
					r.Commit, err = commitTo(cmd.Context(), s, head, in)
					return err
				})
				r.Digest, r.Manifest, r.Layers, r.Skipped, r.DroppedBits, r.DroppedXattrs = in.Tree, in.Manifest.String(), in.Layers, in.SkippedTotal, in.DroppedBits, in.DroppedXattrs
				r.Files, r.Dirs, r.Symlinks, r.Bytes = in.Stats.Files, in.Stats.Dirs, in.Stats.Symlinks, in.Stats.Bytes
				return err
			})
			if err != nil {
				return err
			}
			r.Seconds = time.Since(start).Seconds()
			return f.print(cmd.OutOrStdout(), r, r.text)
		},
	}
	c.Flags().StringVar(&o.Tag, "tag", "", "the image's tag or digest (default: the only image)")
	c.Flags().StringVar(&o.Platform, "platform", "", "OS/ARCH or OS/ARCH/VARIANT to take from a multi-platform image (default: this host's)")
	c.Flags().Int64Var(&o.MaxBytes, "max-bytes", 0, "bytes that the image may unpack to (default 1 TiB)")
	c.Flags().Int64Var(&o.MaxEntries, "max-entries", 0, "files, directories and links that it may have (default 20 million)")
	c.Flags().StringVar(&head, "head", "", `the head to commit to (default "oci:", the absolute path of LAYOUT, ":" and the tag)`)
	return c
}

// commitTo moves the head to an imported tree unless it is there already.
func commitTo(ctx context.Context, s *cas.Store, head string, in oci.Imported) (cas.Digest, error) {
	h, err := s.Head(ctx, head)
	if err != nil && !errors.Is(err, cas.ErrNotFound) {
		return cas.Digest{}, err
	}
	if h.Tree != in.Tree {
		h, err = s.Commit(ctx, cas.CommitRequest{Head: head, Expect: h.Commit, Epoch: h.Epoch, Tree: in.Tree, Source: "oci:" + in.Manifest.String(), Stats: in.Stats})
	}
	return h.Commit, err
}

func (r importReport) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s: %d layers, %d files, %d bytes, %d skipped, %.3f s\n", r.Digest, r.Head, r.Layers, r.Files, r.Bytes, r.Skipped, r.Seconds)
	return err
}
