package cas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config holds what has a default.
type Config struct {
	Logger *slog.Logger // nil: nothing is logged
	// MaxPackBytes is the size at which a pack is sealed; default 128 MiB.
	MaxPackBytes int64
	// Workers bounds how many goroutines one snapshot uses; default
	// GOMAXPROCS, at most 16.
	Workers int
	// StatCacheEntries bounds the entries of all stat caches in memory
	// together; default 2 million (about 200 bytes each).
	StatCacheEntries int64
	// StatCacheFlush is how long a changed stat cache may wait until it is
	// written to disk; default 30 s.
	StatCacheFlush time.Duration
	// RecoverMeta lets Open rebuild a lost or damaged meta.db from the commits
	// in the packs and from what is readable in the damaged one, which is kept
	// as meta.db.damaged. Deleted heads come back; fences above the last
	// commit, pins and leases are lost where they cannot be read.
	RecoverMeta bool

	faults      faults
	mergeByHand bool // index runs are merged by mergeIndex only, for tests
	// From this size on files are remembered, with a state of the hash each
	// so many bytes.
	rememberFrom, stateEvery int64
	// One in so many files that the stat cache vouches for is read.
	recheckEvery int64
	// Bytes of extended attributes in one tree.
	treeXattrBytes int64
	// How a restore shares a file's blocks with another.
	clone func(to, from int) error
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxPackBytes <= 0 {
		c.MaxPackBytes = 128 << 20
	}
	if c.Workers <= 0 {
		c.Workers = min(runtime.GOMAXPROCS(0), 16)
	}
	if c.StatCacheEntries <= 0 {
		c.StatCacheEntries = 2_000_000
	}
	if c.StatCacheFlush <= 0 {
		c.StatCacheFlush = 30 * time.Second
	}
	if c.rememberFrom <= 0 {
		c.rememberFrom, c.stateEvery = rememberFrom, stateEvery
	}
	if c.recheckEvery <= 0 {
		c.recheckEvery = recheckEvery
	}
	if c.treeXattrBytes <= 0 {
		c.treeXattrBytes = maxTreeXattrBytes
	}
	if c.clone == nil {
		c.clone = fileClone
	}
	return c
}

// Store is an open store. One process at a time has a directory open; within
// it all methods may be called from several goroutines.
type Store struct {
	dir    string
	cfg    Config
	log    *slog.Logger
	lock   *os.File
	format storeFormat

	index   *objectIndex
	touches *touches
	damaged damagedObjects
	doubt   doubt
	maint   sync.RWMutex // held for writing by what removes packs or index runs
	merging sync.Mutex   // held by what merges index runs; maint comes first
	merger  *indexMerger
	writer  *packWriter
	reader  *packReader
	meta    *metaDB
	caches  *statCaches
	riding  atomic.Int64 // commits in meta.db's pending bucket, about

	mu     sync.Mutex
	idle   sync.Cond // signalled when users drops to 0
	users  int
	closed bool
}

func (s *Store) packDir() string      { return filepath.Join(s.dir, "packs") }
func (s *Store) indexDir() string     { return filepath.Join(s.dir, "index") }
func (s *Store) statCacheDir() string { return filepath.Join(s.dir, "statcache") }

// Open opens the store in dir, making it if dir is empty or missing. What a
// crash left half-written at the end of the last pack is cut off; damage
// before that is logged, left for Verify to name, and does not keep the store
// from opening.
func Open(ctx context.Context, dir string, cfg Config) (_ *Store, err error) {
	s := &Store{dir: dir, cfg: cfg.withDefaults(), index: newObjectIndex(), touches: newTouches()}
	s.damaged.all = make(map[Digest]loc)
	s.log = s.cfg.Logger
	s.idle.L = &s.mu
	defer func() {
		if err != nil {
			err = fmt.Errorf("open store %s: %w", dir, errors.Join(err, s.release()))
		}
	}()
	for _, d := range []string{dir, s.packDir(), s.indexDir(), s.statCacheDir(), s.trashDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if s.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	if s.format, err = openFormat(dir, s.packDir()); err != nil {
		return nil, err
	}
	if err := s.openPacks(ctx); err != nil {
		return nil, err
	}
	s.caches = newStatCaches(s)
	if err := s.tellLost(); err != nil {
		return nil, err
	}
	s.merger = newIndexMerger(s)
	s.keepReserve()
	return s, nil
}

// openPacks opens meta.db and the packs, in the order that recovery needs.
func (s *Store) openPacks(ctx context.Context) error {
	seqs, err := listPacks(s.packDir())
	if err != nil {
		return err
	}
	remains, err := s.openMeta(len(seqs) > 0)
	if err != nil {
		return err
	}
	if err := s.loadRuns(); err != nil {
		return err
	}
	if err := s.endSweep(); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// What is dead is out of the index; a collection frees space and tries again.
		s.log.Warn("a collection cannot be ended for want of space", "error", err)
	} else if err != nil { // that a crash interrupted
		return err
	}
	if seqs, err = listPacks(s.packDir()); err != nil {
		return err
	}
	s.writer = newPackWriter(s.packDir(), s.format.uuid, s.cfg.MaxPackBytes, s.index)
	s.writer.sealed, s.writer.hit, s.writer.faults = s.sealed, s.hit, s.cfg.faults
	s.reader = newPackReader(s.packDir(), s.writer)
	if err := s.recoverPacks(ctx, seqs, remains != nil); err != nil {
		return err
	}
	if err := errors.Join(s.loadDamage(), s.loadDoubt()); err != nil {
		return err
	}
	if remains != nil {
		if err := s.recoverMeta(ctx, remains); err != nil {
			return fmt.Errorf("recover meta.db: %w", err)
		}
	}
	return s.replayPending()
}

// sealed writes the index run of a pack that is full, has meta.db know that it
// is complete, and keeps its file for reading. It runs under the writer's lock.
func (s *Store) sealed(f *os.File, seq uint64) error {
	if err := s.cfg.faults.at("write index run"); err != nil {
		return err
	}
	run, err := writeIndexRun(s.indexDir(), seq, seq, s.index.openEntries(), s.cfg.faults)
	if err != nil {
		return err
	}
	if err = s.cfg.faults.at("index run written"); err == nil {
		err = s.meta.update(func(tx *metaTx) error { return markSealed(tx, seq) })
	}
	if err != nil {
		return errors.Join(err, run.close())
	}
	s.index.seal(run)
	s.reader.keep(seq, f)
	if s.merger != nil {
		s.merger.poke()
	}
	return nil
}

// replayPending puts commits back whose pack was lost before it was synced.
func (s *Store) replayPending() error {
	contents, err := s.meta.pendingCommits()
	if err != nil {
		return err
	}
	s.riding.Store(int64(len(contents)))
	for _, content := range contents {
		if _, err := s.putRecord(KindCommit, DigestOf(content), content, true); err != nil {
			return fmt.Errorf("replay commit: %w", err)
		}
	}
	return nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// enter counts the caller in until release, so that Close waits for it.
func (s *Store) enter(ctx context.Context) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if err := s.index.failed(); err != nil {
		return nil, err
	}
	s.users++
	return s.leave, nil
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idle.Broadcast()
	}
}

// Close waits for calls in progress, makes what was appended durable, writes
// the stat caches and lets go of the directory. Later calls are ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for s.users > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	return s.release()
}

// release undoes as much of Open as was done.
func (s *Store) release() error {
	var errs []error
	if s.merger != nil {
		s.merger.close()
	}
	if s.caches != nil {
		s.caches.close()
	}
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	if s.reader != nil {
		errs = append(errs, s.reader.close())
	}
	errs = append(errs, s.index.close())
	if s.meta != nil {
		errs = append(errs, s.meta.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Sync makes everything that was put so far durable.
func (s *Store) Sync(ctx context.Context) error {
	release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	if pos, clean := s.writer.clean(); clean && s.riding.Load() == 0 {
		if end, err := s.meta.durableEnd(pos.seq); err != nil || end >= pos.off {
			return err
		}
	}
	pos, err := s.writer.sync()
	if err != nil {
		return fmt.Errorf("sync store: %w", err)
	}
	return s.meta.update(func(tx *metaTx) error { return s.settle(tx, pos) })
}

// Stats says how large the store is.
type Stats struct {
	UUID      string
	Packs     int
	Objects   int64 // records; an object in two packs counts twice
	PackBytes int64 // on disk
	Heads     int
}

// Stats looks at the index and the sizes of the packs.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	release, err := s.enter(ctx)
	if err != nil {
		return Stats{}, err
	}
	defer release()
	st := Stats{UUID: s.format.UUID, Objects: int64(s.index.count())}
	seqs, err := listPacks(s.packDir())
	if err != nil {
		return st, err
	}
	for _, seq := range seqs {
		info, err := os.Stat(filepath.Join(s.packDir(), packName(seq)))
		if errors.Is(err, os.ErrNotExist) {
			continue // collected just now
		}
		if err != nil {
			return st, err
		}
		st.Packs++
		st.PackBytes += info.Size()
	}
	heads, err := s.heads()
	st.Heads = len(heads)
	return st, err
}
