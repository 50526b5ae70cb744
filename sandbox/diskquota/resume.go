package diskquota

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// resume gets at the deepest level again from the top, by inode numbers, when
// the way up from below leads elsewhere. Levels that are no longer where they
// were are given up. It gives nil, and ends the walk, if not even the top can be
// opened.
func (w *walker) resume() *level {
	fd, err := openDir(w.top, ".")
	if err != nil {
		w.levels = nil
		return nil
	}
	for i := 1; i < len(w.levels); i++ {
		next := w.find(fd, w.levels[i].ino)
		if next < 0 {
			w.levels = w.levels[:i]
			break
		}
		unix.Close(fd)
		fd = next
	}
	l := &w.levels[len(w.levels)-1]
	l.fd = fd
	w.forget()
	if _, err := unix.Seek(fd, l.pos, 0); err != nil {
		w.levels = w.levels[:len(w.levels)-1]
		unix.Close(fd)
		return nil
	}
	return l
}

// find opens the directory in dir with the inode number; -1 if there is none.
func (w *walker) find(dir int, ino uint64) int {
	w.owner[0] = 0
	for time.Since(w.began) < maxWalk {
		n, err := unix.Getdents(dir, w.bufs[0][:])
		if err != nil || n <= 0 {
			return -1
		}
		for b := w.bufs[0][:n]; len(b) > 0; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			name, is := b[19:size], binary.NativeEndian.Uint64(b)
			if b = b[size:]; is != ino {
				continue
			}
			if fd := w.openSame(dir, unix.ByteSliceToString(name), ino); fd >= 0 {
				return fd
			}
		}
	}
	return -1
}

// openSame opens a directory that has to be the one with the inode number.
func (w *walker) openSame(dir int, name string, ino uint64) int {
	fd, err := openDir(dir, name)
	if err != nil {
		return -1
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != ino || st.Dev != w.dev {
		unix.Close(fd)
		return -1
	}
	return fd
}
