package cas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxDepth is how deep directories may nest.
const maxDepth = 4096

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
	var res SnapshotResult
	era := s.caches.now()
	w, old, tree, err := s.walkTree(ctx, root, o, &res)
	if err != nil {
		return SnapshotResult{}, err
	}
	s.made(tree.digest) // so that it is there to be committed
	if o.CacheKey != "" && tree != old {
		s.caches.keep(o.CacheKey, tree, true, era)
	}
	res.Tree, res.TreeStats = tree.digest, tree.totals.TreeStats
	res.NewBytes, res.NewFiles = w.newBytes.Load(), w.newFiles.Load()
	w.recheck.report(&res)
	res.dropXattrs("", tree.attrs)
	res.report(nil, tree)
	return res, nil
}

// walkTree walks with the help of the stat cache, and once more without it
// when that turns out to be false. old is the tree that was of help, or nil.
func (s *Store) walkTree(ctx context.Context, root int, o SnapshotOptions, res *SnapshotResult) (w *walker, old, tree *dirNode, err error) {
	if o.CacheKey != "" {
		old = s.caches.load(ctx, o.CacheKey)
	}
	w = newWalker(ctx, s, root, o)
	tree, err = w.run(old)
	if !errors.Is(err, errCacheFalse) {
		return w, old, tree, err
	}
	w.recheck.report(res)
	s.log.Warn("stat cache was false; every file is read", "key", o.CacheKey, "path", res.CacheMismatch)
	if err := s.caches.drop(o.CacheKey); err != nil {
		return nil, nil, nil, err
	}
	w = newWalker(ctx, s, root, o)
	tree, err = w.run(nil)
	return w, nil, tree, err
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
