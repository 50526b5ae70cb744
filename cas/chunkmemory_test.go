package cas

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// rememberAll makes a store remember every chunked file, with a state of the
// hash at every few chunks.
func rememberAll() Config { return Config{rememberFrom: ChunkedFrom, stateEvery: 1 << 20} }

// reference is the chunk list that plain cutting makes of b.
func reference(t interface{ Fatal(...any) }, b []byte) *chunkList {
	list := &chunkList{whole: DigestOf(b)}
	err := storeCDC.each(bytes.NewReader(b), make([]byte, 2*storeMaxChunk), func(c []byte) error {
		list.add(DigestOf(c), len(c))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checkChunks compares what a snapshot recorded of "f" with the reference.
func checkChunks(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, s *Store, tree Digest, content []byte) Entry {
	ctx, cancel := testContext()
	defer cancel()
	x, err := s.Lookup(ctx, tree, "f")
	if err != nil {
		t.Fatal(err)
	}
	if x.Digest != DigestOf(content) || x.Size != int64(len(content)) {
		t.Fatalf("%d bytes of digest %s, want %d of %s", x.Size, x.Digest, len(content), DigestOf(content))
	}
	if len(content) < ChunkedFrom {
		return x
	}
	list, err := s.readChunkList(x.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	if want := reference(t, content); !slices.Equal(list.chunks, want.chunks) {
		t.Fatalf("cut into %d chunks, want %d:\n%v\n%v", len(list.chunks), len(want.chunks), list.chunks, want.chunks)
	}
	return x
}

// edit makes one random change of a file's content.
func edit(t *rapid.T, b []byte) []byte {
	at := rapid.IntRange(0, len(b)).Draw(t, "at")
	patch := randomBytes(rapid.Uint64().Draw(t, "seed"), rapid.SampledFrom([]int{1, 2, 64, 5000, 700_000}).Draw(t, "length"))
	if rapid.Bool().Draw(t, "zeros") {
		clear(patch)
	}
	switch rapid.IntRange(0, 5).Draw(t, "edit") {
	case 0, 1:
		b = slices.Clone(b)
		copy(b[at:], patch)
	case 2:
		b = slices.Concat(b[:at], patch, b[at:])
	case 3:
		b = slices.Delete(slices.Clone(b), at, min(len(b), at+len(patch)))
	case 4:
		b = append(slices.Clone(b), patch...)
	case 5: // about where a chunk ends
		list := reference(t, b)
		if c := list.chunks; len(c) > 0 {
			i := rapid.IntRange(0, len(c)-1).Draw(t, "chunk")
			end := int(c[i].off + c[i].size)
			b = slices.Clone(b[:min(len(b), end+rapid.IntRange(0, 3).Draw(t, "behind"))])
		}
	}
	return b
}

// TestMemoryMakesNoDifference: after any series of edits a large file is cut
// and hashed as one that nothing is remembered of.
func TestMemoryMakesNoDifference(t *testing.T) {
	base := t.TempDir()
	s := openStore(t, filepath.Join(base, "store"), rememberAll())
	work := t.TempDir()
	start := slices.Concat(randomBytes(1, 2<<20), make([]byte, 4600<<10), randomBytes(2, 1<<20))
	rapid.Check(t, func(rt *rapid.T) {
		content := start // what was there before is remembered as well
		for range rapid.IntRange(1, 2).Draw(rt, "edits") {
			content = edit(rt, content)
			if err := writeSparse(filepath.Join(work, "f"), content, rapid.Bool().Draw(rt, "sparse")); err != nil {
				rt.Fatal(err)
			}
			res, err := snapshotPath(s, work, "k")
			if err != nil {
				rt.Fatal(err)
			}
			checkChunks(rt, s, res.Tree, content)
		}
	})
}

// writeSparse rewrites the file in place, with holes for pages of zeros if it
// is to be sparse.
func writeSparse(path string, b []byte, sparse bool) error {
	if !sparse {
		return os.WriteFile(path, b, 0o644)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for off := 0; off < len(b); off += 4096 {
		page := b[off:min(len(b), off+4096)]
		if !bytes.Equal(page, make([]byte, len(page))) {
			_, e := f.WriteAt(page, int64(off))
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, f.Truncate(int64(len(b))), f.Close())
}

// TestMemorySparesHashing: after an edit only the chunks beside it are read
// for their digests, and the whole's hash begins near it; also when the
// content behind has moved.
func TestMemorySparesHashing(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"overwritten": func(b []byte) []byte { b = slices.Clone(b); copy(b[20<<20:], "edited"); return b },
		"moved":       func(b []byte) []byte { return slices.Insert(slices.Clone(b), 20<<20, 'x') },
		"appended":    func(b []byte) []byte { return append(slices.Clone(b), "more"...) },
		"cut":         func(b []byte) []byte { return b[:20<<20] },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), rememberAll())
			work := t.TempDir()
			before := randomBytes(7, 24<<20)
			writeFile(t, filepath.Join(work, "f"), string(before))
			x := checkChunks(t, s, snapshot(t, s, work, "k").Tree, before)
			memory := s.caches.memories.load(x.Chunks)
			if memory == nil || len(memory.mids) < 10 {
				t.Fatalf("memory %+v", memory)
			}
			after := change(before)
			writeFile(t, filepath.Join(work, "f"), string(after))
			known := countKnown(t, s, work, x.Chunks, int64(len(after)))
			if total := len(reference(t, after).chunks); known < total-12 || known < 20 {
				t.Errorf("%d of %d chunks known again", known, total)
			}
			checkChunks(t, s, snapshot(t, s, work, "k").Tree, after)
		})
	}
}

// countKnown reads the file as a snapshot does and returns how many chunks
// were recognized.
func countKnown(t *testing.T, s *Store, work string, was Digest, size int64) (known int) {
	t.Helper()
	f, err := os.Open(filepath.Join(work, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	memories := s.caches.memories
	stream := &chunkStream{stopped: func() bool { return false }, fd: int(f.Fd()), size: size, key: memories.key(), memory: memories.load(was)}
	pipe := newChunkPipe(1, wholeHash{memory: stream.memory, reread: stream.reread}, stream.key, func(*chunkJob) error { return nil })
	stream.start(1)
	defer stream.close()
	if _, err := pipe.finish((&chunkCutter{stream: stream, pipe: pipe}).run()); err != nil {
		t.Fatal(err)
	}
	for _, j := range pipe.jobs {
		if j.known {
			known++
		}
	}
	return known
}

// TestMemoryDamaged: a memory with any bit flipped, cut short, of another
// store or with another key is not used, and replaced.
func TestMemoryDamaged(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, rememberAll())
	work := t.TempDir()
	content := randomBytes(3, 4<<20)
	writeFile(t, filepath.Join(work, "f"), string(content))
	x := checkChunks(t, s, snapshot(t, s, work, "k").Tree, content)
	path := s.caches.memories.path(x.Chunks)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(good); i += 7 {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if s.caches.memories.load(x.Chunks) != nil {
			t.Fatalf("bit flipped in byte %d: loaded", i)
		}
	}
	for n := range 50 {
		if err := os.WriteFile(path, good[:len(good)-1-n], 0o600); err != nil || s.caches.memories.load(x.Chunks) != nil {
			t.Fatalf("cut by %d bytes: loaded, %v", n+1, err)
		}
	}
	content[2<<20] ^= 1
	writeFile(t, filepath.Join(work, "f"), string(content))
	y := checkChunks(t, s, snapshot(t, s, work, "k").Tree, content)
	if s.caches.memories.load(y.Chunks) == nil {
		t.Error("the new content is not remembered")
	}
	if info, err := os.Stat(filepath.Join(dir, "chunkmemory", "key")); err != nil || info.Mode() != 0o600 || info.Size() != macKeySize+sealKeySize {
		t.Errorf("key: %v, %v", info, err)
	}
	if err := os.Remove(filepath.Join(dir, "chunkmemory", "key")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, rememberAll())
	if s.caches.memories.load(y.Chunks) != nil {
		t.Error("loaded with another key")
	}
}

// TestMemoryOfLostChunks: what is remembered of a chunk does not do where the
// store has lost the chunk itself: it is stored again.
func TestMemoryOfLostChunks(t *testing.T) {
	s := openStore(t, t.TempDir(), rememberAll())
	work := t.TempDir()
	content := randomBytes(3, 6<<20)
	writeFile(t, filepath.Join(work, "f"), string(content))
	x := checkChunks(t, s, snapshot(t, s, work, "k").Tree, content)
	commit(t, s, "ws", snapshot(t, s, work, "k").Tree, "1")
	list, err := s.readChunkList(x.Chunks)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := s.index.find(list.chunks[1].digest)
	s.damaged.mu.Lock() // as a read of a bad record leaves it, but with the stat cache kept
	s.damaged.all[list.chunks[1].digest] = l
	s.damaged.mu.Unlock()
	content[len(content)-1] ^= 1
	writeFile(t, filepath.Join(work, "f"), string(content))
	checkChunks(t, s, snapshot(t, s, work, "k").Tree, content)
	if now, _ := s.index.find(list.chunks[1].digest); now == l {
		t.Error("the lost chunk was not stored again")
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
}

// TestMemoryIsBounded: what was used longest ago goes first, and a collection
// takes what the store no longer has.
func TestMemoryIsBounded(t *testing.T) {
	s := openStore(t, t.TempDir(), rememberAll())
	work := t.TempDir()
	var paths []string
	for i := range uint64(3) {
		content := randomBytes(i, 3<<20)
		writeFile(t, filepath.Join(work, "f"), string(content))
		x := checkChunks(t, s, snapshot(t, s, work, "k").Tree, content)
		paths = append(paths, s.caches.memories.path(x.Chunks))
		old := time.Unix(int64(1e9+i), 0)
		if err := os.Chtimes(paths[i], old, old); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(paths[2])
	if err != nil {
		t.Fatal(err)
	}
	s.caches.memories.shrink(info.Size() * 5 / 2)
	for i, path := range paths {
		if _, err := os.Stat(path); (err == nil) != (i > 0) {
			t.Errorf("memory %d: %v", i, err)
		}
	}
	lost := s.caches.memories.path(DigestOf([]byte("not in the store")))
	if err := os.Rename(paths[1], lost); err != nil {
		t.Fatal(err)
	}
	s.caches.dropLost()
	if _, err := os.Stat(lost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("memory of what is gone: %v", err)
	}
	if _, err := os.Stat(paths[2]); err != nil {
		t.Error(err)
	}
}

// TestHoles: what findHoles says is zeros and nothing else is a hole, at
// every offset.
func TestHoles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	const size = 3<<20 + 777
	if err := sparseFile(path, size); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	h := findHoles(fd, size)
	if !h.sparse {
		missing(t, "this file system knows no holes")
	}
	ones := bytes.Repeat([]byte{1}, size)
	h.clear(ones, 0)
	for off := 0; off < size; off += 5003 {
		hole := h.at(int64(off))
		if hole > 0 && !bytes.Equal(content[off:off+int(hole)], make([]byte, hole)) {
			t.Fatalf("data in the hole at %d of %d bytes", off, hole)
		}
		if (hole > 0) != (ones[off] == 0) {
			t.Fatalf("at %d: hole of %d bytes, cleared to %d", off, hole, ones[off])
		}
		part := bytes.Repeat([]byte{1}, min(9000, size-off))
		if h.clear(part, int64(off)); !bytes.Equal(part, ones[off:off+len(part)]) {
			t.Fatalf("clearing from %d on differs", off)
		}
	}
}

// FuzzChunkMemory: no input does more than fail to load.
func FuzzChunkMemory(f *testing.F) {
	key, err := newMACKey(make([]byte, macKeySize+sealKeySize))
	if err != nil {
		f.Fatal(err)
	}
	list := &chunkList{whole: DigestOf(nil)}
	list.add(DigestOf([]byte("a")), 5)
	m := &chunkMemory{digest: DigestOf(nil), list: list, macs: make([]chunkMAC, 1), mids: []midState{{1, []byte("state")}}}
	b := m.marshal([16]byte{1}, key)
	f.Add(b[:len(b)-32])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(bytes.Clone(b), key.sealed(b)...)
		got, err := parseChunkMemory(b, [16]byte{1}, key, DigestOf(nil), list)
		if (got == nil) == (err == nil) {
			t.Fatal("neither a memory nor an error")
		}
		if got != nil && len(got.macs) != 1 {
			t.Fatalf("%d MACs for one chunk", len(got.macs))
		}
	})
}

// TestMemoryOfChangingFile (F26): while a remembered file is written to, cut
// and grown, what each snapshot records is one content: its digest is that of
// its chunks.
func TestMemoryOfChangingFile(t *testing.T) {
	s := openStore(t, t.TempDir(), rememberAll())
	work := t.TempDir()
	path := filepath.Join(work, "f")
	writeFile(t, path, string(randomBytes(1, 12<<20)))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); !stop.Load(); i++ {
			_, _ = f.WriteAt(randomBytes(i, 100), int64(i*7919%12)<<20+int64(i%4096))
			if i%500 == 0 {
				_ = f.Truncate(11 << 20)
				_ = f.Truncate(12 << 20)
			}
		}
	})
	unstable := 0
	for range 5 {
		res := snapshot(t, s, work, "k")
		unstable += len(res.Unstable)
		x, err := s.Lookup(t.Context(), res.Tree, "f")
		if err != nil {
			t.Fatal(err)
		}
		if got := DigestOf(readCommitted(t, s, res.Tree, "f")); got != x.Digest {
			t.Fatalf("the chunks make %s, the entry says %s", got, x.Digest)
		}
	}
	stop.Store(true)
	wg.Wait()
	if unstable == 0 {
		t.Error("the file never changed while it was read")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	checkChunks(t, s, snapshot(t, s, work, "k").Tree, content)
}
