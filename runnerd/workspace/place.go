package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// Placement is an entry of a tree in the store and where it is to lie in the
// workspace. A directory is made without what it holds.
type Placement struct {
	// Path is workspace-relative, clean, raw bytes; Place checks it.
	Path  string
	Entry cas.Entry
}

// Place puts entries into the directory, one rename each, and gives for each nil
// when it lies there now, or lay there with the same content, else why not. What
// exists with another content is replaced only if overwrite, and a directory
// never. No symlink is followed, not even one that stays inside. The caller
// holds the lane, and commits. An error means that none of it was tried.
func (w *Workspace) Place(ctx context.Context, items []Placement, overwrite bool) ([]error, error) {
	root, err := os.Open(w.Tree())
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	stage, err := os.MkdirTemp(w.dir+"/tmp", "place-*")
	if err != nil {
		return nil, noRoom(fmt.Errorf("stage files: %w", err))
	}
	defer func() {
		if err := cas.RemoveTree(stage); err != nil { // the next start does
			w.manager.log.Warn("staged files not removed", "workspace", w.ID, "err", err)
		}
	}()
	p := &placer{w: w, ctx: ctx, root: root, stage: stage, overwrite: overwrite, seen: newTreeView(ctx, w), errs: make([]error, len(items))}
	p.now, _ = w.usage()
	p.next = p.now
	p.decide(items)
	p.makeAll(items)
	p.putAll(items)
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return nil, noRoom(fmt.Errorf("force files to disk: %w", err))
	}
	return p.errs, nil
}

// placer is one Place.
type placer struct {
	w         *Workspace
	ctx       context.Context //nolint:containedctx // lives as long as the call
	root      *os.File
	stage     string
	overwrite bool
	seen      *treeView
	now, next cas.TreeStats
	errs      []error
	put       []int    // items that are to be put there, by index
	made      []string // host path of each of them, staged; "" for directories
}

// decide finds what is to be done, in the order of the items, as if each were
// done at once.
func (p *placer) decide(items []Placement) {
	for i, item := range items {
		todo, err := p.decideOne(item)
		if err == nil {
			err = p.ctx.Err()
		}
		if p.errs[i] = err; err == nil && todo {
			p.put = append(p.put, i)
		}
	}
}

func (p *placer) decideOne(item Placement) (todo bool, err error) {
	clean, err := CleanPath("path", item.Path)
	if err == nil {
		err = p.w.manager.cfg.Floor.CheckWrite("path", clean)
	}
	if err != nil {
		return false, err
	}
	if clean == "" || clean != item.Path {
		return false, problem.Invalid("path", "name a file below the workspace", "%q is not a clean path", clip(item.Path))
	}
	parent, missing, err := p.seen.dir(path.Dir(clean))
	if err != nil {
		return false, err
	}
	have, exists := parent[path.Base(clean)]
	if exists {
		if same(have, item.Entry, p.overwrite) {
			return false, nil
		}
		if err := p.mayReplace(have, item.Entry); err != nil {
			return false, err
		}
	}
	return true, p.account(clean, item.Entry, have, exists, missing)
}

// same reports whether what lies there is what is to be put there. A mode alone
// is no conflict, but overwriting brings it.
func same(have, want cas.Entry, overwrite bool) bool {
	if have.Type != want.Type {
		return false
	}
	switch want.Type {
	case cas.TypeDir:
		return true
	case cas.TypeSymlink:
		return have.Target == want.Target
	default:
		return have.Digest == want.Digest && have.Size == want.Size && (!overwrite || have.Mode == want.Mode)
	}
}

func (p *placer) mayReplace(have, want cas.Entry) error {
	switch {
	case have.Type == cas.TypeDir || want.Type == cas.TypeDir:
		return problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "delete it first, or choose another target", "a %s lies there, and a %s does not replace it", have.Type, want.Type)
	case !p.overwrite:
		return problem.New(connect.CodeAlreadyExists, problem.FileConflict, "set conflict to overwrite, or choose another target", "another %s lies there", have.Type)
	}
	return nil
}

// account holds the quota against the step and notes it.
func (p *placer) account(clean string, want, have cas.Entry, exists bool, missing int64) error {
	next := p.next
	next.Dirs += missing
	if exists {
		count(&next, have, -1)
	}
	count(&next, want, 1)
	if err := p.w.grow("content", p.now, next); err != nil {
		return err
	}
	p.next = next
	p.seen.set(clean, want)
	return nil
}

func count(s *cas.TreeStats, x cas.Entry, times int64) {
	switch x.Type {
	case cas.TypeFile:
		s.Files += times
		s.Bytes += times * x.Size
	case cas.TypeSymlink:
		s.Symlinks += times
	case cas.TypeDir:
		s.Dirs += times
	}
}

// makeAll makes the files beside the workspace. When that fails, each is made
// for itself, so that only the one at fault fails.
func (p *placer) makeAll(items []Placement) {
	p.made = make([]string, len(p.put))
	var some []int
	for at, i := range p.put {
		if items[i].Entry.Type != cas.TypeDir {
			some = append(some, at)
		}
	}
	if len(some) == 0 || p.restore(items, some, "all") == nil {
		return
	}
	for _, at := range some {
		if err := p.restore(items, []int{at}, fmt.Sprintf("one%d", at)); err != nil {
			p.errs[p.put[at]] = placeProblem(err)
		}
	}
}

// restore makes the given items in a directory of the stage, which as a tree
// has them under numbers.
func (p *placer) restore(items []Placement, some []int, name string) error {
	dir := &cas.Directory{Root: true, Mode: 0o700, MTime: time.Unix(1, 0)}
	for _, at := range some {
		x := items[p.put[at]].Entry
		x.Name = fmt.Sprintf("%08d", at)
		dir.Entries = append(dir.Entries, x)
	}
	store := p.w.manager.store
	tree, err := store.PutDirectory(p.ctx, dir)
	if err != nil {
		return err
	}
	made := p.stage + "/" + name
	if _, err := store.Restore(p.ctx, tree, made, cas.RestoreOptions{UID: p.w.UID, GID: p.w.GID}); err != nil {
		return err
	}
	for _, at := range some {
		p.made[at] = fmt.Sprintf("%s/%08d", made, at)
	}
	return nil
}

func (p *placer) putAll(items []Placement) {
	for at, i := range p.put {
		if p.errs[i] == nil {
			p.errs[i] = placeProblem(p.putOne(items[i], p.made[at]))
		}
	}
}

func placeProblem(err error) error {
	var typed *problem.Error
	switch {
	case err == nil || errors.As(err, &typed):
		return err
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, cas.ErrCorrupt), errors.Is(err, cas.ErrNotFound):
		return problem.New(connect.CodeDataLoss, problem.StoreFailed, "start another transfer; the runner's log names the object", "the content is damaged in the runner's store").Because(err)
	}
	out := pathError(err)
	if errors.As(out, &typed) {
		return out
	}
	return problem.New(connect.CodeInternal, problem.Internal, "see the runner's log", "the runner could not write it").Because(err)
}

func (p *placer) putOne(item Placement, made string) error {
	parent, err := p.parent(path.Dir(item.Path))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	name := path.Base(item.Path)
	if item.Entry.Type == cas.TypeDir {
		return p.mkdir(parent, name, item.Entry.Mode)
	}
	dir := int(parent.Fd())
	err = unix.Renameat2(unix.AT_FDCWD, made, dir, name, unix.RENAME_NOREPLACE)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !p.overwrite { // the head has not got it: a device, a pipe, a socket
		return problem.New(connect.CodeAlreadyExists, problem.FileConflict, "delete it first, or choose another target", "something that is not committed lies there")
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "delete it first, or choose another target", "what lies there is no file")
	}
	return unix.Renameat(unix.AT_FDCWD, made, dir, name)
}

// parent opens a directory beneath the workspace, making what is missing. The
// kernel refuses every symlink on the way.
func (p *placer) parent(dir string) (*os.File, error) {
	at := "."
	if dir != "" {
		at = dir
	}
	f, err := p.openBeneath(at)
	if err == nil || !errors.Is(err, fs.ErrNotExist) || at == "." {
		return f, err
	}
	above, err := p.parent(path.Dir(at))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	if err := p.mkdir(above, path.Base(at), 0o755); err != nil {
		return nil, err
	}
	return p.openBeneath(at)
}

// openBeneath walks down a component at a time: none of them may be a symlink.
func (p *placer) openBeneath(dir string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	at, err := unix.Openat(int(p.root.Fd()), ".", flags, 0)
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(dir, "/") {
		next, err := unix.Openat(at, name, flags, 0)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			err = notDirectory(at, name, err)
		}
		_ = unix.Close(at)
		if err != nil {
			return nil, err
		}
		at = next
	}
	return os.NewFile(uintptr(at), dir), nil
}

// notDirectory says what is in a directory's place.
func notDirectory(at int, name string, err error) error {
	var st unix.Stat_t
	if unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return symlinkInPath()
	}
	return err
}

func symlinkInPath() *problem.Error {
	e := problem.New(connect.CodeInvalidArgument, problem.PathOutside, "choose a target whose parents are directories", "a parent of the path is a symlink")
	e.Field = "path"
	return e
}

func (p *placer) mkdir(parent *os.File, name string, mode uint32) error {
	err := unix.Mkdirat(int(parent.Fd()), name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil // the next step says so if it is no directory
	}
	if err != nil {
		return err
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if p.w.UID >= 0 {
		if err := unix.Fchown(fd, p.w.UID, p.w.GID); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, mode&0o777|0o700) // what comes into it needs the right
}

// treeView is the head's tree with what is going to be put into it.
type treeView struct {
	ctx  context.Context //nolint:containedctx // lives as long as the placer
	w    *Workspace
	tree cas.Digest
	dirs map[string]map[string]cas.Entry
}

func newTreeView(ctx context.Context, w *Workspace) *treeView {
	_, tree := w.usage()
	return &treeView{ctx: ctx, w: w, tree: tree, dirs: map[string]map[string]cas.Entry{}}
}

// dir gives what a directory has, and how many of it and its parents are missing.
func (v *treeView) dir(p string) (map[string]cas.Entry, int64, error) {
	if p == "." || p == "" {
		entries, err := v.load("", v.tree)
		return entries, 0, err
	}
	above, missing, err := v.dir(path.Dir(p))
	if err != nil {
		return nil, 0, err
	}
	have, exists := above[path.Base(p)]
	switch {
	case !exists:
		return nil, missing + 1, nil
	case have.Type == cas.TypeSymlink:
		return nil, 0, symlinkInPath()
	case have.Type != cas.TypeDir:
		e := problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "choose another target", "a parent of the path is a file")
		e.Field = "path"
		return nil, 0, e
	}
	entries, err := v.load(p, have.Digest)
	return entries, missing, err
}

func (v *treeView) load(p string, tree cas.Digest) (map[string]cas.Entry, error) {
	if entries, ok := v.dirs[p]; ok {
		return entries, nil
	}
	entries := map[string]cas.Entry{}
	if !tree.IsZero() {
		dir, err := v.w.manager.store.ReadDir(v.ctx, tree)
		if err != nil {
			return nil, err
		}
		for _, x := range dir.Entries {
			entries[x.Name] = x
		}
	}
	v.dirs[p] = entries
	return entries, nil
}

// set notes an entry that is going to be there, with its parents.
func (v *treeView) set(p string, x cas.Entry) {
	made := ""
	for name := range strings.SplitSeq(path.Dir(p), "/") {
		if name == "." {
			break
		}
		above := v.dirs[made]
		made = strings.TrimPrefix(made+"/"+name, "/")
		if _, ok := above[name]; !ok {
			above[name] = cas.Entry{Name: name, Type: cas.TypeDir}
			v.dirs[made] = map[string]cas.Entry{}
		}
	}
	above := strings.TrimPrefix(path.Dir(p), ".")
	v.dirs[above][path.Base(p)] = x
	if x.Type == cas.TypeDir {
		v.dirs[p] = map[string]cas.Entry{}
	}
}
