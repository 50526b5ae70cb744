package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"skerry.internal/cas"
)

func TestPullOfAll(t *testing.T) {
	from, to := openStore(t), openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{})
	src := &direct{server: server, token: a.grant(t, root)}
	var last Progress
	res, err := Pull(t.Context(), to, src, root, PullOptions{Pin: "tree", Report: func(p Progress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	want := objectsOf(t, from, root)
	if n := res.Directories + res.ChunkLists + res.Blobs; n != int64(len(want)) || res.ChunkLists != 1 {
		t.Errorf("%+v, want %d objects", res, len(want))
	}
	if last.Objects != int64(len(want)) || last.KnownObjects != last.Objects || last.Bytes != res.Bytes || last.KnownBytes != last.Bytes {
		t.Errorf("progress ends at %+v", last)
	}
	checkSame(t, from, to, root)
	src.asked = nil
	if res, err = Pull(t.Context(), to, src, root, PullOptions{}); err != nil || res.Bytes != 0 || len(src.asked) != 0 {
		t.Errorf("again: %+v, %v, asked for %d", res, err, len(src.asked))
	}
	if _, err := to.GC(t.Context(), cas.GCOptions{NoGrace: true}); err != nil {
		t.Fatal(err)
	}
	checkSame(t, from, to, root)
}

// TestPullAsksForWhatIsMissing: for random trees, of which the receiver has a
// random older state, exactly what it lacks is asked for, each object once,
// and the tree is the same on both sides.
func TestPullAsksForWhatIsMissing(t *testing.T) {
	base := t.TempDir()
	from, to := openStore(t), openStore(t)
	server, a := newServer(t, from, Limits{})
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		work := filepath.Join(base, fmt.Sprint("work", n))
		if err := os.Mkdir(work, 0o755); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(work)
		change(rt, work)
		var base []cas.Digest
		if rapid.Bool().Draw(rt, "older state is there") {
			base = append(base, snapshot(rt, to, work, fmt.Sprint("old", n)))
		}
		change(rt, work)
		root := snapshot(rt, from, work, fmt.Sprint("new", n))
		objects, missing := objectsOf(rt, from, root), map[wanted]bool{}
		for w := range objects {
			if has, err := to.Has(context.Background(), w.digest); err != nil {
				rt.Fatal(err)
			} else if !has {
				missing[w] = true
			}
		}
		src := &direct{server: server, token: a.grant(rt, root)}
		res, err := Pull(context.Background(), to, src, root, PullOptions{Pin: fmt.Sprint(n), Base: base[:rapid.IntRange(0, len(base)).Draw(rt, "bases")]})
		if err != nil {
			rt.Fatal(err)
		}
		if len(src.asked) != len(missing) || res.Directories+res.ChunkLists+res.Blobs != int64(len(missing)) {
			rt.Fatalf("asked for %d, %+v; missing were %d", len(src.asked), res, len(missing))
		}
		for _, w := range src.asked {
			if !missing[w] {
				rt.Fatalf("asked for %v", w)
			}
		}
		if present := checkClosed(rt, to, objects); present != len(objects) {
			rt.Fatalf("%d of %d objects are there", present, len(objects))
		}
		for w := range objects { // read back, verified against its digest
			if _, err := to.GetBytes(context.Background(), w.digest); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func change(t *rapid.T, dir string) {
	for range rapid.IntRange(0, 12).Draw(t, "changes") {
		path := filepath.Join(dir, rapid.SampledFrom([]string{"a", "b", "c/x", "c/y", "c/d/x", "e/f/g/h", "e/i"}).Draw(t, "path"))
		switch rapid.IntRange(0, 3).Draw(t, "action") {
		case 0:
			_ = os.RemoveAll(path)
		case 1:
			_ = os.MkdirAll(filepath.Dir(path), 0o755)
			_ = os.Symlink("a", path)
		default:
			size := rapid.SampledFrom([]int{0, 1, 600, 70_000, 2<<20 + 5}).Draw(t, "size")
			_ = os.MkdirAll(filepath.Dir(path), 0o755)
			_ = os.WriteFile(path, noise(rapid.Uint64Range(0, 5).Draw(t, "seed"), size), 0o644)
		}
	}
}

// TestPullFollowsABase: the tree that the pin keeps is where a pull begins;
// what lies elsewhere or changed in it is found all the same.
func TestPullFollowsABase(t *testing.T) {
	from, to := openStore(t), openStore(t)
	dir := sampleTree(t)
	first := snapshot(t, from, dir, "ws")
	server, a := newServer(t, from, Limits{})
	if _, err := Pull(t.Context(), to, &direct{server: server, token: a.grant(t, first)}, first, PullOptions{Pin: "tree", Lease: "l", Collections: 3}); err != nil {
		t.Fatal(err)
	}
	pinned, err1 := to.PinnedTree(t.Context(), "tree")
	leased, err2 := to.LeasedTree(t.Context(), "l")
	if err := errors.Join(err1, err2); err != nil || pinned != first || leased != first {
		t.Errorf("pinned %s, leased %s, %v", pinned, leased, err)
	}
	if _, err := to.PinnedTree(t.Context(), "l"); !errors.Is(err, cas.ErrNotFound) {
		t.Errorf("a lease as a pin: %v", err)
	}
	if err := os.Rename(filepath.Join(dir, "d1"), filepath.Join(dir, "d9")); err != nil { // moved: elsewhere than in the base
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "d2/e0/new"), []byte("new"))
	second := snapshot(t, from, dir, "ws")
	src := &direct{server: server, token: a.grant(t, second)}
	res, err := Pull(t.Context(), to, src, second, PullOptions{Pin: "tree"})
	if err != nil || res.Directories != 3 || res.Blobs != 1 || len(src.asked) != 4 {
		t.Fatalf("%+v, %v, asked for %v", res, err, src.asked)
	}
	collect(t, to)
	checkSame(t, from, to, second)
}

// TestPullIsClosedAtEveryInstant cuts transfers off after each number of
// slices: what the receiver has is complete each time, and the next transfer
// asks for the rest.
func TestPullIsClosedAtEveryInstant(t *testing.T) {
	from, to := openStore(t), openStore(t)
	root := snapshot(t, from, sampleTree(t), "ws")
	objects := objectsOf(t, from, root)
	server, a := newServer(t, from, Limits{})
	server.cfg.Bandwidth = NewLimiter(64 << 20)
	cut := errors.New("cut")
	before := 0
	for n := 1; ; n++ {
		left := n
		src := &direct{server: server, token: a.grant(t, root)}
		src.change = func(s Slice) ([]Slice, error) {
			src.mu.Lock()
			defer src.mu.Unlock()
			if left--; left < 0 {
				return nil, cut
			}
			return []Slice{s}, nil
		}
		_, err := Pull(t.Context(), to, src, root, PullOptions{Pin: "tree"})
		present := checkClosed(t, to, objects)
		if present < before {
			t.Fatalf("%d objects, before %d", present, before)
		}
		before = present
		if err == nil {
			break
		}
		if ReasonOf(err) != CutOff || !errors.Is(err, cut) {
			t.Fatal(err)
		}
	}
	checkSame(t, from, to, root)
}

// TestPullMistrustsBytesThatLookLikeADirectory: the receiver has a file whose
// bytes are the directory object, but not what the directory names.
func TestPullMistrustsBytesThatLookLikeADirectory(t *testing.T) {
	from, to := openStore(t), openStore(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "sub/file"), []byte("content"))
	root := snapshot(t, from, dir, "ws")
	top, err := from.ReadDir(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := from.GetBytes(t.Context(), top.Entries[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	trap := t.TempDir()
	writeFile(t, filepath.Join(trap, "looks like one"), sub)
	snapshot(t, to, trap, "trap")
	server, a := newServer(t, from, Limits{})
	if _, err := Pull(t.Context(), to, &direct{server: server, token: a.grant(t, root)}, root, PullOptions{Pin: "tree"}); err != nil {
		t.Fatal(err)
	}
	checkSame(t, from, to, root)
}

// TestPullOfATreeThatContradictsItself: valid objects, but sizes that cannot be.
func TestPullOfATreeThatContradictsItself(t *testing.T) {
	small := cas.DigestOf([]byte("small"))
	for name, make := range map[string]func(s *cas.Store) cas.Digest{
		"two sizes": func(s *cas.Store) cas.Digest {
			return putBytes(t, s, encodeDir(fileEntry("a", 5, small), fileEntry("b", 6, small)))
		},
		"wrong size": func(s *cas.Store) cas.Digest { return putBytes(t, s, encodeDir(fileEntry("a", 6, small))) },
		"a file as a directory": func(s *cas.Store) cas.Digest {
			return putBytes(t, s, encodeDir(dirEntry("a", small)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := openStore(t), openStore(t)
			putBytes(t, from, []byte("small"))
			root := make(from)
			server, a := newServer(t, from, Limits{})
			_, err := Pull(t.Context(), to, &direct{server: server, token: a.grant(t, root)}, root, PullOptions{MaxBad: -1})
			if r := ReasonOf(err); r != Protocol && r != BadObject {
				t.Fatal(err)
			}
			if has, _ := to.Has(t.Context(), root); has {
				t.Error("the tree was stored")
			}
		})
	}
}

func TestPullLimits(t *testing.T) {
	from := openStore(t)
	deep := putBytes(t, from, encodeDir())
	for range 20 {
		deep = putBytes(t, from, encodeDir(dirEntry("d", deep)))
	}
	wide := snapshot(t, from, sampleTree(t), "ws")
	server, a := newServer(t, from, Limits{})
	for name, c := range map[string]struct {
		root cas.Digest
		opt  PullOptions
	}{
		"depth":     {deep, PullOptions{MaxDepth: 10}},
		"bytes":     {wide, PullOptions{MaxBytes: 100_000}},
		"objects":   {wide, PullOptions{MaxObjects: 5}},
		"directory": {wide, PullOptions{MaxMetadata: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			to := openStore(t)
			_, err := Pull(t.Context(), to, &direct{server: server, token: a.grant(t, c.root)}, c.root, c.opt)
			var e *Error
			if !errors.As(err, &e) || e.Reason != Limit || e.Limit == "" {
				t.Errorf("%v", err)
			}
		})
	}
	to := openStore(t)
	if _, err := Pull(t.Context(), to, &direct{server: server, token: a.grant(t, deep)}, deep, PullOptions{Pin: "deep"}); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}
