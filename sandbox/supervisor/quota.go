package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"skerry.internal/sandbox/diskquota"
)

// Quota bounds what the command may leave in a directory tree while it runs.
type Quota struct {
	// Dir is the host path of the tree.
	Dir string `json:"dir"`
	// Bytes and Entries are the limits; 0 means none.
	Bytes   int64 `json:"bytes,omitempty"`
	Entries int64 `json:"entries,omitempty"`
	// UsedBytes and UsedEntries are what is in it at the start.
	UsedBytes   int64 `json:"usedBytes,omitempty"`
	UsedEntries int64 `json:"usedEntries,omitempty"`
}

func (q *Quota) validate() error {
	if q != nil && !filepath.IsAbs(q.Dir) {
		return fmt.Errorf("%w: quota directory %q is not absolute", ErrSpec, q.Dir)
	}
	return nil
}

// quotaInterval is how often the shim looks at the file system.
const quotaInterval = time.Second

// quotaWatch is the shim's watch over the workspace. It lives with the shim, so
// that a command is held to its quota while the daemon is away.
type quotaWatch struct {
	top     *os.File
	watcher *diskquota.Watcher
	next    time.Time // of the next look; zero: none
	event   int       // eventfd: a walk is over
	// result of the walk; it belongs to the walking goroutine until the event.
	over   diskquota.Over
	passed bool
}

// openQuota gets the watch ready; nil where nothing is to be watched.
func openQuota(q *Quota) (*quotaWatch, error) {
	if q == nil || q.Bytes <= 0 && q.Entries <= 0 {
		return nil, nil
	}
	top, err := os.Open(q.Dir)
	if err != nil {
		return nil, fmt.Errorf("watch the workspace: %w", err)
	}
	w := &quotaWatch{top: top}
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("watch the workspace: %w", err)
	}
	w.watcher, err = diskquota.NewWatcher(top, diskquota.Limits{Bytes: q.Bytes, Entries: q.Entries},
		diskquota.Count{Bytes: q.UsedBytes, Entries: q.UsedEntries})
	return w, err
}

// look is called when the time has come; a walk that is due goes on beside the
// main loop. A file system that can't be looked at now is looked at later.
func (w *quotaWatch) look(now time.Time) {
	w.next = now.Add(quotaInterval)
	if due, err := w.watcher.Due(now); err != nil || !due {
		return
	}
	w.next = time.Time{} // until the walk is over
	go func() {
		// A thread of its own, behind the host's other work, ends with the walk.
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 10)
		over, passed, err := w.watcher.Walk()
		w.over, w.passed = over, passed && err == nil
		_, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
}

// checkQuota looks, or takes the result of a walk.
func (r *run) checkQuota(now time.Time, walked bool) {
	w := r.quota
	if walked {
		var b [8]byte
		_, _ = unix.Read(w.event, b[:]) // whatever comes of it: else the loop would spin
	}
	if w == nil || r.leader == 0 || r.out.cause != "" || r.out.end != nil {
		return
	}
	switch {
	case walked:
		w.next = now.Add(quotaInterval)
		if w.passed {
			r.out.limit = w.over.Limit
			r.stop(KindQuotaExceeded, w.over.Detail())
		}
	case !w.next.IsZero() && !now.Before(w.next):
		w.look(now)
	}
}

// quotaAt is when to look next; zero: not by the clock.
func (r *run) quotaAt() time.Time {
	if r.quota == nil || r.out.cause != "" || r.out.end != nil {
		return time.Time{}
	}
	return r.quota.next
}

// noteFullProject finds out, when a command failed by itself, whether the file
// system's own quota refused it space.
func (r *run) noteFullProject() {
	if r.quota == nil || r.out.end == nil || r.out.cause != "" || r.out.end.status.Exited() && r.out.end.status.ExitStatus() == 0 {
		return
	}
	if over, full := diskquota.Full(r.quota.top); full {
		r.out.full = &over
	}
}
