package cas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxDepth is how deep directories may nest.
const maxDepth = 4096

// maxReported bounds each list in a SnapshotResult; the totals count all.
const maxReported = 1000

// SnapshotOptions says how to walk.
type SnapshotOptions struct {
	// CacheKey names the stat cache that spares reading unchanged files,
	// such as the head that the snapshot is going to be committed to. Empty:
	// every file is read.
	CacheKey string
	// TrustCache keeps the snapshot from reading a few of the files that the
	// stat cache vouches for, chosen by chance, to make sure of it.
	TrustCache bool

	MaxFiles int64 // most entries of all kinds; 0: no limit
	MaxBytes int64 // most bytes of all files' sizes, holes included; 0: no limit
}

// Skipped is an entry of which only the name is kept.
type Skipped struct {
	Path   string // raw bytes, relative to the root
	Kind   SkipKind
	Reason SkipReason
}

// DroppedBits is an entry with set-id or sticky bits, which are not kept.
type DroppedBits struct {
	Path string
	Mode uint32 // with the bits, as stat(2) has it
}

// DroppedXattrs is an entry with extended attributes that are not kept.
type DroppedXattrs struct {
	Path   string // "" for the root
	Reason XattrLoss
}

// SnapshotResult says what a snapshot found. The lists hold at most 1000
// entries each; the totals count all.
type SnapshotResult struct {
	Tree      Digest
	TreeStats // its Skipped counts all; the field below lists them
	// NewBytes is the size of the objects that the store did not have,
	// before compression.
	NewBytes int64
	NewFiles int64 // files that were read, rather than known from the stat cache

	Skipped       []Skipped
	Unstable      []string // files that changed each time they were read
	UnstableTotal int64
	Dropped       []DroppedBits
	DroppedTotal  int64
	// DroppedXattrs lists what has access control lists, or attributes
	// "user.*" over a limit. Other attributes (security.*, trusted.*) are the
	// system's own and not counted.
	DroppedXattrs      []DroppedXattrs
	DroppedXattrsTotal int64
	// Rechecked counts the files that were read though the stat cache vouched
	// for them. CacheMismatches counts those of them that were not as it said;
	// then the cache was dropped, every file was read, and the result is of
	// that. CacheMismatch is the first one's path.
	Rechecked       int64
	CacheMismatches int64
	CacheMismatch   string

	Duration time.Duration
}

// Snapshot stores the tree below dir, an open directory, and returns its
// digest. The objects are not durable before Commit or Sync. It never leaves
// dir: not through links, not across mounts, not when names change under it.
// An entry that cannot be read is listed in the result and does not fail it.
func (s *Store) Snapshot(ctx context.Context, dir *os.File, o SnapshotOptions) (SnapshotResult, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return SnapshotResult{}, err
	}
	defer release()
	defer s.session()()
	start := time.Now()
	res, err := s.snapshot(ctx, dir, o)
	if err != nil {
		return SnapshotResult{}, fmt.Errorf("snapshot: %w", err)
	}
	res.Duration = time.Since(start)
	return res, nil
}

func (s *Store) snapshot(ctx context.Context, dir *os.File, o SnapshotOptions) (SnapshotResult, error) {
	conn, err := dir.SyscallConn()
	if err != nil {
		return SnapshotResult{}, err
	}
	root := -1
	ctlErr := conn.Control(func(fd uintptr) { // our own offset, and O_PATH will do for the caller
		root, err = unix.Openat(int(fd), ".", openDirFlags, 0)
	})
	if ctlErr != nil || err != nil {
		return SnapshotResult{}, fmt.Errorf("open directory: %w", firstError(ctlErr, err))
	}
	defer unix.Close(root)
	var old *dirNode
	if o.CacheKey != "" {
		old = s.caches.load(o.CacheKey)
	}
	var res SnapshotResult
	w := newWalker(ctx, s, root, o)
	tree, err := w.run(old)
	if errors.Is(err, errCacheFalse) {
		w.recheck.report(&res)
		s.log.Warn("stat cache was false; every file is read", "key", o.CacheKey, "path", res.CacheMismatch)
		if err := s.caches.drop(o.CacheKey); err != nil {
			return SnapshotResult{}, err
		}
		w, old = newWalker(ctx, s, root, o), nil
		tree, err = w.run(nil)
	}
	if err != nil {
		return SnapshotResult{}, err
	}
	s.hit(tree.digest, roleDir) // so that it is there to be committed
	if o.CacheKey != "" && tree != old {
		s.caches.keep(o.CacheKey, tree, true)
	}
	res.Tree, res.TreeStats = tree.digest, tree.totals.TreeStats
	res.NewBytes, res.NewFiles = w.newBytes.Load(), w.newFiles.Load()
	w.recheck.report(&res)
	res.dropXattrs("", tree.attrs)
	res.report(nil, tree)
	return res, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// report lists what is odd below d, whose path is above.
func (r *SnapshotResult) report(above []string, d *dirNode) {
	if d.totals.odd == 0 {
		return
	}
	for i := range d.entries {
		n := &d.entries[i]
		path := func() string { return strings.Join(append(above, n.name), "/") }
		if n.skip != 0 && len(r.Skipped) < maxReported {
			r.Skipped = append(r.Skipped, Skipped{path(), n.id.skipKind(), n.skip})
		}
		if n.unstable() {
			if r.UnstableTotal++; len(r.Unstable) < maxReported {
				r.Unstable = append(r.Unstable, path())
			}
		}
		if n.droppedBits() {
			if r.DroppedTotal++; len(r.Dropped) < maxReported {
				r.Dropped = append(r.Dropped, DroppedBits{path(), n.id.mode})
			}
		}
		if a := n.attributes(); a != nil {
			r.dropXattrs(path(), a)
		}
		if n.dir != nil {
			r.report(append(above, n.name), n.dir)
		}
	}
}

func (r *SnapshotResult) dropXattrs(path string, a *attrs) {
	if a.loss() == 0 {
		return
	}
	if r.DroppedXattrsTotal++; len(r.DroppedXattrs) < maxReported {
		r.DroppedXattrs = append(r.DroppedXattrs, DroppedXattrs{path, a.lost})
	}
}

// ForgetCache drops the stat cache of a key, in memory and on disk. The next
// snapshot with it reads every file.
func (s *Store) ForgetCache(ctx context.Context, key string) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.caches.drop(key); err != nil {
		return fmt.Errorf("forget stat cache of %q: %w", key, err)
	}
	return nil
}
