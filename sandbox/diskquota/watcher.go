package diskquota

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a tree; 0 means none.
type Limits struct {
	Bytes   int64
	Entries int64
}

// Over says which limit a tree passes, as the configuration names it.
type Over struct {
	Limit      string
	Have, Most int64
}

// passed gives the first limit that c passes.
func (l Limits) passed(c Count) (Over, bool) {
	switch {
	case l.Bytes > 0 && c.Bytes > l.Bytes:
		return Over{"workspace_bytes", c.Bytes, l.Bytes}, true
	case l.Entries > 0 && c.Entries > l.Entries:
		return Over{"workspace_entries", c.Entries, l.Entries}, true
	}
	return Over{}, false
}

// Detail words it for the agent.
func (o Over) Detail() string {
	return fmt.Sprintf("the workspace grew to %d or more, over its quota of %d (%s)", o.Have, o.Most, o.Limit)
}

// How often a walk may be made, in multiples of what the last one took.
const (
	soonAfter   = 10  // when the file system grew by what was left
	laterAfter  = 200 // otherwise, for growth that others' removals hide
	leastPeriod = time.Minute
)

// Watcher tells when a tree has passed its limits. Each look is one statfs; a
// walk is due only when the whole file system took as much, since the last one,
// as was left of a limit: while a tree is far from its limits it is not read at
// all. The owner calls Due and Walk in turn, never at once.
type Watcher struct {
	top    *os.File
	limits Limits
	holder int // whose files without a name count, with its descendants'; 0: nobody's

	count Count // of the last walk
	seen  usage // of the file system at the last look
	grown usage // since the last walk: all that was taken, whatever was freed
	ended time.Time
	cost  time.Duration // of the last walk
}

// usage of a file system. One that does not count inodes has always 0.
type usage struct{ bytes, inodes int64 }

// NewWatcher watches the directory top, which stays the caller's. Start is what
// is in the tree now. A tree that is over a limit already may not grow.
func NewWatcher(top *os.File, limits Limits, start Count) (*Watcher, error) {
	w := &Watcher{top: top, limits: limits, count: start, ended: time.Now()}
	if limits.Bytes > 0 {
		w.limits.Bytes = max(limits.Bytes, start.Bytes)
	}
	if limits.Entries > 0 {
		w.limits.Entries = max(limits.Entries, start.Entries)
	}
	var err error
	w.seen, err = statfs(top)
	return w, err
}

// HeldBy makes what the process and its descendants hold open of files without a
// name count, too.
func (w *Watcher) HeldBy(pid int) { w.holder = pid }

func statfs(top *os.File) (usage, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(top.Fd()), &st); err != nil {
		return usage{}, fmt.Errorf("look at the file system: %w", err)
	}
	return usage{int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Files - st.Ffree)}, nil
}

// Due looks at the file system and tells whether to walk now.
func (w *Watcher) Due(now time.Time) (bool, error) {
	is, err := statfs(w.top)
	if err != nil {
		return false, err
	}
	w.grown.bytes += max(is.bytes-w.seen.bytes, 0)
	w.grown.inodes += max(is.inodes-w.seen.inodes, 0)
	w.seen = is
	waited := now.Sub(w.ended)
	switch {
	case w.grown == (usage{}):
		return false, nil
	case reached(w.limits.Bytes, w.count.Bytes, w.grown.bytes) || reached(w.limits.Entries, w.count.Entries, w.grown.inodes):
		return waited >= soonAfter*w.cost, nil
	}
	return waited >= max(laterAfter*w.cost, leastPeriod), nil
}

// reached: something grew, and what is left may be gone.
func reached(limit, count, grown int64) bool {
	return limit > 0 && grown > 0 && grown >= limit-count
}

// Walk counts the tree and tells whether it is over a limit. A file that is
// moved meanwhile may be counted twice: what is over is counted once more.
func (w *Watcher) Walk() (over Over, passed bool, err error) {
	began := time.Now()
	before, err := statfs(w.top)
	if err != nil {
		return over, false, err
	}
	for range 2 {
		if w.count, err = w.once(); err != nil {
			return over, false, err
		}
		if over, passed = w.limits.passed(w.count); !passed {
			break
		}
	}
	w.seen, w.grown = before, usage{}
	w.ended = time.Now()
	w.cost = w.ended.Sub(began)
	return over, passed, nil
}

func (w *Watcher) once() (Count, error) {
	c, err := Walk(w.top, w.limits)
	if _, over := w.limits.passed(c); err != nil || over || w.holder == 0 || w.limits.Bytes <= 0 {
		return c, err
	}
	held, err := heldUnlinked(w.top, w.holder, w.limits.Bytes-c.Bytes)
	c.Bytes += held
	return c, err
}
