package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watch waits for changes in directories by inotify. Events are wake-ups only:
// the waiter looks at the files themselves. Where the kernel gives no inotify
// instance, of which a user has only 128 by default, it looks now and then: any
// number of followers is served, the late ones a little later.
type watch struct {
	f *os.File // nil: no instance was to be had
}

// blindInterval is how often a watch without inotify lets its waiter look.
const blindInterval = 100 * time.Millisecond

type watchOn struct {
	dir  string
	mask uint32
}

func newWatch(on ...watchOn) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if exhausted(err) {
		return &watch{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	w := &watch{f: os.NewFile(uintptr(fd), "inotify")}
	for _, o := range on {
		_, err := unix.InotifyAddWatch(fd, o.dir, o.mask)
		if err == nil {
			continue
		}
		w.close()
		if exhausted(err) {
			return &watch{}, nil
		}
		return nil, fmt.Errorf("watch %s: %w", o.dir, err)
	}
	return w, nil
}

// exhausted says that instances, descriptors or watches (ENOSPC) are used up.
func exhausted(err error) bool { return scarce(err) || errors.Is(err, unix.ENOSPC) }

// scarce says that the daemon or the host is out of descriptors or memory.
func scarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// wait returns after at least one event since the last call, or with ctx's
// error.
func (w *watch) wait(ctx context.Context) error {
	if w.f == nil {
		return waitBlind(ctx)
	}
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

func waitBlind(ctx context.Context) error {
	timer := time.NewTimer(blindInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *watch) close() {
	if w.f != nil {
		w.f.Close()
	}
}
