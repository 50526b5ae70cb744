package cas

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// statCaches keeps, for each cache key, the tree as the last snapshot saw it.
// A cache is an aid: when it is missing or damaged, files are read again. The
// copies on disk are written behind the snapshots' backs, and at Close.
type statCaches struct {
	store    *Store
	memories *chunkMemories
	stop     chan struct{}
	wg       sync.WaitGroup

	mu    sync.Mutex
	byKey map[string]*cachedTree
	nodes int64 // in all of them
	tick  uint64
	era   uint64 // counts dropAll: what was begun in an earlier one is not kept
}

type cachedTree struct {
	root  *dirNode
	dirty bool
	used  uint64 // tick of the last use
}

func newStatCaches(s *Store) *statCaches {
	c := &statCaches{store: s, memories: newChunkMemories(s), stop: make(chan struct{}), byKey: make(map[string]*cachedTree)}
	c.wg.Go(c.flushLoop)
	return c
}

func (c *statCaches) flushLoop() {
	t := time.NewTicker(c.store.cfg.StatCacheFlush)
	defer t.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-t.C:
			c.flush()
		}
	}
}

func (c *statCaches) close() {
	close(c.stop)
	c.wg.Wait()
	c.flush()
}

// load returns the tree kept for key, or nil. A tree whose root is not in the
// store is of no use: what it names may have been lost with the end of a pack.
// Nor is one that a collection took apart, while a file with the same bytes as
// the root keeps these.
func (c *statCaches) load(ctx context.Context, key string) *dirNode {
	c.mu.Lock()
	t, era := c.byKey[key], c.era
	if t != nil {
		c.tick++
		t.used = c.tick
	}
	c.mu.Unlock()
	if t == nil {
		root, err := readStatCache(c.path(key), c.store.format.uuid, key)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				c.store.log.Debug("stat cache ignored", "key", key, "error", err)
			}
			return nil
		}
		c.keep(key, root, false, era)
		t = &cachedTree{root: root}
	}
	if !c.store.usable(ctx, t.root.digest) {
		return nil
	}
	return t.root
}

// now returns the era for a later keep.
func (c *statCaches) now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.era
}

// keep puts root, which was begun in an era, in the place of key's tree. A
// dirty one is to be written. In a later era it would keep files from being
// read whose content could heal what is damaged.
func (c *statCaches) keep(key string, root *dirNode, dirty bool, era uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if era != c.era {
		return
	}
	if old := c.byKey[key]; old != nil {
		c.nodes -= old.root.totals.nodes
	}
	c.tick++
	c.byKey[key] = &cachedTree{root: root, dirty: dirty, used: c.tick}
	c.nodes += root.totals.nodes
	for c.nodes > c.store.cfg.StatCacheEntries && len(c.byKey) > 1 {
		c.evictOldest()
	}
}

// evictOldest forgets the tree used longest ago. One that is not on disk yet
// is lost; the next snapshot of it reads its files again.
func (c *statCaches) evictOldest() {
	var oldest string
	for key, t := range c.byKey {
		if oldest == "" || t.used < c.byKey[oldest].used {
			oldest = key
		}
	}
	c.nodes -= c.byKey[oldest].root.totals.nodes
	delete(c.byKey, oldest)
}

// flush writes the trees that changed.
func (c *statCaches) flush() {
	c.mu.Lock()
	era := c.era
	dirty := make(map[string]*dirNode)
	for key, t := range c.byKey {
		if t.dirty {
			dirty[key] = t.root
			t.dirty = false
		}
	}
	c.mu.Unlock()
	for key, root := range dirty {
		if err := writeStatCache(c.path(key), c.store.format.uuid, key, root); err != nil {
			c.store.log.Warn("stat cache not written", "key", key, "error", err)
		}
	}
	if len(dirty) > 0 && c.now() != era { // dropAll may have come before a file
		c.removeFiles()
	}
}

// drop forgets the tree of key, in memory and on disk.
func (c *statCaches) drop(key string) error {
	c.mu.Lock()
	if t := c.byKey[key]; t != nil {
		c.nodes -= t.root.totals.nodes
		delete(c.byKey, key)
	}
	c.mu.Unlock()
	if err := os.Remove(c.path(key)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// dropLost drops the trees whose root the store no longer has, and returns
// how many; and what is remembered of large files that are gone.
func (c *statCaches) dropLost() (n int) {
	c.mu.Lock()
	for key, t := range c.byKey {
		if !c.store.index.has(t.root.digest) {
			c.nodes -= t.root.totals.nodes
			delete(c.byKey, key)
		}
	}
	c.mu.Unlock()
	c.memories.dropLost()
	files, _ := filepath.Glob(filepath.Join(c.store.statCacheDir(), "*"))
	for _, path := range files {
		if root, err := statCacheRoot(path); err == nil && !c.store.index.has(root) && os.Remove(path) == nil {
			n++
		}
	}
	return n
}

// dropAll forgets every tree, in memory and on disk.
func (c *statCaches) dropAll() {
	c.mu.Lock()
	c.byKey, c.nodes = make(map[string]*cachedTree), 0
	c.era++
	c.mu.Unlock()
	c.removeFiles()
}

func (c *statCaches) removeFiles() {
	files, _ := filepath.Glob(filepath.Join(c.store.statCacheDir(), "*"))
	for _, path := range files {
		_ = os.Remove(path) // should one stay, its key's files are read again later
	}
}

// statCacheRoot reads which tree the file is about.
func statCacheRoot(path string) (Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return Digest{}, err
	}
	defer f.Close()
	b := make([]byte, 8192)
	n, _ := io.ReadFull(f, b)
	d := &decoder{b: b[:n]}
	d.magic('S', statCacheVersion, "stat cache")
	d.take(16, "uuid")
	d.str(1<<20, "key")
	d.statID()
	d.u8("racy")
	return d.digest("digest"), d.err
}

func (c *statCaches) path(key string) string {
	return filepath.Join(c.store.statCacheDir(), DigestOf([]byte(key)).Hex()[:32])
}

// writeStatCache replaces the file in one step but does not wait for the disk.
func writeStatCache(path string, uuid [16]byte, key string, root *dirNode) error {
	return replaceFile(path, encodeStatCache(uuid, key, root))
}

func readStatCache(path string, uuid [16]byte, key string) (*dirNode, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeStatCache(b, uuid, key)
}
