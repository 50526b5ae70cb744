package diskquota

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// unlinked counts the space of files without a name that processes hold open or
// mapped: no walk of a tree sees them. Its memory is bounded whatever they do.
// Not seen are files on their way through a socket and, without root, files that
// are only mapped.
type unlinked struct {
	dev   uint64
	bytes int64
	most  int64 // enough is known beyond it
	until time.Time
	// seen has a bit for each inode's hash: two that share one count once.
	seen [1 << 16]byte
}

// batch is how many names are read at once.
const batch = 256

// count adds what root and all its descendants hold.
func (u *unlinked) count(root int) {
	for pending := []int{root}; len(pending) > 0 && !u.enough(); {
		process := "/proc/" + strconv.Itoa(pending[len(pending)-1])
		pending = pending[:len(pending)-1]
		u.links(process + "/map_files")
		u.each(process+"/task", func(_ *os.File, tid string) {
			thread := process + "/task/" + tid // which may have descriptors of its own
			u.links(thread + "/fd")
			children, _ := os.ReadFile(thread + "/children")
			for field := range bytes.FieldsSeq(children) {
				if pid, err := strconv.Atoi(string(field)); err == nil {
					pending = append(pending, pid)
				}
			}
		})
	}
}

func (u *unlinked) enough() bool { return u.bytes > u.most || time.Now().After(u.until) }

// each calls do for the names in a directory that may be gone.
func (u *unlinked) each(dir string, do func(f *os.File, name string)) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	for !u.enough() {
		names, err := f.Readdirnames(batch)
		for _, name := range names {
			do(f, name)
		}
		if err != nil {
			return
		}
	}
}

// links looks at the files behind links of /proc, which lead to them by no path.
func (u *unlinked) links(dir string) {
	u.each(dir, func(f *os.File, name string) {
		var st unix.Stat_t
		if unix.Fstatat(int(f.Fd()), name, &st, 0) != nil || st.Nlink != 0 || st.Dev != u.dev || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return
		}
		hash := st.Ino * 0x9e3779b97f4a7c15 >> (64 - 19)
		if u.seen[hash/8]&(1<<(hash%8)) == 0 {
			u.seen[hash/8] |= 1 << (hash % 8)
			u.bytes += st.Blocks * 512
		}
	})
}

// heldUnlinked gives the bytes on the file system of top, up to something over
// most, that process root and its descendants hold without a name.
func heldUnlinked(top *os.File, root int, most int64) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return 0, fmt.Errorf("count files without a name: %w", err)
	}
	u := &unlinked{dev: st.Dev, most: most, until: time.Now().Add(maxWalk)}
	u.count(root)
	return u.bytes, nil
}
