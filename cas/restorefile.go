package cas

import (
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leaf makes a file or symlink in d, open as fd, and counts it in made. The
// node is for the stat cache.
func (r *restorer) leaf(d *restoreDir, fd int, x *Entry, made *RestoreResult) (node, error) {
	if x.Type == TypeSymlink {
		id, err := r.symlink(fd, x, made)
		return nodeOf(x, id), err
	}
	id, whole, err := r.file(d, fd, x, made)
	n := nodeOf(x, id)
	n.racy = n.racy || !whole
	return n, err
}

func (r *restorer) symlink(fd int, x *Entry, made *RestoreResult) (id statID, err error) {
	if err := unix.Symlinkat(x.Target, fd, x.Name); err != nil {
		return id, fmt.Errorf("symlink: %w", err)
	}
	if r.opt.UID >= 0 || r.opt.GID >= 0 {
		if err := unix.Fchownat(fd, x.Name, r.opt.UID, r.opt.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return id, fmt.Errorf("chown: %w", err)
		}
	}
	if err := setTimeAt(fd, x.Name, x); err != nil {
		return id, err
	}
	made.Symlinks++
	if r.opt.CacheKey != "" {
		id, err = lstatAt(fd, x.Name)
	}
	return id, err
}

// file makes a file. It is not whole when it lacks extended attributes.
func (r *restorer) file(d *restoreDir, dirfd int, x *Entry, made *RestoreResult) (id statID, whole bool, err error) {
	mode := x.Mode
	if len(x.Xattrs) > 0 {
		mode |= 0o200 // its owner must be allowed to write to set them
	}
	fd, err := unix.Openat(dirfd, x.Name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return id, false, err
	}
	n, kept, err := r.cloneFile(fd, d, x)
	if n+kept == 0 && err == nil {
		n, err = r.writeFile(fd, x)
	}
	made.Bytes += n
	made.ClonedBytes += kept
	if err == nil {
		whole, err = r.setXattrs(fd, d, x)
	}
	if err == nil {
		id, err = r.setFile(fd, x)
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err == nil {
		made.Files++
	}
	return id, whole, err
}

// writeFile writes the content and returns how many bytes. A file kept as
// one object is written in one go.
func (r *restorer) writeFile(fd int, x *Entry) (int64, error) {
	if x.Size == 0 {
		return 0, nil
	}
	if x.Chunks.IsZero() && !x.Sparse {
		content, err := r.store.get(x.Digest)
		if err == nil && int64(len(content)) != x.Size {
			err = fmt.Errorf("object %s has %d bytes, the entry says %d: %w", x.Digest, len(content), x.Size, ErrCorrupt)
		}
		if err != nil {
			return 0, err
		}
		n, err := fdWriter(fd).Write(content)
		return int64(n), err
	}
	content, err := r.store.OpenFile(r.ctx, *x)
	if err != nil {
		return 0, err
	}
	defer content.Close()
	if x.Sparse {
		return writeExtents(fd, content, x)
	}
	return content.WriteTo(fdWriter(fd))
}

// setFile gives the file its owner, mode and time and returns its status. It
// was made with its mode, so that chmod is needed only where the umask or the
// change of owner took bits.
func (r *restorer) setFile(fd int, x *Entry) (statID, error) {
	if err := r.chown(fd); err != nil {
		return statID{}, err
	}
	if err := setTimeAt(fd, "", x); err != nil {
		return statID{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return statID{}, err
	}
	if st.Mode&0o7777 != x.Mode {
		if err := unix.Fchmod(fd, x.Mode); err != nil {
			return statID{}, fmt.Errorf("chmod: %w", err)
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return statID{}, err
		}
	}
	return statIDOf(&st), nil
}

// fdWriter writes to a descriptor.
type fdWriter int

// Write implements io.Writer.
func (w fdWriter) Write(p []byte) (int, error) {
	for n := 0; ; {
		// One write(2) takes at most 2 GiB.
		got, err := unix.Write(int(w), p[n:min(len(p), n+1<<30)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		if n += got; n == len(p) {
			return n, nil
		}
	}
}

// fdWriterAt writes from a place in a file on.
type fdWriterAt struct {
	fd  int
	off int64
}

// Write implements io.Writer.
func (w *fdWriterAt) Write(p []byte) (int, error) {
	for n := 0; ; {
		got, err := unix.Pwrite(w.fd, p[n:min(len(p), n+1<<30)], w.off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		w.off += int64(got)
		if n += got; n == len(p) {
			return n, nil
		}
	}
}

func writeExtents(fd int, content *File, x *Entry) (written int64, err error) {
	if err := unix.Ftruncate(fd, x.Size); err != nil {
		return 0, err
	}
	for _, ext := range x.Extents {
		n, err := io.Copy(&fdWriterAt{fd, ext.Offset}, io.NewSectionReader(content, ext.Offset, ext.Length))
		written += n
		if err != nil {
			return written, err
		}
		if n != ext.Length {
			return written, fmt.Errorf("extent at %d: %w", ext.Offset, io.ErrUnexpectedEOF)
		}
	}
	return written, nil
}

// setTimeAt sets the entry's mtime, and its atime likewise, on the file name
// in the directory fd, or on fd itself when name is "".
func setTimeAt(fd int, name string, x *Entry) error {
	ts := unix.Timespec{Sec: x.MTime.Unix(), Nsec: int64(x.MTime.Nanosecond())}
	both := [2]unix.Timespec{ts, ts}
	var path unsafe.Pointer
	flags := 0
	if name != "" {
		p, err := unix.BytePtrFromString(name)
		if err != nil {
			return err
		}
		path, flags = unsafe.Pointer(p), unix.AT_SYMLINK_NOFOLLOW
	}
	// The library's wrapper cannot pass the null path that means fd itself.
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), uintptr(path),
		uintptr(unsafe.Pointer(&both)), uintptr(flags), 0, 0)
	if errno != 0 {
		return fmt.Errorf("set time: %w", errno)
	}
	return nil
}
