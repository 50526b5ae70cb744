package diskquota

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Count is what a tree holds.
type Count struct {
	// Bytes of files: what they take of the disk, holes apart, with an inode of
	// several names once; the last block of a file counts as far as it is used,
	// a directory as far as it takes more than a block.
	Bytes int64
	// Entries are files, directories and all else, the top apart.
	Entries int64
	// Partial: a part could not be read (no permission, changed meanwhile, too
	// deep), so that there may be more.
	Partial bool
}

// Bounds of one walk.
const (
	// maxOpen levels have an open directory; those above are opened again by
	// way of "..", and must then be the same.
	maxOpen  = 64
	maxDepth = 1 << 16
	bufBytes = 16 << 10
	// buffers is for how many of the deepest levels what was read is kept.
	buffers = 4
)

// level is one directory between the top and where the walk is.
type level struct {
	fd  int // -1: closed for now
	ino uint64
	pos int64 // of the next entry to look at
	// What was read of it but not looked at, while the buffer is this level's.
	from, to int
}

// walker reads a tree by descriptors alone: it follows no symlink, enters no
// other mount, and its memory does not grow with the tree but by some bytes for
// each level of depth. Those it leaves out are said by Count.Partial.
type walker struct {
	count  Count
	began  time.Time
	top    int // a descriptor of the caller's
	dev    uint64
	block  int64
	levels []level
	st     unix.Statx_t
	bufs   [buffers][bufBytes]byte
	owner  [buffers]int // level whose entries a buffer has, counted from 1
}

// maxWalk bounds the time of one walk: a tree may change faster than it is read.
const maxWalk = 10 * time.Minute

// Walk counts the tree at top, whose descriptor stays the caller's. It ends as
// soon as one of the limits is passed.
func Walk(top *os.File, limits Limits) (Count, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return Count{}, fmt.Errorf("count tree: %w", err)
	}
	fd, err := openDir(int(top.Fd()), ".")
	if err != nil {
		return Count{}, fmt.Errorf("count tree: %w", err)
	}
	block := max(int64(st.Blksize), 512) //nolint:unconvert // 32 bits on arm64
	w := &walker{began: time.Now(), top: int(top.Fd()), dev: st.Dev, block: block, levels: []level{{fd: fd, ino: st.Ino}}}
	w.count.Bytes = w.extra(st.Blocks)
	defer w.close()
	for len(w.levels) > 0 {
		if _, over := limits.passed(w.count); over || time.Since(w.began) > maxWalk {
			w.count.Partial = true
			break
		}
		w.step()
	}
	return w.count, nil
}

func (w *walker) close() {
	for _, l := range w.levels {
		if l.fd >= 0 {
			unix.Close(l.fd)
		}
	}
}

// openDir opens a directory that is beneath dir, on the same mount.
func openDir(dir int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return unix.Openat(dir, name, flags, 0) // the device is compared at any rate
	}
	return fd, err
}

// step reads from the deepest directory until it is at its end, or has a
// directory to enter.
func (w *walker) step() {
	l := &w.levels[len(w.levels)-1]
	if l.fd < 0 { // what was below has been moved: the rest must not hide behind that
		w.count.Partial = true
		if l = w.resume(); l == nil {
			return
		}
	}
	buf := w.buffer()
	if !w.kept() || l.from == l.to {
		n, err := unix.Getdents(l.fd, buf[:])
		if err != nil {
			w.count.Partial = true
		}
		if err != nil || n <= 0 {
			w.leave()
			return
		}
		w.owner[len(w.levels)%buffers] = len(w.levels)
		l.from, l.to = 0, n
	}
	for l.from < l.to {
		b := buf[l.from:l.to]
		size := int(binary.NativeEndian.Uint16(b[16:]))
		l.pos = int64(binary.NativeEndian.Uint64(b[8:]))
		l.from += size
		name := b[19:size] // ends with a NUL
		if name[0] == '.' && (name[1] == 0 || name[1] == '.' && name[2] == 0) {
			continue
		}
		if w.entry(l.fd, name) {
			return // into a directory
		}
	}
}

// buffer is that of the deepest level, which shares it with those a multiple of
// buffers above it.
func (w *walker) buffer() *[bufBytes]byte { return &w.bufs[len(w.levels)%buffers] }

// kept tells whether the deepest level's buffer has what it read last.
func (w *walker) kept() bool { return w.owner[len(w.levels)%buffers] == len(w.levels) }

// forget has what is left of the deepest level read again, from its pos.
func (w *walker) forget() { w.owner[len(w.levels)%buffers] = 0 }

// entry counts one entry and tells whether it is a directory that was entered.
func (w *walker) entry(dir int, name []byte) bool {
	if err := w.stat(dir, name); err != 0 {
		return false // gone
	}
	if unix.Mkdev(w.st.Dev_major, w.st.Dev_minor) != w.dev {
		return false
	}
	w.count.Entries++
	switch w.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		w.count.Bytes += taken(&w.st, w.block)
	case unix.S_IFDIR:
		w.count.Bytes += w.extra(int64(w.st.Blocks))
		return w.enter(dir, unix.ByteSliceToString(name), w.st.Ino)
	}
	return false
}

// stat is statx(2) without the two allocations for each name of x/sys.
func (w *walker) stat(dir int, name []byte) unix.Errno {
	const mask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_BLOCKS
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	_, _, err := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(&name[0])), flags, mask, uintptr(unsafe.Pointer(&w.st)), 0)
	return err
}

// taken is a file's share: an inode with n names brings each an nth, which needs
// no memory of the inodes seen, and all names of a workspace's file lie in it.
func taken(st *unix.Statx_t, block int64) int64 {
	n := int64(st.Blocks) * 512
	if over := n - int64(st.Size); over > 0 && over < block {
		n = int64(st.Size)
	}
	return n / max(int64(st.Nlink), 1)
}

// extra is what a directory takes beyond the block that each has, for many names
// that it has or, as some file systems never shrink it, had.
func (w *walker) extra(blocks int64) int64 { return max(blocks*512-w.block, 0) }

func (w *walker) enter(dir int, name string, ino uint64) bool {
	if len(w.levels) >= maxDepth {
		w.count.Partial = true
		return false
	}
	fd, err := openDir(dir, name)
	if err != nil {
		w.count.Partial = w.count.Partial || !errors.Is(err, unix.ENOENT)
		return false
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != w.dev || st.Ino != ino {
		unix.Close(fd)
		w.count.Partial = true
		return false
	}
	w.levels = append(w.levels, level{fd: fd, ino: ino})
	if up := len(w.levels) - 1 - maxOpen; up >= 0 && w.levels[up].fd >= 0 {
		unix.Close(w.levels[up].fd)
		w.levels[up].fd = -1
	}
	return true
}

// leave goes back to the directory above, to where it was.
func (w *walker) leave() {
	last := len(w.levels) - 1
	below := w.levels[last]
	w.levels = w.levels[:last]
	if last > 0 {
		w.reopen(&w.levels[last-1], below.fd)
	}
	if below.fd >= 0 {
		unix.Close(below.fd)
	}
}

// reopen gets at l again from the directory below it, which may have been moved
// elsewhere meanwhile: then l stays closed, until resume.
func (w *walker) reopen(l *level, below int) {
	if l.fd < 0 && below >= 0 {
		l.fd = w.openSame(below, "..", l.ino)
		w.forget()
	}
	if l.fd >= 0 && !w.kept() { // what was read and not looked at is read again
		if _, err := unix.Seek(l.fd, l.pos, 0); err != nil {
			unix.Close(l.fd)
			l.fd = -1
		}
	}
}
