package diskquota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/fs.h, linux/quota.h and linux/dqblk_xfs.h.
const (
	fsGetXattr      = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr      = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit  = 0x200      // FS_XFLAG_PROJINHERIT
	projectQuota    = 2          // PRJQUOTA
	getQuota        = 0x800007<<8 | projectQuota
	setQuota        = 0x800008<<8 | projectQuota
	getState        = ('X'<<8|8)<<8 | projectQuota // Q_XGETQSTATV
	projectEnforced = 1 << 5                       // FS_QUOTA_PDQ_ENFD
	limitsValid     = 1 | 4                        // QIF_BLIMITS | QIF_ILIMITS
)

// ErrNoProjectQuota says that a file system does not enforce project quotas.
var ErrNoProjectQuota = errors.New("the file system does not enforce project quotas")

type fsxattr struct {
	flags, extentSize, extents, project, cowSize uint32
	_                                            [8]byte
}

type dqblk struct {
	blockHard, blockSoft, space  uint64 // limits in KiB, space in bytes
	inodeHard, inodeSoft, inodes uint64
	blockTime, inodeTime         uint64
	valid                        uint32
	_                            uint32
}

// Enforced fails with ErrNoProjectQuota, and why, unless the file system of the
// directory enforces project quotas and this process may set them.
func Enforced(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("project quota: %w", err)
	}
	defer f.Close()
	state := [32]uint64{1} // FS_QSTATV_VERSION1
	if err := quotactl(f, getState, 0, unsafe.Pointer(&state)); err != nil {
		return fmt.Errorf("%w (it is not mounted with prjquota, or the kernel is older than 5.14: %w)", ErrNoProjectQuota, err)
	}
	if (*[4]uint16)(unsafe.Pointer(&state))[1]&projectEnforced == 0 {
		return fmt.Errorf("%w (it is not mounted with prjquota)", ErrNoProjectQuota)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w for this process (it is not root)", ErrNoProjectQuota)
	}
	return nil
}

// quotactl is quotactl_fd(2), since Linux 5.14.
func quotactl(f *os.File, cmd, id uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(cmd), uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

// SetProject makes all in dir, and what will be made in it, part of the project
// and limits that. Nobody else may write in it meanwhile. The directory itself
// comes last, so that a crash leaves it to be done again.
func SetProject(dir string, project uint32, limits Limits) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("project quota: %w", err)
	}
	defer f.Close()
	d := dqblk{blockHard: uint64(limits.Bytes+1023) >> 10, inodeHard: uint64(limits.Entries), valid: limitsValid}
	if err := quotactl(f, setQuota, project, unsafe.Pointer(&d)); err != nil {
		return fmt.Errorf("project quota: %w", err)
	}
	if now, err := projectOf(f); err != nil || now == project {
		return err
	}
	if err := assignBelow(dir, project); err != nil {
		return fmt.Errorf("project quota: %w", err)
	}
	return assign(f, project, true)
}

// assignBelow goes through a tree in which symlinks are never followed.
func assignBelow(dir string, project uint32) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == "." || !d.IsDir() && !d.Type().IsRegular() {
			return nil // the rest can't be assigned; it takes no space of its own
		}
		f, err := root.OpenFile(filepath.FromSlash(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return assign(f, project, d.IsDir())
	})
}

func assign(f *os.File, project uint32, inherit bool) error {
	var x fsxattr
	if err := ioctl(f, fsGetXattr, &x); err != nil {
		return err
	}
	x.project = project
	if inherit {
		x.flags |= projectInherit
	}
	return ioctl(f, fsSetXattr, &x)
}

func projectOf(f *os.File) (uint32, error) {
	var x fsxattr
	err := ioctl(f, fsGetXattr, &x)
	return x.project, err
}

func ioctl(f *os.File, request uintptr, x *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(x)))
	if errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

// fullBelow is how near to its limit a project counts as full: a write fails
// that does not fit as a whole.
const fullBelow = 64 << 10

// Full tells which limit of the project of the directory top is used up. Without
// a project, or the right to ask, none is.
func Full(top *os.File) (Over, bool) {
	project, err := projectOf(top)
	if err != nil || project == 0 {
		return Over{}, false
	}
	var d dqblk
	if err := quotactl(top, getQuota, project, unsafe.Pointer(&d)); err != nil {
		return Over{}, false
	}
	most := d.blockHard << 10
	switch {
	case most > 0 && d.space+fullBelow >= most:
		return Over{"workspace_bytes", int64(d.space), int64(most)}, true
	case d.inodeHard > 0 && d.inodes >= d.inodeHard:
		return Over{"workspace_entries", int64(d.inodes), int64(d.inodeHard)}, true
	}
	return Over{}, false
}
