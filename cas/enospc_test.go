package cas

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk (F29): when the disk is full, writes fail and say so; nothing
// that succeeded is lost, and the store goes on when there is room again.
func TestFullDisk(t *testing.T) {
	requireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=4m"); err != nil {
		missing(t, fmt.Sprintf("cannot mount here: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir, filler := filepath.Join(disk, "store"), filepath.Join(disk, "filler")
	s, err := Open(t.Context(), dir, Config{})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filler, string(make([]byte, 1<<20)))
	var kept [][]byte
	for i := 0; err == nil && i < 1000; i++ {
		size := 9_000
		if i%5 == 0 {
			size = 400_000 // past the write buffer
		}
		content := randomBytes(uint64(i), size)
		if _, err = s.PutBytes(t.Context(), content); err == nil {
			kept = append(kept, content)
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	check := func(s *Store) {
		t.Helper()
		for i, content := range kept {
			if got, err := s.GetBytes(t.Context(), DigestOf(content)); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("object %d: %d bytes, %v", i, len(got), err)
			}
		}
	}
	check(s)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutBytes(t.Context(), []byte("room again")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Sync(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Config{})
	check(s)
	if rep := verify(t, s); !rep.OK() || rep.Records != int64(len(kept)+1) {
		t.Errorf("verify: %+v", rep)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCollectOnFullDisk: a collection frees space when there is none left,
// and the store goes on.
func TestCollectOnFullDisk(t *testing.T) {
	requireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=80m"); err != nil {
		missing(t, fmt.Sprintf("cannot mount here: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir, work := filepath.Join(disk, "store"), t.TempDir()
	s, err := Open(t.Context(), dir, Config{MaxPackBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.reservePath()); err != nil || info.Size() != reserveBytes {
		t.Fatalf("reserve: %v, %v", info, err)
	}
	writeFile(t, filepath.Join(work, "f"), "kept")
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	for i := 0; err == nil && i < 1000; i++ {
		_, err = s.PutBytes(t.Context(), randomBytes(uint64(i), 300_000))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	rep, err := s.GC(t.Context(), GCOptions{NoGrace: true})
	if err != nil || !rep.LowSpace || rep.BytesFreed < 50<<20 {
		t.Fatalf("collection: %+v, %v", rep, err)
	}
	if got := readCommitted(t, s, h.Tree, "f"); string(got) != "kept" {
		t.Errorf("content %q", got)
	}
	writeFile(t, filepath.Join(work, "g"), string(randomBytes(1, 5<<20)))
	commit(t, s, "ws", snapshot(t, s, work, "").Tree, "y")
	if rep := verify(t, s); !rep.OK() {
		t.Errorf("verify: %+v", rep)
	}
	if _, err := os.Stat(s.reservePath()); err != nil {
		t.Errorf("the reserve was not set aside again: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
