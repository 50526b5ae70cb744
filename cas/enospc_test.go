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

// fullDisk mounts a small file system of its own.
func fullDisk(t *testing.T, options string) string {
	t.Helper()
	requireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, options); err != nil {
		missing(t, fmt.Sprintf("cannot mount here: %v", err))
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	return disk
}

// fill leaves no block of the disk free.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	for err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCollectTinyObjectsOnFullDisk: a collection works although the open pack
// holds so many objects that its index run takes megabytes.
func TestCollectTinyObjectsOnFullDisk(t *testing.T) {
	disk := fullDisk(t, "size=120m")
	s := openStore(t, filepath.Join(disk, "store"), Config{})
	for i := range maxOpenObjects - 10 {
		if _, err := s.PutBytes(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(disk, "filler"))
	rep, err := s.GC(t.Context(), GCOptions{NoGrace: true})
	if err != nil || !rep.LowSpace || rep.Removed != maxOpenObjects-10 || rep.BytesFreed < 16<<20 {
		t.Errorf("collection: %+v, %v", rep, err)
	}
	if err := s.Close(); err != nil { // before the disk goes
		t.Fatal(err)
	}
}

// TestCollectWithoutInodes: likewise when inodes are what the disk lacks.
func TestCollectWithoutInodes(t *testing.T) {
	disk := fullDisk(t, "size=120m,nr_inodes=200")
	s := openStore(t, filepath.Join(disk, "store"), Config{})
	for i := range 100 {
		if _, err := s.PutBytes(t.Context(), randomBytes(uint64(i), 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(disk, fmt.Sprint(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	rep, err := s.GC(t.Context(), GCOptions{NoGrace: true})
	if err != nil || rep.Removed != 100 || rep.PacksRemoved != 1 {
		t.Errorf("collection: %+v, %v", rep, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenOnFullDiskAfterACollection: a collection that could not write the
// index anew does not keep a full store from being opened, read and collected.
func TestOpenOnFullDiskAfterACollection(t *testing.T) {
	disk, work := fullDisk(t, "size=100m"), t.TempDir()
	dir := filepath.Join(disk, "store")
	full := false
	s := openStore(t, dir, Config{faults: func(step string) error {
		if full && step == "thin index run" {
			return unix.ENOSPC
		}
		return nil
	}})
	for i := range 20_000 {
		if _, err := s.PutBytes(t.Context(), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(work, "f"), string(randomBytes(1, 1<<20)))
	h := commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	full = true
	few := GCOptions{NoGrace: true, RewriteBelow: 1}
	if _, err := s.GC(t.Context(), few); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	s = openStore(t, dir, Config{})
	if has, err := s.Has(t.Context(), DigestOf([]byte("1"))); has || err != nil {
		t.Errorf("a collected object: %v, %v", has, err)
	}
	if rep := verify(t, s); !rep.OK() || len(readCommitted(t, s, h.Tree, "f")) != 1<<20 {
		t.Errorf("on the full disk: %+v", rep)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	collect(t, s, few)
	if rep := verify(t, s); !rep.OK() || s.index.hasDead() {
		t.Errorf("with room again: %+v", rep)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
