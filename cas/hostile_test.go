package cas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUnstableFile (F26): a file that changes at each reading is kept as last
// read, marked, and read again the next time.
func TestUnstableFile(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	path := filepath.Join(work, "f")
	writeFile(t, path, "at rest")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(24 << 20); err != nil { // long enough to be caught
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := byte(0); !stop.Load(); i++ {
			_, _ = f.WriteAt([]byte{i}, 12345)
		}
	})
	res := snapshot(t, s, work, "k")
	stop.Store(true)
	wg.Wait()
	if len(res.Unstable) != 1 || res.Unstable[0] != "f" || res.UnstableTotal != 1 {
		t.Fatalf("unstable %q", res.Unstable)
	}
	x, err := s.Lookup(t.Context(), res.Tree, "f")
	if err != nil || !x.Unstable {
		t.Errorf("entry %+v, %v", x, err)
	}
	calm := snapshot(t, s, work, "k")
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := readCommitted(t, s, calm.Tree, "f"); len(calm.Unstable) != 0 || !bytes.Equal(got, want) {
		t.Error("the file at rest was not read anew")
	}
}

// TestSwapRace (F17): while a directory is exchanged for a link that leads
// outside, and back, no snapshot holds anything of the outside.
func TestSwapRace(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	base := t.TempDir()
	work, secret := filepath.Join(base, "work"), filepath.Join(base, "secret")
	writeFile(t, filepath.Join(secret, "f"), "host secret")
	for i := range 5 {
		writeFile(t, filepath.Join(work, "dir", fmt.Sprint("inner", i), "f"), "inside")
	}
	writeFile(t, filepath.Join(work, "file"), "inside")
	if err := errors.Join(os.Symlink(secret, filepath.Join(work, "link")),
		os.Symlink(filepath.Join(secret, "f"), filepath.Join(work, "filelink"))); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(work, openDirFlags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var stop atomic.Bool
	var swaps atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			_ = unix.Renameat2(fd, "dir", fd, "link", unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(fd, "file", fd, "filelink", unix.RENAME_EXCHANGE)
			swaps.Add(1)
		}
	})
	secretDigest := DigestOf([]byte("host secret"))
	for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end) || swaps.Load() < 1000; {
		res := snapshot(t, s, work, "k")
		err := s.Walk(t.Context(), res.Tree, "", func(path string, x Entry) error {
			if x.Digest == secretDigest {
				return fmt.Errorf("%s holds the secret", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if has, _ := s.Has(t.Context(), secretDigest); has {
		t.Error("the secret is in the store")
	}
}

// TestChurn: files and directories vanish and appear during the walk; the
// snapshot succeeds, and what it says is readable.
func TestChurn(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{Workers: 4})
	work := t.TempDir()
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				d := filepath.Join(work, fmt.Sprint("d", (i+w)%7))
				_ = os.MkdirAll(filepath.Join(d, "sub"), 0o755)
				_ = os.WriteFile(filepath.Join(d, "sub", fmt.Sprint(i%50)), fmt.Append(nil, i), 0o644)
				_ = os.Link(filepath.Join(d, "sub", fmt.Sprint(i%50)), filepath.Join(d, "ln"))
				if i%13 == 0 {
					_ = os.RemoveAll(d)
				}
			}
		})
	}
	for i := range 60 {
		res := snapshot(t, s, work, "k")
		commit(t, s, "ws", res.Tree, fmt.Sprint(i))
	}
	stop.Store(true)
	wg.Wait()
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
	if a, b := snapshot(t, s, work, "k"), snapshot(t, s, work, ""); a.Tree != b.Tree {
		t.Error("the cache led to another tree")
	}
}

func TestSnapshotLimits(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	for i := range 5 {
		writeFile(t, filepath.Join(work, "d", fmt.Sprint(i)), "12345")
	}
	f, err := os.Open(work)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tc := range []struct {
		opt  SnapshotOptions
		what string
	}{
		{SnapshotOptions{MaxFiles: 6}, ""}, {SnapshotOptions{MaxFiles: 5}, "files"},
		{SnapshotOptions{MaxBytes: 25}, ""}, {SnapshotOptions{MaxBytes: 24}, "bytes"},
	} {
		_, err := s.Snapshot(t.Context(), f, tc.opt)
		var limit *LimitError
		if tc.what == "" && err != nil || tc.what != "" && (!errors.As(err, &limit) || limit.What != tc.what || !errors.Is(err, ErrLimit)) {
			t.Errorf("%+v: %v", tc.opt, err)
		}
	}
	// A file of 8 EiB of holes costs an agent nothing; the limit is on sizes.
	huge, err := os.Create(filepath.Join(work, "huge"))
	if err != nil {
		t.Fatal(err)
	}
	defer huge.Close()
	if err := huge.Truncate(1 << 42); err != nil {
		t.Skipf("no sparse file of 4 TiB here: %v", err)
	}
	if _, err := s.Snapshot(t.Context(), f, SnapshotOptions{MaxBytes: 1 << 30}); !errors.Is(err, ErrLimit) {
		t.Errorf("huge file: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Snapshot(ctx, f, SnapshotOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("huge file without a limit: %v", err)
	}
}

func TestDepthLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 4000 directories")
	}
	s := openStore(t, t.TempDir(), Config{})
	root := filepath.Join(t.TempDir(), "deep")
	makeDeep(t, root, "d", maxDepth)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if res := snapshot(t, s, root, ""); res.Dirs != 2*maxDepth {
		t.Errorf("stats %+v", res.TreeStats)
	}
	parent, err := os.Open(filepath.Dir(root))
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	// What lies deeper is skipped and told; it does not fail the snapshot (F27).
	res, err := s.Snapshot(t.Context(), parent, SnapshotOptions{CacheKey: "deep"})
	if err != nil || res.TreeStats.Skipped != 2 || len(res.Skipped) != 2 || res.Skipped[0].Reason != SkipTooDeep || res.Skipped[0].Kind != SkipDir {
		t.Fatalf("one level more: %+v, %v", res.TreeStats, err)
	}
	again, err := s.Snapshot(t.Context(), parent, SnapshotOptions{CacheKey: "deep"})
	if err != nil || again.Tree != res.Tree {
		t.Errorf("again: %v, %v; want %v", again.Tree, err, res.Tree)
	}
}

// TestMountsAreSkipped: neither another file system nor a bind mount of the
// same one is entered.
func TestMountsAreSkipped(t *testing.T) {
	requireRoot(t)
	s := openStore(t, t.TempDir(), Config{})
	work, outside := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(outside, "f"), "outside")
	for _, name := range []string{"tmpfs", "bind"} {
		if err := os.Mkdir(filepath.Join(work, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("none", filepath.Join(work, "tmpfs"), "tmpfs", 0, ""); err != nil {
		missing(t, fmt.Sprintf("cannot mount here: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(work, "tmpfs"), unix.MNT_DETACH) })
	if err := unix.Mount(outside, filepath.Join(work, "bind"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(work, "bind"), unix.MNT_DETACH) })
	res := snapshot(t, s, work, "")
	if len(res.Skipped) != 2 || res.Skipped[0] != (Skipped{"bind", SkipDir, SkipMount}) || res.Skipped[1] != (Skipped{"tmpfs", SkipDir, SkipMount}) {
		t.Errorf("skipped %+v", res.Skipped)
	}
	if has, _ := s.Has(t.Context(), DigestOf([]byte("outside"))); has {
		t.Error("the walk entered the bind mount")
	}
}

func TestSetIDBitsAreDropped(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	work := t.TempDir()
	writeFile(t, filepath.Join(work, "suid"), "x")
	if err := os.Chmod(filepath.Join(work, "suid"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	for range 2 { // from the cache as well
		res := snapshot(t, s, work, "k")
		if len(res.Dropped) != 1 || res.Dropped[0].Path != "suid" || res.Dropped[0].Mode&0o7777 != 0o4755 {
			t.Errorf("dropped %+v", res.Dropped)
		}
		x, err := s.Lookup(t.Context(), res.Tree, "suid")
		if err != nil || x.Mode != 0o755 {
			t.Errorf("entry %+v, %v", x, err)
		}
	}
}

// TestDeletedRoot: a directory that was deleted, before or during the
// snapshot, is not an empty tree.
func TestDeletedRoot(t *testing.T) {
	base := t.TempDir()
	work := filepath.Join(base, "work")
	s := openStore(t, filepath.Join(base, "store"), Config{MaxPackBytes: 1, faults: func(step string) error {
		if step == "create pack" { // the first file was read
			return os.RemoveAll(work)
		}
		return nil
	}})
	for _, when := range []string{"during", "before"} {
		writeFile(t, filepath.Join(work, "f"), "content")
		dir, err := os.Open(work)
		if err != nil {
			t.Fatal(err)
		}
		if when == "before" {
			if err := os.RemoveAll(work); err != nil {
				t.Fatal(err)
			}
		}
		if res, err := s.Snapshot(t.Context(), dir, SnapshotOptions{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("deleted %s the snapshot: %+v, %v", when, res, err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
