package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// numbered returns a digest that is spread evenly, or, with few bits, one of
// many that are close to each other.
func numbered(n uint64, clustered bool) Digest {
	if !clustered {
		return DigestOf(binary.LittleEndian.AppendUint64(nil, n))
	}
	var sum [DigestSize]byte
	sum[0] = 7
	binary.BigEndian.PutUint64(sum[DigestSize-8:], n)
	return Digest{sum}
}

// TestIndexSearch: the guessing search finds what is there, the newest live
// record first, and nothing else, whatever the digests look like.
func TestIndexSearch(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		clustered := rapid.Bool().Draw(rt, "clustered")
		count := rapid.IntRange(0, 3000).Draw(rt, "count")
		var entries []indexEntry
		newest := make(map[Digest]loc)
		for n := range count {
			d := numbered(uint64(n)*2, clustered)
			for pack := range uint64(1 + n%3) {
				l := loc{pack: pack + 1, off: int64(n)}
				entries, newest[d] = append(entries, indexEntry{d, l}), l
			}
		}
		run, err := writeIndexRun(dir, 1, 3, entries, nil)
		if err != nil {
			rt.Fatal(err)
		}
		defer run.close()
		buried := rapid.Uint64Range(0, uint64(count)).Draw(rt, "buried") * 2
		dead := newEntrySet(run)
		for i := range run.count {
			if e := run.entry(i); e.digest == numbered(buried, clustered) && e.loc.pack > 1 {
				dead.add(i)
			}
		}
		run.dead = dead.bits
		for n := range uint64(count)*2 + 2 {
			d := numbered(n, clustered)
			l, ok := run.find(d)
			want, there := newest[d]
			if n == buried && there {
				want.pack = 1
			}
			if ok != there || l != want {
				rt.Fatalf("object %d: %+v, %v; want %+v, %v", n, l, ok, want, there)
			}
		}
	})
}

// TestMergePolicy seals 10,000 packs: the runs stay few and entries are
// seldom rewritten.
func TestMergePolicy(t *testing.T) {
	tests := []struct {
		name string
		size func(i int) int
		runs int
	}{
		{"equal", func(int) int { return 1000 }, 21},
		{"mixed", func(i int) int { return 1 + i*7919%100_000 }, 32},
		{"empty", func(int) int { return 0 }, 21},
		{"one huge", func(i int) int { return max(1000, (i-4999)*(5001-i)*10_000_000) }, 32},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var runs []int
			sealed, written, most := 0, 0, 0
			for i := range 10_000 {
				runs = append(runs, tt.size(i))
				sealed += tt.size(i)
				for from := mergeFrom(runs); from < len(runs); from = mergeFrom(runs) {
					sum := 0
					for _, n := range runs[from:] {
						sum += n
					}
					runs = append(runs[:from], sum)
					written += sum
				}
				most = max(most, len(runs))
			}
			factor := float64(written) / float64(max(1, sealed))
			t.Logf("at most %d runs, entries written %.1f times", most, factor)
			if most > tt.runs || factor > 2*math.Log(10_000)/math.Log(mergeRatio) {
				t.Errorf("at most %d runs, want %d; entries written %.1f times", most, tt.runs, factor)
			}
		})
	}
}

// mergedStore makes a store of many packs, of which the older half belongs to
// no head, and merges its runs.
func mergedStore(t *testing.T) (dir string, cfg Config, s *Store, h Head) {
	t.Helper()
	dir, cfg = t.TempDir(), Config{MaxPackBytes: 4096, mergeByHand: true}
	s = openStore(t, dir, cfg)
	work := t.TempDir()
	for round := range 2 {
		for i := range 40 {
			writeFile(t, filepath.Join(work, fmt.Sprint("d", i%5), fmt.Sprint("f", i)), string(randomBytes(uint64(100*round+i), 700)))
		}
		h = commit(t, s, "ws", snapshot(t, s, work, "").Tree, fmt.Sprint(round))
	}
	if err := s.sealOpenPack(); err != nil {
		t.Fatal(err)
	}
	before := len(s.index.sealedRuns())
	if err := s.mergeIndex(goOn); err != nil {
		t.Fatal(err)
	}
	if after := len(s.index.sealedRuns()); before < 12 || after > before/2 {
		t.Fatalf("%d runs became %d", before, after)
	}
	return dir, cfg, s, h
}

func indexNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dir, "index"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// checkWhole reads all that a head names.
func checkWhole(t *testing.T, s *Store, h Head) {
	t.Helper()
	files := 0
	err := s.Walk(t.Context(), h.Tree, "", func(_ string, x Entry) error {
		if x.Type != TypeFile {
			return nil
		}
		files++
		_, err := s.GetBytes(t.Context(), x.Digest)
		return err
	})
	if err != nil || files != 40 {
		t.Errorf("%d files, %v", files, err)
	}
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify %+v", rep)
	}
}

// TestMergedRuns: merged runs survive reopening, collection and rebuild, and
// collection treats each of their packs by itself.
func TestMergedRuns(t *testing.T) {
	dir, cfg, s, h := mergedStore(t)
	checkWhole(t, s, h)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, cfg)
	checkWhole(t, s, h)
	if n, files := len(s.index.sealedRuns()), indexNames(t, dir); n != len(files) {
		t.Errorf("%d runs, files %v", n, files)
	}
	rep := collect(t, s, GCOptions{Keep: keepOne, NoGrace: true})
	if rep.PacksRemoved < 4 || rep.Removed < 40 || rep.Kept < 40 {
		t.Errorf("collected %+v", rep)
	}
	checkWhole(t, s, h)
	if has, _ := s.Has(t.Context(), DigestOf(randomBytes(3, 700))); has {
		t.Error("a collected object is there")
	}
	if again := collect(t, s, GCOptions{Keep: keepOne, NoGrace: true}); again.Removed != 0 {
		t.Errorf("collected again: %+v", again)
	}
	if err := s.Rebuild(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkWhole(t, s, h)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, cfg)
	checkWhole(t, s, h)
	if has, _ := s.Has(t.Context(), DigestOf(randomBytes(3, 700))); has {
		t.Error("a collected object came back")
	}
}

// TestDamagedMergedRun: a run of many packs that is damaged is made anew from
// its packs, without what was collected, and what a crash left of a merge is
// never used in its place.
func TestDamagedMergedRun(t *testing.T) {
	dir, cfg, s, h := mergedStore(t)
	widest := s.index.sealedRuns()[0]
	stale, err := writeIndexRun(t.TempDir(), widest.first, widest.first, []indexEntry{{DigestOf([]byte("stale")), loc{pack: widest.first, off: 64}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "index", filepath.Base(stale.path))
	content, err := os.ReadFile(stale.path)
	if err != nil {
		t.Fatal(err)
	}
	wide := filepath.Join(dir, "index", indexName(widest.first, widest.last))
	s.touches = newTouches()
	collect(t, s, GCOptions{Keep: keepOne, NoGrace: true, RewriteBelow: 1})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []bool{false, true} {
		if err := os.WriteFile(left, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if damage {
			flipBit(t, wide, 2000)
		}
		s = openStore(t, dir, cfg)
		checkWhole(t, s, h)
		for _, d := range []Digest{DigestOf([]byte("stale")), DigestOf(randomBytes(3, 700))} {
			if has, _ := s.Has(t.Context(), d); has {
				t.Errorf("damage %v: %s came back", damage, d)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if names := indexNames(t, dir); slices.Contains(names, filepath.Base(wide)) == damage || !damage && slices.Contains(names, filepath.Base(left)) {
			t.Errorf("damage %v: index files %v", damage, names)
		}
	}
}

// TestThinningInterrupted: when a crash comes after a collection was decided
// and before every run was written anew, none of what it buried comes back,
// though no pack as a whole was to go.
func TestThinningInterrupted(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	crashed := ""
	s := openStore(t, dir, Config{mergeByHand: true, faults: func(step string) error {
		if step == "thin index run" && crashed == "" {
			crashed = copyStore(t, dir)
		}
		return nil
	}})
	writeFile(t, filepath.Join(work, "a"), "goes")
	writeFile(t, filepath.Join(work, "b"), string(randomBytes(1, 5000)))
	commit(t, s, "ws", snapshot(t, s, work, "").Tree, "1")
	writeFile(t, filepath.Join(work, "a"), "stays")
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "2")
	s.touches = newTouches()
	if rep := collect(t, s, GCOptions{Keep: keepOne, NoGrace: true}); rep.PacksRemoved != 0 || rep.Removed == 0 || crashed == "" {
		t.Fatalf("collected %+v, crashed %q", rep, crashed)
	}
	s = openStore(t, crashed, Config{})
	if has, _ := s.Has(t.Context(), DigestOf([]byte("goes"))); has {
		t.Error("a buried object came back")
	}
	if got := readCommitted(t, s, h.Tree, "a"); string(got) != "stays" {
		t.Errorf("content %q", got)
	}
}

// TestSealedPackLostItsRun: the last pack, sealed and then damaged where no
// commit had recorded it as durable, is not taken for a torn one when its run
// is lost.
func TestSealedPackLostItsRun(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	var objects []Digest
	for i := range 3 {
		d, err := s.PutBytes(t.Context(), fmt.Appendf(nil, "object number %d", i))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, d)
	}
	hit, _ := s.index.find(objects[1])
	if err := s.sealOpenPack(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "index", indexName(1, 1))); err != nil {
		t.Fatal(err)
	}
	flipBit(t, onlyPack(t, dir, 1), hit.off+10)
	s = openStore(t, dir, Config{})
	for _, i := range []int{0, 2} {
		if _, err := s.GetBytes(t.Context(), objects[i]); err != nil {
			t.Errorf("object %d: %v", i, err)
		}
	}
	if rep := verify(t, s); len(rep.Damaged) != 1 || rep.Damaged[0].Offset != hit.off {
		t.Errorf("damaged %+v", rep.Damaged)
	}
	if _, err := s.PutBytes(t.Context(), []byte("more")); err != nil {
		t.Fatal(err)
	}
	if l, _ := s.index.find(DigestOf([]byte("more"))); l.pack != 2 {
		t.Errorf("appended to pack %d, which was sealed", l.pack)
	}
}

// BenchmarkLookup measures lookups of objects that are there and that are not,
// with 10,000 packs of 400 objects, each pack with its own run and merged as
// they were sealed.
func BenchmarkLookup(b *testing.B) {
	for _, merge := range []bool{false, true} {
		x := lookupIndex(b, merge)
		for _, there := range []bool{true, false} {
			b.Run(fmt.Sprintf("runs=%d/there=%v", len(x.runs), there), func(b *testing.B) {
				n := uint64(0)
				if !there {
					n = lookupPacks * lookupEach
				}
				var digests []Digest
				for i := range uint64(100_000) {
					digests = append(digests, numbered(n+i*39, false))
				}
				i := 0
				for b.Loop() {
					if i++; x.has(digests[i%len(digests)]) != there {
						b.Fatal("wrong answer")
					}
				}
			})
		}
		if err := x.close(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestSealByObjects: a pack is sealed when it holds many objects, however
// small they are.
func TestSealByObjects(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{mergeByHand: true})
	s.writer.maxObjects = 100
	for i := range 1050 {
		if _, err := s.PutBytes(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if runs, open := len(s.index.sealedRuns()), s.index.openCount(); runs != 10 || open != 50 {
		t.Errorf("%d runs, %d objects in the open pack", runs, open)
	}
}

// TestCollectionFails: when a collection fails at any step after it has
// decided, no runs are merged or rebuilt on what may not be durable, and the
// next collection, or opening the store, brings it to its end.
func TestCollectionFails(t *testing.T) {
	for n := 1; ; n++ {
		failing, steps := false, 0
		dir := t.TempDir()
		s := openStore(t, dir, Config{MaxPackBytes: 4096, mergeByHand: true, faults: func(step string) error {
			if !failing || step == "fsync pack" || step == "fsync full pack" { // these end the store
				return nil
			}
			if steps++; steps == n {
				return errCrash
			}
			return nil
		}})
		work := t.TempDir()
		var h Head
		for round := range 3 {
			for i := range 6 {
				writeFile(t, filepath.Join(work, fmt.Sprint("f", i)), string(randomBytes(uint64(round*(i%3)*10+i), 1500)))
			}
			h = commit(t, s, "ws", snapshot(t, s, work, "").Tree, fmt.Sprint(round))
		}
		gone := DigestOf(randomBytes(11, 1500))
		s.touches, failing = newTouches(), true
		_, err := s.GC(t.Context(), GCOptions{Keep: keepOne, NoGrace: true})
		failing = false
		if err == nil {
			if n < 10 {
				t.Errorf("only %d steps", n-1)
			}
			return
		}
		if s.index.hasDead() {
			if err := s.Rebuild(t.Context()); !errors.Is(err, ErrFailed) {
				t.Errorf("step %d: rebuild: %v", n, err)
			}
			if old := s.index.mergeable(); len(old) > 0 {
				t.Errorf("step %d: would merge %d runs", n, len(old))
			}
		}
		again := openStore(t, copyStore(t, dir), Config{MaxPackBytes: 4096})
		for _, s := range []*Store{again, s} {
			collect(t, s, GCOptions{Keep: keepOne, NoGrace: true})
			if has, _ := s.Has(t.Context(), gone); has {
				t.Errorf("step %d: an object is there that nobody needs", n)
			}
			if rep := verify(t, s); !rep.OK() {
				t.Errorf("step %d: verify %+v", n, rep)
			}
			if got := readCommitted(t, s, h.Tree, "f5"); string(got) != string(randomBytes(45, 1500)) {
				t.Errorf("step %d: content differs", n)
			}
		}
	}
}

const lookupPacks, lookupEach = 10_000, 400

func lookupIndex(b *testing.B, merge bool) *objectIndex {
	s := &Store{dir: b.TempDir(), index: newObjectIndex()}
	if err := os.Mkdir(s.indexDir(), 0o700); err != nil {
		b.Fatal(err)
	}
	for p := range uint64(lookupPacks) {
		var entries []indexEntry
		for i := range uint64(lookupEach) {
			entries = append(entries, indexEntry{numbered(p*lookupEach+i, false), loc{pack: p + 1, off: int64(i)}})
		}
		run, err := writeIndexRun(s.indexDir(), p+1, p+1, entries, nil)
		if err != nil {
			b.Fatal(err)
		}
		s.index.seal(run)
		if merge {
			if err := s.mergeIndex(goOn); err != nil {
				b.Fatal(err)
			}
		}
	}
	return s.index
}
