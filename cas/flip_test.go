package cas

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// flipStore makes a store of one sealed pack and returns its objects.
func flipStore(t *testing.T) (dir string, objects map[Digest]loc) {
	t.Helper()
	dir, work := t.TempDir(), t.TempDir()
	s := openStore(t, dir, Config{})
	writeFile(t, filepath.Join(work, "sub/file"), "some content")
	writeFile(t, filepath.Join(work, "other"), "other content")
	commit(t, s, "ws", snapshot(t, s, work, "").Tree, "x")
	if err := s.Rebuild(t.Context()); err != nil { // which seals it
		t.Fatal(err)
	}
	objects = make(map[Digest]loc)
	for _, run := range s.index.sealedRuns() {
		for i := range run.count {
			objects[run.entry(i).digest] = run.entry(i).loc
		}
	}
	if err := s.Close(); err != nil || len(objects) != 5 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	return dir, objects
}

// TestFlipEveryByteOfAPack: each flipped bit is found and its object named,
// and every other object stays readable.
func TestFlipEveryByteOfAPack(t *testing.T) {
	dir, objects := flipStore(t)
	pack := onlyPack(t, dir, 1)
	info, err := os.Stat(pack)
	if err != nil {
		t.Fatal(err)
	}
	for at := range info.Size() {
		flipBit(t, pack, at)
		s, err := Open(t.Context(), dir, Config{})
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		rep := verify(t, s)
		if len(rep.Damaged) != 1 {
			t.Fatalf("byte %d: damaged %+v", at, rep.Damaged)
		}
		hit := rep.Damaged[0]
		for d, l := range objects {
			inside := at >= l.off && at < l.off+recordHeaderSize+int64(l.stored)
			_, err := s.GetBytes(t.Context(), d)
			if inside != (err != nil) || inside && (hit.Digest != d || hit.Offset != l.off || !errors.Is(err, ErrCorrupt)) {
				t.Fatalf("byte %d: object %s at %d, inside %v: %v; named %+v", at, d, l.off, inside, err, hit)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		flipBit(t, pack, at)
	}
}

// TestFlipEveryByteOfAnIndex: a flipped bit in an index run costs a scan.
func TestFlipEveryByteOfAnIndex(t *testing.T) {
	dir, objects := flipStore(t)
	path := filepath.Join(dir, "index", indexName(1, 1))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range int64(len(good)) {
		flipBit(t, path, at)
		s, err := Open(t.Context(), dir, Config{})
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		for d := range objects {
			if _, err := s.GetBytes(t.Context(), d); err != nil {
				t.Fatalf("byte %d: %v", at, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		// The last pack without a good run is open again; its run comes when it
		// is sealed the next time.
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
