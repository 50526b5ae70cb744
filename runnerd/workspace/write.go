package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// What to do when the path of a write exists.
const (
	IfExistsError     = "error"
	IfExistsOverwrite = "overwrite"
	IfExistsAppend    = "append"
)

// Write asks for one file to be written.
type Write struct {
	// Path is workspace-relative; Write checks it.
	Path string
	// IfExists is one of the constants; "" is IfExistsError.
	IfExists string
	// Mode of a new file; 0: 0644. An overwritten file keeps its own.
	Mode uint32
	// Digest, when not zero, must be the SHA-256 of the staged content.
	Digest cas.Digest
}

// Staged is content that lies beside the workspace, ready to be put into it.
// Its owner must Close it; what was not installed is removed then.
type Staged struct {
	w     *Workspace
	file  *os.File
	name  string
	sum   hash.Hash
	Bytes int64
}

// Check validates the request's fields and gives the cleaned path.
func (w *Workspace) Check(req Write) (string, error) {
	p, err := CleanPath("path", req.Path)
	if err != nil {
		return "", err
	}
	if p == "" {
		return "", problem.Invalid("path", "name a file", "is empty")
	}
	switch req.IfExists {
	case "", IfExistsError, IfExistsOverwrite, IfExistsAppend:
	default:
		return "", problem.Invalid("ifExists", "use error, overwrite or append", "%q is not known", req.IfExists)
	}
	if req.Mode > 0o777 {
		return "", problem.Invalid("mode", "use permission bits up to 0777", "%#o has other bits", req.Mode)
	}
	// The kernel takes paths up to PATH_MAX, the host's part included.
	if most := unix.PathMax - len(w.Tree()) - 2; len(p) > most {
		return "", problem.Limit("path", fmt.Sprintf("%d bytes on this runner", most), "use a shorter path")
	}
	return p, w.manager.cfg.Floor.CheckWrite("path", p)
}

// Stage makes an empty staged file.
func (w *Workspace) Stage() (*Staged, error) {
	file, err := os.CreateTemp(w.dir+"/tmp", "write-*")
	if err != nil {
		return nil, fmt.Errorf("stage write: %w", err)
	}
	return &Staged{w: w, file: file, name: file.Name(), sum: sha256.New()}, nil
}

// Write adds content.
func (s *Staged) Write(p []byte) (int, error) {
	if most := s.w.manager.cfg.MaxFileBytes; s.Bytes+int64(len(p)) > most {
		return 0, problem.Limit("content", fmt.Sprintf("%d bytes a file (max_file_bytes)", most), "split the file")
	}
	n, err := s.file.Write(p)
	s.Bytes += int64(n)
	s.sum.Write(p[:n])
	if errors.Is(err, unix.ENOSPC) {
		err = problem.New(connect.CodeResourceExhausted, problem.LimitExceeded, "free space on the runner", "the runner's disk is full").Because(err)
	}
	return n, err
}

// Close removes what was not installed.
func (s *Staged) Close() error {
	err := s.file.Close()
	if rmErr := os.Remove(s.name); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		return errors.Join(err, rmErr)
	}
	return err
}

// Install puts the staged content at its path in one rename. The caller holds
// the lane. The path is walked by os.Root, so that no symlink leads outside,
// and the last component is never followed.
func (s *Staged) Install(ctx context.Context, req Write) error {
	p, err := s.w.Check(req)
	if err != nil {
		return err
	}
	got, err := cas.DigestFromBytes(s.sum.Sum(nil))
	if err != nil {
		return err
	}
	if !req.Digest.IsZero() && got != req.Digest {
		e := problem.New(connect.CodeInvalidArgument, problem.DigestMismatch, "send the file again", "content has %s, not %s", got, req.Digest)
		e.Field = "digest"
		return e
	}
	if err := s.w.room(ctx, p, s.Bytes, req.IfExists == IfExistsAppend); err != nil {
		return err
	}
	root, err := os.OpenRoot(s.w.Tree())
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	defer func() { _ = root.Close() }()
	parent, err := s.w.openParent(root, path.Dir(p))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	if err := s.w.checkResolved(root, parent, path.Base(p)); err != nil {
		return err
	}
	return s.into(ctx, parent, path.Base(p), req)
}

// checkResolved holds the floor against where the parent really is: a symlink
// to .git/hooks is no way around. The kernel names the opened directories, so
// that no race helps.
func (w *Workspace) checkResolved(root *os.Root, parent *os.File, name string) error {
	top, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	defer func() { _ = top.Close() }()
	base, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", top.Fd()))
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	dir, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", parent.Fd()))
	if err != nil {
		return fmt.Errorf("open workspace: %w", err)
	}
	below, ok := strings.CutPrefix(dir+"/", base+"/")
	if !ok { // moved away meanwhile
		return problem.New(connect.CodeAborted, problem.WorkspaceBusy, "try again", "the directory changed meanwhile").Retry()
	}
	return w.manager.cfg.Floor.CheckWrite("path", below+name)
}

// into renames the staged file to name in parent.
func (s *Staged) into(ctx context.Context, parent *os.File, name string, req Write) error {
	mode := fs.FileMode(req.Mode)
	if mode == 0 {
		mode = 0o644
	}
	dir, flags := int(parent.Fd()), uint(unix.RENAME_NOREPLACE)
	var old unix.Stat_t
	err := unix.Fstatat(dir, name, &old, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return pathError(err)
	default:
		flags = 0
		if err := s.replace(ctx, dir, name, &old, req.IfExists); err != nil {
			return err
		}
		mode = fs.FileMode(old.Mode & 0o777)
	}
	if err := s.finish(mode); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, s.name, dir, name, flags); err != nil {
		return pathError(fmt.Errorf("install %s: %w", name, err))
	}
	if err := parent.Sync(); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	return nil
}

// replace decides what an existing entry means.
func (s *Staged) replace(ctx context.Context, dir int, name string, old *unix.Stat_t, ifExists string) error {
	if old.Mode&unix.S_IFMT != unix.S_IFREG {
		e := problem.New(connect.CodeFailedPrecondition, problem.NotAFile, "write to another path, or to the link's target", "%s exists and is no regular file", Display(name))
		e.Field = "path"
		return e
	}
	switch ifExists {
	case IfExistsOverwrite:
		return nil
	case IfExistsAppend:
		return s.prepend(ctx, dir, name, old)
	}
	e := problem.New(connect.CodeAlreadyExists, problem.AlreadyExists, "set ifExists to overwrite or append", "%s exists", Display(name))
	e.Field = "path"
	return e
}

// prepend rebuilds the staged file as the old content followed by the new.
func (s *Staged) prepend(ctx context.Context, dir int, name string, old *unix.Stat_t) error {
	in, err := openSame(dir, name, old)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	whole, err := s.w.Stage()
	if err != nil {
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return errors.Join(err, whole.Close())
	}
	for _, part := range []*os.File{in, s.file} {
		if _, err := io.Copy(whole, contextReader{ctx, part}); err != nil {
			return errors.Join(err, whole.Close())
		}
	}
	err = s.Close()
	s.file, s.name = whole.file, whole.name
	return err
}

// openSame opens a regular file without following or waiting for anything, and
// only if it is still the one that was looked at.
func openSame(dir int, name string, want *unix.Stat_t) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError(err)
	}
	file := os.NewFile(uintptr(fd), name)
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil || now.Dev != want.Dev || now.Ino != want.Ino {
		_ = file.Close()
		return nil, problem.New(connect.CodeAborted, problem.WorkspaceBusy, "try again", "%s changed meanwhile", Display(name)).Retry()
	}
	return file, nil
}

// finish sets owner and mode and flushes the content.
func (s *Staged) finish(mode fs.FileMode) error {
	if s.w.UID >= 0 {
		if err := s.file.Chown(s.w.UID, s.w.GID); err != nil {
			return fmt.Errorf("stage write: %w", err)
		}
	}
	if err := s.file.Chmod(mode); err != nil {
		return fmt.Errorf("stage write: %w", err)
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("stage write: %w", err)
	}
	return nil
}

// openParent opens dir beneath root, creating what is missing. It asks the
// kernel for a directory: opening a FIFO in its place would wait for ever.
func (w *Workspace) openParent(root *os.Root, dir string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	parent, err := root.OpenFile(dir, flags, 0)
	if err == nil || !errors.Is(err, fs.ErrNotExist) || dir == "." {
		return parent, pathError(err)
	}
	above, err := w.openParent(root, path.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	at, name := int(above.Fd()), path.Base(dir)
	err = unix.Mkdirat(at, name, 0o755)
	if errors.Is(err, fs.ErrExist) { // a dangling symlink, or a race
		parent, err = root.OpenFile(dir, flags, 0)
		return parent, pathError(err)
	}
	if err != nil {
		return nil, pathError(err)
	}
	if w.UID >= 0 {
		if err := unix.Fchownat(at, name, w.UID, w.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, pathError(err)
		}
	}
	fd, err := unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError(err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

type contextReader struct {
	ctx context.Context
	in  io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.in.Read(p)
}
