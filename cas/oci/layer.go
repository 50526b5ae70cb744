package oci

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"skerry.internal/cas"
)

// layerWriter writes a tree as the tar stream of a layer: directories before
// what is in them, names in the order of their bytes, owner 0:0, so that equal
// trees are equal streams.
type layerWriter struct {
	ctx   context.Context //nolint:containedctx // lives as long as the call
	store *cas.Store
	tar   *tar.Writer
	links map[uint64]string // first name of each hard-link group
}

// writeLayer writes the tree below the directory at, "" for the root.
func writeLayer(ctx context.Context, store *cas.Store, tree cas.Digest, at string, out io.Writer) error {
	l := &layerWriter{ctx: ctx, store: store, tar: tar.NewWriter(out), links: map[uint64]string{}}
	root, err := store.ReadDir(ctx, tree)
	if err != nil {
		return err
	}
	prefix, err := l.base(root, at)
	if err != nil {
		return err
	}
	if err := l.dir(root, prefix); err != nil {
		return err
	}
	return l.tar.Close()
}

// base writes the directories that lead to the tree's root, and the root's own
// mode and time, and gives the path that entries begin with.
func (l *layerWriter) base(root *cas.Directory, at string) (string, error) {
	last := "./"
	prefix := ""
	for _, name := range strings.FieldsFunc(at, func(r rune) bool { return r == '/' }) {
		if prefix != "" {
			if err := l.header(&tar.Header{Typeflag: tar.TypeDir, Name: last, Mode: 0o755, ModTime: time.Unix(0, 0)}, nil); err != nil {
				return "", err
			}
		}
		prefix = path.Join(prefix, name)
		last = prefix + "/"
	}
	return prefix, l.header(&tar.Header{Typeflag: tar.TypeDir, Name: last, Mode: int64(root.Mode), ModTime: root.MTime}, root.Xattrs)
}

func (l *layerWriter) dir(d *cas.Directory, at string) error {
	for i := range d.Entries {
		x := &d.Entries[i]
		name := path.Join(at, x.Name)
		if strings.HasPrefix(x.Name, whiteout) {
			return fmt.Errorf("%.200q: a name that begins with %q means a deletion in an image; rename it: %w", name, whiteout, ErrUnsupported)
		}
		if err := l.entry(x, name); err != nil {
			return fmt.Errorf("%.200q: %w", name, err)
		}
	}
	return nil
}

func (l *layerWriter) entry(x *cas.Entry, name string) error {
	h := &tar.Header{Name: name, Mode: int64(x.Mode), ModTime: x.MTime}
	switch x.Type {
	case cas.TypeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := l.header(h, x.Xattrs); err != nil {
			return err
		}
		d, err := l.store.ReadDir(l.ctx, x.Digest)
		if err != nil {
			return err
		}
		return l.dir(d, name)
	case cas.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, x.Target
		return l.header(h, nil)
	case cas.TypeFile:
		return l.file(x, h)
	}
	return fmt.Errorf("type %v: %w", x.Type, ErrUnsupported)
}

func (l *layerWriter) file(x *cas.Entry, h *tar.Header) error {
	if first, ok := l.links[x.LinkGroup]; ok && x.LinkGroup != 0 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return l.header(h, nil)
	}
	if x.LinkGroup != 0 {
		l.links[x.LinkGroup] = h.Name
	}
	h.Typeflag, h.Size = tar.TypeReg, x.Size
	if err := l.header(h, x.Xattrs); err != nil || x.Size == 0 {
		return err
	}
	f, err := l.store.OpenFile(l.ctx, *x)
	if err != nil {
		return err
	}
	_, err = io.Copy(l.tar, f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// header writes h in the PAX format, which keeps long names, large sizes and
// the time's fraction.
func (l *layerWriter) header(h *tar.Header, attrs []cas.Xattr) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	for _, a := range attrs {
		if strings.Contains(a.Name, "=") {
			return fmt.Errorf("extended attribute %.200q: a tar archive cannot hold a name with \"=\": %w", a.Name, ErrUnsupported)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[xattrRecord+a.Name] = a.Value
	}
	h.Format = tar.FormatPAX
	return l.tar.WriteHeader(h)
}
