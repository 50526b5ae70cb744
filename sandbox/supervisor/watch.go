package supervisor

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watch waits for changes in directories by inotify. Events are wake-ups only:
// the waiter looks at the files themselves.
type watch struct {
	f *os.File
}

type watchOn struct {
	dir  string
	mask uint32
}

func newWatch(on ...watchOn) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch: %w (the limit is fs.inotify.max_user_instances)", err)
	}
	w := &watch{f: os.NewFile(uintptr(fd), "inotify")}
	for _, o := range on {
		if _, err := unix.InotifyAddWatch(fd, o.dir, o.mask); err != nil {
			w.close()
			return nil, fmt.Errorf("watch %s: %w (the limit is fs.inotify.max_user_watches)", o.dir, err)
		}
	}
	return w, nil
}

// wait returns after at least one event since the last call, or with ctx's
// error.
func (w *watch) wait(ctx context.Context) error {
	// Closing is the wake-up: the watch is of no use after its context.
	stop := context.AfterFunc(ctx, func() { w.f.Close() })
	defer stop()
	buf := make([]byte, 4096)
	_, err := w.f.Read(buf)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

func (w *watch) close() { w.f.Close() }
