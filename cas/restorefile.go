package cas

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// linkKey identifies a hard-linked file. What all names share is part of it,
// so that no forged group can make one file of two.
type linkKey struct {
	group  uint64
	digest Digest
	mode   uint32
	mtime  stamp
}

// linkSource is the first name made of a hard-linked file.
type linkSource struct {
	dir  *dirRef
	name string
}

// leaf makes a file or symlink in the directory fd, which is ref's.
func (r *restorer) leaf(ref *dirRef, fd int, x *Entry) error {
	if x.Type == TypeSymlink {
		return r.symlink(fd, x)
	}
	if x.LinkGroup == 0 {
		return r.file(fd, x)
	}
	key := linkKey{x.LinkGroup, x.Digest, x.Mode, stampOf(x.MTime)}
	if first, ok := r.links[key]; ok {
		done, err := r.link(first, fd, x.Name)
		if done || err != nil {
			return err
		}
	}
	r.links[key] = linkSource{ref, x.Name}
	return r.file(fd, x)
}

// link makes another name of a file. It reports false when the file has as
// many names as its file system allows: the next one starts a new file.
func (r *restorer) link(first linkSource, fd int, name string) (bool, error) {
	from, err := first.dir.acquire()
	if err != nil {
		return false, err
	}
	defer first.dir.release()
	err = unix.Linkat(from, first.name, fd, name, 0)
	if errors.Is(err, unix.EMLINK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("link: %w", err)
	}
	r.res.Links++
	return true, nil
}

func (r *restorer) symlink(fd int, x *Entry) error {
	if err := unix.Symlinkat(x.Target, fd, x.Name); err != nil {
		return fmt.Errorf("symlink: %w", err)
	}
	if r.opt.UID >= 0 || r.opt.GID >= 0 {
		if err := unix.Fchownat(fd, x.Name, r.opt.UID, r.opt.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("chown: %w", err)
		}
	}
	r.res.Symlinks++
	return setTimeAt(fd, x.Name, x)
}

func (r *restorer) file(dirfd int, x *Entry) error {
	content, err := r.store.OpenFile(r.ctx, *x)
	if err != nil {
		return err
	}
	defer content.Close()
	fd, err := unix.Openat(dirfd, x.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), x.Name)
	err = r.writeFile(f, content, x)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	r.res.Files++
	return nil
}

func (r *restorer) writeFile(f *os.File, content *File, x *Entry) error {
	if x.Sparse {
		if err := r.writeExtents(f, content, x); err != nil {
			return err
		}
	} else {
		n, err := content.WriteTo(f)
		r.res.Bytes += n
		if err != nil {
			return err
		}
	}
	if err := r.chown(int(f.Fd())); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), x.Mode); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return setTimeAt(int(f.Fd()), "", x)
}

func (r *restorer) writeExtents(f *os.File, content *File, x *Entry) error {
	if err := f.Truncate(x.Size); err != nil {
		return err
	}
	for _, ext := range x.Extents {
		n, err := io.Copy(io.NewOffsetWriter(f, ext.Offset), io.NewSectionReader(content, ext.Offset, ext.Length))
		r.res.Bytes += n
		if err != nil {
			return err
		}
		if n != ext.Length {
			return fmt.Errorf("extent at %d: %w", ext.Offset, io.ErrUnexpectedEOF)
		}
	}
	return nil
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
