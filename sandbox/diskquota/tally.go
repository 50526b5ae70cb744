package diskquota

import (
	"os"
	"sync"
	"time"
)

// Tally knows what a tree takes between the commands that run in it, so that
// what no snapshot shows counts as well: space reserved beyond a file's end,
// large directories, pipes and sockets, files that can't be read. Like a Watcher
// it walks only when the file system took what was left of a limit, and once in
// a while for growth that others' removals hide. The zero
// value knows nothing: all that is on the file system may be the tree's.
type Tally struct {
	mu    sync.Mutex
	count Count // of the last walk
	seen  usage
	grown usage // since the last walk
	ended time.Time
	cost  time.Duration // of the last walk
}

// Count gives what the directory top holds. Up to a limit that may be more than
// is there, by what others took meanwhile; above a limit it is exact. Nobody
// should write in the tree during the call.
func (t *Tally) Count(top *os.File, limits Limits) (Count, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is, err := statfs(top)
	if err != nil {
		return Count{}, err
	}
	t.grown.bytes += max(is.bytes-t.seen.bytes, 0)
	t.grown.inodes += max(is.inodes-t.seen.inodes, 0)
	t.seen = is
	_, over := limits.passed(t.count) // something may be gone since
	hidden := !t.ended.IsZero() && time.Since(t.ended) >= max(laterAfter*t.cost, leastPeriod)
	if over || hidden || reached(limits.Bytes, t.count.Bytes, t.grown.bytes) || reached(limits.Entries, t.count.Entries, t.grown.inodes) {
		began := time.Now()
		count, err := Walk(top, Limits{})
		if err != nil {
			return Count{}, err
		}
		t.count, t.grown, t.ended = count, usage{}, time.Now()
		t.cost = t.ended.Sub(began)
	}
	return Count{Bytes: t.count.Bytes + t.grown.bytes, Entries: t.count.Entries + t.grown.inodes, Partial: t.count.Partial}, nil
}

// Passed gives the first limit that c passes.
func (l Limits) Passed(c Count) (Over, bool) { return l.passed(c) }
