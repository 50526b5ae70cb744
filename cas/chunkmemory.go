package cas

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	chunkMemoryVersion = 1
	// maxMemoryBytes bounds all memories of a store together, on disk.
	maxMemoryBytes = 128 << 20
)

// chunkMemory is what is known of a large file's content since it was read:
// how to tell each chunk by a MAC, which is seven times as fast as its digest
// and its search, and the whole file's hash half-way at some of the cuts. It
// belongs to a chunk list, wherever such a file lies.
type chunkMemory struct {
	digest Digest // of the chunk list
	list   *chunkList
	macs   []chunkMAC
	mids   []midState // ascending
}

// midState is a SHA-256 of a file's first chunks, not yet ended.
type midState struct {
	chunks int
	state  []byte
}

// resumeAt returns the longest known start of the file that is at most n
// chunks long, and the hash of it.
func (m *chunkMemory) resumeAt(n int) (known []midState, h hash.Hash) {
	h = sha256.New()
	if m == nil {
		return nil, h
	}
	end := len(m.mids)
	for end > 0 && m.mids[end-1].chunks > n {
		end--
	}
	if end == 0 || h.(encoding.BinaryUnmarshaler).UnmarshalBinary(m.mids[end-1].state) != nil {
		return nil, sha256.New()
	}
	return slices.Clone(m.mids[:end]), h
}

// marshal returns the memory, sealed with the store's key. The version of Go
// is part of it, since the hash's state is Go's own.
func (m *chunkMemory) marshal(uuid [16]byte, key *macKey) []byte {
	e := &encoder{b: make([]byte, 0, 256+16*len(m.macs)+128*len(m.mids))}
	e.b = append(e.b, 'S', 'K', 'M', chunkMemoryVersion)
	e.b = append(e.b, uuid[:]...)
	e.str(runtime.Version())
	e.digest(m.digest)
	e.uvarint(uint64(len(m.macs)))
	for i := range m.macs {
		e.b = append(e.b, m.macs[i][:]...)
	}
	e.uvarint(uint64(len(m.mids)))
	for _, s := range m.mids {
		e.uvarint(uint64(s.chunks))
		e.str(string(s.state))
	}
	return append(e.b, key.sealed(e.b)...)
}

// parseChunkMemory reads the memory of list, whose digest is d.
func parseChunkMemory(b []byte, uuid [16]byte, key *macKey, d Digest, list *chunkList) (*chunkMemory, error) {
	cut := len(b) - sha256.Size
	if cut < 0 || !hmac.Equal(b[cut:], key.sealed(b[:cut])) {
		return nil, fmt.Errorf("chunk memory seal: %w", ErrCorrupt)
	}
	r := &decoder{b: b[:cut]}
	r.magic('M', chunkMemoryVersion, "chunk memory")
	of := r.take(16, "uuid")
	version := r.str(100, "version of Go")
	m := &chunkMemory{digest: r.digest("chunk list"), list: list}
	m.macs = make([]chunkMAC, r.count(len(chunkMAC{}), "MACs"))
	for i := range m.macs {
		copy(m.macs[i][:], r.take(uint64(len(chunkMAC{})), "MAC"))
	}
	n := r.count(2, "states")
	for i := 0; i < n && r.err == nil; i++ {
		m.mids = append(m.mids, midState{int(r.upTo(uint64(len(m.macs)), "chunks")), []byte(r.str(1000, "state"))})
	}
	if err := r.end("chunk memory"); err != nil {
		return nil, err
	}
	if [16]byte(of) != uuid || version != runtime.Version() || m.digest != d || len(m.macs) != len(list.chunks) {
		return nil, fmt.Errorf("chunk memory of another store, file or build: %w", ErrInvalid)
	}
	return m, nil
}

// chunkMemories keeps the memories of a store, one a file, in a directory of
// their own. They are an aid: what is missing or damaged is not used.
type chunkMemories struct {
	store *Store
	dir   string
	key   func() *macKey // nil when it can't be had
	trim  sync.Mutex
}

func newChunkMemories(s *Store) *chunkMemories {
	c := &chunkMemories{store: s, dir: filepath.Join(s.dir, "chunkmemory")}
	c.key = sync.OnceValue(func() *macKey {
		key, err := loadMACKey(c.dir)
		if err != nil {
			s.log.Warn("large files are read without memory", "error", err)
			return nil
		}
		return key
	})
	return c
}

func (c *chunkMemories) path(list Digest) string { return filepath.Join(c.dir, list.Hex()) }

// load returns what is known of the content with this chunk list, or nil.
func (c *chunkMemories) load(list Digest) *chunkMemory {
	key := c.key()
	if list.IsZero() || key == nil {
		return nil
	}
	b, err := os.ReadFile(c.path(list))
	if err != nil {
		return nil
	}
	chunks, err := c.store.readChunkList(list)
	if err != nil {
		return nil
	}
	m, err := parseChunkMemory(b, c.store.format.uuid, key, list, chunks)
	if err != nil {
		c.store.log.Debug("chunk memory ignored", "list", list, "error", err)
		return nil
	}
	return m
}

// keep remembers m, unless it is what was loaded. Failing costs time at the
// next reading only.
func (c *chunkMemories) keep(m, loaded *chunkMemory) {
	path := c.path(m.digest)
	if loaded != nil && loaded.digest == m.digest {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // it was used
		return
	}
	b := m.marshal(c.store.format.uuid, c.key())
	if len(b) > maxMemoryBytes {
		return
	}
	if err := replaceFile(path, b); err != nil {
		c.store.log.Warn("chunk memory not written", "error", err)
		return
	}
	c.shrink(maxMemoryBytes)
}

// shrink removes what was used longest ago until the rest fits.
func (c *chunkMemories) shrink(limit int64) {
	c.trim.Lock()
	defer c.trim.Unlock()
	files := c.files()
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, f := range files {
		if limit -= f.Size(); limit < 0 {
			_ = os.Remove(filepath.Join(c.dir, f.Name()))
		}
	}
}

// files lists the memories, and what a crash left of one.
func (c *chunkMemories) files() (out []fs.FileInfo) {
	names, _ := os.ReadDir(c.dir)
	for _, n := range names {
		if info, err := n.Info(); err == nil && n.Name() != "key" {
			out = append(out, info)
		}
	}
	return out
}

// dropLost removes the memories of content that the store no longer has.
func (c *chunkMemories) dropLost() {
	for _, f := range c.files() {
		if d, err := ParseDigest(f.Name()); err == nil && !c.store.index.has(d) {
			_ = os.Remove(c.path(d))
		}
	}
}
