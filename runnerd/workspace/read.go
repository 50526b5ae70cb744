package workspace

import (
	"context"
	"path"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// View reads one committed snapshot of a workspace (I4): what runs in the
// workspace meanwhile does not show.
type View struct {
	w    *Workspace
	Tree cas.Digest
}

// View opens the snapshot with this digest, or the head when it is empty. Only
// snapshots of this workspace can be opened. The beginning of a digest, as lists
// show it, is enough where no other snapshot's begins so.
func (w *Workspace) View(ctx context.Context, snapshot string) (*View, error) {
	head := w.Head()
	if snapshot == "" {
		return &View{w: w, Tree: head.Tree}, nil
	}
	if hex, ok := digestPrefix(snapshot); ok {
		tree, err := w.treeWith(ctx, hex)
		return &View{w: w, Tree: tree}, err
	}
	tree, err := cas.ParseDigest(snapshot)
	if err != nil {
		return nil, problem.Invalid("snapshot", "use a digest that History shows, or at least its first 8 hexadecimal digits", "%q is no digest", clip(snapshot))
	}
	if tree.IsZero() { // inside, it stands for "nothing committed yet"
		return nil, problem.Missing("snapshot", "no snapshot %s in this workspace's history", clip(snapshot))
	}
	if tree == head.Tree && head.Seq > 0 {
		return &View{w: w, Tree: tree}, nil
	}
	if _, err := w.CommitOf(ctx, tree); err != nil {
		return nil, err
	}
	return &View{w: w, Tree: tree}, nil
}

// Digest is the snapshot's digest; "" when nothing was committed yet.
func (v *View) Digest() string { return v.Tree.String() }

// Lookup finds a path. follow resolves symlinks inside the tree; without it a
// final symlink is given as itself. The floor for reads is checked on what was
// asked for and on what it led to.
func (v *View) Lookup(ctx context.Context, asked string, follow bool) (cas.Entry, string, error) {
	p, err := CleanPath("path", asked)
	if err != nil {
		return cas.Entry{}, "", err
	}
	floor := v.w.manager.cfg.Floor
	if err := floor.CheckRead("path", p); err != nil {
		return cas.Entry{}, "", err
	}
	if v.Tree.IsZero() {
		if p == "" {
			return cas.Entry{Type: cas.TypeDir}, "", nil
		}
		return cas.Entry{}, "", problem.Missing("path", "no such file in the committed snapshot")
	}
	entry, resolved, err := v.resolve(ctx, p, follow)
	if err != nil {
		return cas.Entry{}, "", storeError("path", err)
	}
	return entry, resolved, floor.CheckRead("path", resolved)
}

func (v *View) resolve(ctx context.Context, p string, follow bool) (cas.Entry, string, error) {
	store := v.w.manager.store
	if follow || p == "" {
		return store.Resolve(ctx, v.Tree, p)
	}
	_, parent, err := store.Resolve(ctx, v.Tree, path.Dir(p))
	if err != nil {
		return cas.Entry{}, "", err
	}
	resolved := strings.TrimPrefix(path.Join(parent, path.Base(p)), "./")
	entry, err := store.Lookup(ctx, v.Tree, resolved)
	return entry, resolved, err
}

// Open opens a regular file; symlinks inside the tree are followed.
func (v *View) Open(ctx context.Context, asked string) (*cas.File, *skerryv1.FileInfo, error) {
	entry, resolved, err := v.Lookup(ctx, asked, true)
	if err != nil {
		return nil, nil, err
	}
	if entry.Type != cas.TypeFile {
		e := problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "list it with ListFiles", "%s is a %s", Display(resolved), entry.Type)
		e.Field = "path"
		return nil, nil, e
	}
	file, err := v.w.manager.store.OpenFile(ctx, entry)
	if err != nil {
		return nil, nil, err
	}
	return file, FileInfo(resolved, entry), nil
}

// FileInfo shows an entry of a tree at its workspace-relative path.
func FileInfo(p string, e cas.Entry) *skerryv1.FileInfo {
	f := &skerryv1.FileInfo{Path: Display(p), Type: e.Type.String(), Mode: e.Mode, Mtime: timestamppb.New(e.MTime)}
	if f.Path != p {
		f.RawPath = []byte(p)
	}
	switch e.Type {
	case cas.TypeFile:
		f.Size, f.Digest = uint64(e.Size), e.Digest.String()
	case cas.TypeSymlink:
		f.SymlinkTarget = Display(e.Target)
	case cas.TypeDir:
	}
	return f
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
