package cas

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// recheckEvery: one in so many files that the stat cache vouches for is
	// read all the same, up to the limits below in one snapshot.
	recheckEvery = 256
	recheckFiles = 64
	recheckBytes = 8 << 20
)

// errCacheFalse ends a walk whose stat cache vouched for another content than
// the file has.
var errCacheFalse = errors.New("stat cache is false")

// recheck reads a few of the files that the stat cache vouches for, chosen by
// chance, so that a cache that is false for whatever reason (a clock set
// back, a file system that forgets a stamp, a bug) does not stay so for ever.
type recheck struct {
	chance float64 // that a file is chosen; 0: none is
	files  atomic.Int64
	bytes  atomic.Int64 // that may still be read
	done   atomic.Int64
	false  atomic.Int64
	first  atomic.Pointer[string] // path of the first that differed
}

func (r *recheck) start(old *dirNode, o SnapshotOptions, every int64) {
	if old == nil || o.TrustCache {
		return
	}
	r.chance = min(1/float64(every), recheckFiles/float64(max(1, old.totals.Files)))
	if every == 1 {
		r.chance = 1 // a test's
	}
	r.files.Store(recheckFiles)
	r.bytes.Store(recheckBytes)
}

// chosen reports whether a file is to be read.
func (r *recheck) chosen(n *node) bool {
	if r.chance == 0 || rand.Float64() >= r.chance || !n.id.isRegular() || n.id.size == 0 || n.skip != 0 {
		return false
	}
	return r.files.Add(-1) >= 0 && r.bytes.Add(-min(n.id.size, storeMaxChunk)) >= 0
}

// report adds what was found to a result.
func (r *recheck) report(res *SnapshotResult) {
	res.Rechecked += r.done.Load()
	res.CacheMismatches += r.false.Load()
	if path := r.first.Load(); path != nil {
		res.CacheMismatch = *path
	}
}

// recheckEntry compares an entry with its file, and ends the walk when it is
// not what the cache says although its status is.
func (w *walker) recheckEntry(d *dirWork, dirfd, i int) {
	n := &d.entries[i]
	fd, err := w.tree.openFileAt(dirfd, n.name)
	if err != nil {
		return // it changes just now; the next snapshot sees to it
	}
	defer unix.Close(fd)
	same, err := w.sameContent(n, fd)
	var after unix.Stat_t
	if err != nil || unix.Fstat(fd, &after) != nil || statIDOf(&after) != n.id {
		return
	}
	w.recheck.done.Add(1)
	if same {
		return
	}
	w.recheck.false.Add(1)
	path := d.path(n.name)
	w.recheck.first.CompareAndSwap(nil, &path)
	w.fail(errCacheFalse)
}

// sameContent compares the file with the digest that the cache has; of a file
// in chunks only one, chosen by chance.
func (w *walker) sameContent(n *node, fd int) (bool, error) {
	want, off, size := n.digest, int64(0), n.id.size
	if !n.chunks().IsZero() {
		list, err := w.store.readChunkList(n.chunks())
		if err != nil {
			return false, err
		}
		ref := list.chunks[rand.IntN(len(list.chunks))]
		want, off, size = ref.digest, ref.off, ref.size
	}
	if size > storeMaxChunk {
		return false, io.ErrShortBuffer // of no list that a snapshot made
	}
	buf := chunkBuffers.Get().(*chunkBuffer)
	defer chunkBuffers.Put(buf)
	if err := readFullAt(fd, buf[:size], off); err != nil {
		return false, err
	}
	return DigestOf(buf[:size]) == want, nil
}
