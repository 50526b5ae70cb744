package reapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"skerry.internal/cas"
)

// pinName keeps the cache's tree in the store.
const pinName = "reapi"

// catalog knows the cache's blobs. It lies in the store as a pinned tree: 256
// directories, each with a file for each blob, called by its digest, whose time
// is when it was last used. So what collections keep is what the catalog names,
// and nothing else can be asked for.
type catalog struct {
	store *cas.Store
	cfg   Config
	now   func() time.Time

	mu     sync.Mutex
	shards [256]shard
	bytes  int64
	count  int64
	// held keeps what was put since the last flush.
	held []*cas.Session

	flushing sync.Mutex
	pinned   cas.Digest
}

type shard struct {
	blobs map[cas.Digest]*blob
	dirty bool
	dir   cas.Digest // as stored last; zero when empty
}

type blob struct {
	size   int64
	chunks cas.Digest
	used   int64 // Unix seconds
}

// usedGrain is how exactly times of use are kept on disk: finer would rewrite
// the tree for every look at it.
const usedGrain = 3600

func newCatalog(store *cas.Store, cfg Config, now func() time.Time) *catalog {
	c := &catalog{store: store, cfg: cfg, now: now}
	for i := range c.shards {
		c.shards[i].blobs = map[cas.Digest]*blob{}
	}
	return c
}

func (c *catalog) shard(d cas.Digest) *shard {
	i, _ := strconv.ParseUint(d.Hex()[:2], 16, 8) // a digest is hexadecimal
	return &c.shards[i]
}

// get finds a blob of this digest and size, and counts as a use.
func (c *catalog) get(d cas.Digest, size int64) (cas.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shard(d)
	b := s.blobs[d]
	if b == nil || b.size != size {
		return cas.Entry{}, false
	}
	now := c.now().Unix()
	s.dirty = s.dirty || now/usedGrain != b.used/usedGrain
	b.used = now
	return entry(d, b), true
}

func entry(d cas.Digest, b *blob) cas.Entry {
	return cas.Entry{Name: d.Hex(), Type: cas.TypeFile, Mode: 0o444, MTime: time.Unix(b.used-b.used%usedGrain, 0), Size: b.size, Digest: d, Chunks: b.chunks}
}

// add enters blobs whose content was put, or found, under the session, which
// the catalog ends when the blobs are kept in another way.
func (c *catalog) add(session *cas.Session, all ...cas.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = append(c.held, session)
	for _, x := range all {
		s := c.shard(x.Digest)
		if old := s.blobs[x.Digest]; old != nil {
			c.bytes -= old.size
			c.count--
		}
		s.blobs[x.Digest] = &blob{size: x.Size, chunks: x.Chunks, used: c.now().Unix()}
		s.dirty = true
		c.bytes += x.Size
		c.count++
	}
	c.evict()
}

// forget takes out a blob that turned out not to be readable.
func (c *catalog) forget(d cas.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(c.shard(d), d)
}

func (c *catalog) drop(s *shard, d cas.Digest) {
	if b := s.blobs[d]; b != nil {
		delete(s.blobs, d)
		s.dirty = true
		c.bytes -= b.size
		c.count--
	}
}

// evict makes a tenth of the room free when the cache is full, so that it does
// not sort for every blob.
func (c *catalog) evict() {
	if c.bytes <= c.cfg.MaxBytes && c.count <= c.cfg.MaxBlobs {
		return
	}
	type candidate struct {
		used   int64
		digest cas.Digest
	}
	all := make([]candidate, 0, c.count)
	for i := range c.shards {
		for d, b := range c.shards[i].blobs {
			all = append(all, candidate{b.used, d})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if a.used != b.used {
			return int(min(max(a.used-b.used, -1), 1))
		}
		return a.digest.Compare(b.digest)
	})
	for _, x := range all {
		if c.bytes <= c.cfg.MaxBytes-c.cfg.MaxBytes/10 && c.count <= c.cfg.MaxBlobs-c.cfg.MaxBlobs/10 {
			return
		}
		c.drop(c.shard(x.digest), x.digest)
	}
}

// load reads what the last flush left. It is a cache: what is damaged is missing.
func (c *catalog) load(ctx context.Context, log *slog.Logger) error {
	tree, err := c.store.PinnedTree(ctx, pinName)
	if errors.Is(err, cas.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := c.store.ReadDir(ctx, tree)
	if unreadable(err) {
		log.Error("remote cache begins empty", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	c.pinned = tree
	for _, x := range root.Entries {
		i, err := strconv.ParseUint(x.Name, 16, 8)
		if err != nil || x.Type != cas.TypeDir {
			return fmt.Errorf("pin %q: entry %q: %w", pinName, x.Name, cas.ErrCorrupt)
		}
		s := &c.shards[i]
		dir, err := c.store.ReadDir(ctx, x.Digest)
		if unreadable(err) {
			log.Error("part of the remote cache is lost", "err", err)
			s.dirty = true
			continue
		}
		if err != nil {
			return err
		}
		s.dir = x.Digest
		for _, f := range dir.Entries {
			s.blobs[f.Digest] = &blob{size: f.Size, chunks: f.Chunks, used: f.MTime.Unix()}
			c.bytes += f.Size
			c.count++
		}
	}
	return nil
}

// unreadable says of an error that the object is not there or damaged.
func unreadable(err error) bool {
	return errors.Is(err, cas.ErrNotFound) || errors.Is(err, cas.ErrCorrupt)
}

// flush stores the tree durably and pins it. Then the pin keeps what sessions
// kept until now.
func (c *catalog) flush(ctx context.Context) error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	session, err := c.store.NewSession(ctx)
	if err != nil {
		return err
	}
	defer session.End() // the directories until they are pinned
	root := &cas.Directory{Root: true, Mode: 0o700, MTime: time.Unix(0, 0)}
	held := c.take()
	for i := range c.shards {
		dir, err := c.flushShard(ctx, i)
		if err != nil {
			c.undo(held)
			return err
		}
		if !dir.IsZero() {
			root.Entries = append(root.Entries, cas.Entry{Name: fmt.Sprintf("%02x", i), Type: cas.TypeDir, Mode: 0o700, MTime: time.Unix(0, 0), Digest: dir})
		}
	}
	if err := c.pin(ctx, root); err != nil {
		c.undo(held)
		return err
	}
	for _, s := range held {
		s.End()
	}
	return nil
}

func (c *catalog) take() []*cas.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held
	c.held = nil
	return held
}

// undo makes the next flush store everything anew: of the directories that this
// one stored or relied on, some may be collected by then, or be damaged.
func (c *catalog) undo(held []*cas.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = append(c.held, held...)
	for i := range c.shards {
		c.shards[i].dirty = true
	}
}

func (c *catalog) pin(ctx context.Context, root *cas.Directory) error {
	tree, err := c.store.PutDirectory(ctx, root)
	if err != nil || tree == c.pinned {
		return err
	}
	if err := c.store.Pin(ctx, pinName, tree); err != nil {
		return err
	}
	c.pinned = tree
	return nil
}

// flushShard stores a directory that changed. A blob that the store does not
// have after all, as damage may bring about, is forgotten.
func (c *catalog) flushShard(ctx context.Context, i int) (cas.Digest, error) {
	for {
		dir, dirty := c.snapshot(i)
		if !dirty {
			return c.shards[i].dir, nil
		}
		var d cas.Digest
		if len(dir.Entries) > 0 {
			var err error
			if d, err = c.store.PutDirectory(ctx, dir); errors.Is(err, cas.ErrNotFound) {
				c.forgetMissing(ctx, dir)
				continue
			} else if err != nil {
				return cas.Digest{}, err
			}
		}
		c.shards[i].dir = d // flush alone uses it
		return d, nil
	}
}

func (c *catalog) snapshot(i int) (*cas.Directory, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.shards[i]
	if !s.dirty {
		return nil, false
	}
	s.dirty = false
	dir := &cas.Directory{Entries: make([]cas.Entry, 0, len(s.blobs))}
	for d, b := range s.blobs {
		dir.Entries = append(dir.Entries, entry(d, b))
	}
	slices.SortFunc(dir.Entries, func(a, b cas.Entry) int { return a.Digest.Compare(b.Digest) })
	return dir, true
}

func (c *catalog) forgetMissing(ctx context.Context, dir *cas.Directory) {
	session, err := c.store.NewSession(ctx)
	if err != nil {
		return
	}
	defer session.End()
	for _, x := range dir.Entries {
		if !present(session, x) {
			c.forget(x.Digest)
		}
	}
}

// present reports whether the store has a readable record for the blob.
func present(session *cas.Session, x cas.Entry) bool {
	d, kind := x.Digest, cas.KindBlob
	if !x.Chunks.IsZero() {
		d, kind = x.Chunks, cas.KindChunkList
	}
	_, ok := session.Has(d, kind)
	return ok || x.Size == 0
}
