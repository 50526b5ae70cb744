package diskquota

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A deep directory that is moved while the walk is in it hides nothing of what
// lies elsewhere: a command could move one to and fro.
func TestWalkGoesOnWhenTheWayUpIsLost(t *testing.T) {
	const depth, moved, beside = 3 * maxOpen, 20, 40
	dir := t.TempDir()
	files := int64(0)
	for i := range moved {
		at := dir + strings.Repeat("/deep", i)
		must(t, os.MkdirAll(at, 0o700))
		for j := range beside {
			write(t, fmt.Sprintf("%s/f%d", at, j), 1000)
			files++
		}
	}
	must(t, os.MkdirAll(dir+strings.Repeat("/deep", depth), 0o700))
	top := open(t, dir)
	var st unix.Stat_t
	must(t, unix.Fstat(int(top.Fd()), &st))
	fd, err := openDir(int(top.Fd()), ".")
	must(t, err)
	w := &walker{began: time.Now(), top: int(top.Fd()), dev: st.Dev, block: 4096, levels: []level{{fd: fd, ino: st.Ino}}}
	defer w.close()
	for len(w.levels) > 0 {
		if len(w.levels) == depth {
			must(t, os.Rename(dir+strings.Repeat("/deep", moved), dir+"/elsewhere"))
		}
		w.step()
		if len(w.levels) == depth+1 {
			break
		}
	}
	for len(w.levels) > 0 {
		w.step()
	}
	if w.count.Bytes < files*1000 || !w.count.Partial {
		t.Errorf("%+v of %d files of 1000 bytes", w.count, files)
	}
}
