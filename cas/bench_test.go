package cas

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func benchTree(b *testing.B, files int) string {
	b.Helper()
	dir := b.TempDir()
	for i := range files {
		writeFile(b, filepath.Join(dir, fmt.Sprintf("d%03d/f%04d", i/100, i)), fmt.Sprintf("content of file %d", i))
	}
	return dir
}

func benchSnapshot(b *testing.B, s *Store, dir *os.File) SnapshotResult {
	b.Helper()
	res, err := s.Snapshot(b.Context(), dir, SnapshotOptions{CacheKey: "k"})
	if err != nil {
		b.Fatal(err)
	}
	return res
}

// BenchmarkSnapshot measures a workspace of 20, 1000 and 100,000 files of
// which none or ten change between snapshots.
func BenchmarkSnapshot(b *testing.B) {
	for _, files := range []int{20, 1000, 100_000} {
		for _, changed := range []int{0, 10} {
			b.Run(fmt.Sprintf("files=%d/changed=%d", files, changed), func(b *testing.B) {
				s := openStore(b, b.TempDir(), Config{})
				path := benchTree(b, files)
				dir, err := os.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				defer dir.Close()
				want := benchSnapshot(b, s, dir)
				benchSnapshot(b, s, dir) // what was racy is read once more
				round := 0
				for b.Loop() {
					round++
					b.StopTimer()
					for i := range changed {
						writeFile(b, filepath.Join(path, fmt.Sprintf("d000/f%04d", i)), fmt.Sprintf("round %d file %d", round, i))
					}
					b.StartTimer()
					got := benchSnapshot(b, s, dir)
					if (got.Tree == want.Tree) != (changed == 0) {
						b.Fatal("wrong tree")
					}
				}
			})
		}
	}
}

// BenchmarkSnapshotFirst measures reading 10,000 small files into an empty
// store.
func BenchmarkSnapshotFirst(b *testing.B) {
	dir, err := os.Open(benchTree(b, 10_000))
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	for b.Loop() {
		s, err := Open(b.Context(), b.TempDir(), Config{})
		if err != nil {
			b.Fatal(err)
		}
		benchSnapshot(b, s, dir)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommit measures a durable commit, of a tree that the store has and
// of one with a small object that it has not.
func BenchmarkCommit(b *testing.B) {
	for _, fresh := range []bool{false, true} {
		b.Run(fmt.Sprintf("fresh=%v", fresh), func(b *testing.B) {
			s := openStore(b, b.TempDir(), Config{})
			dir := b.TempDir()
			tree := snapshot(b, s, dir, "").Tree
			commit(b, s, "h", tree, "start")
			n := 0
			for b.Loop() {
				if n++; fresh {
					if _, err := s.PutBytes(b.Context(), fmt.Appendf(nil, "object %d", n)); err != nil {
						b.Fatal(err)
					}
				}
				commit(b, s, "h", tree, fmt.Sprintf("round %d", n))
			}
		})
	}
}

// BenchmarkCommitParallel measures commits to different heads at once.
func BenchmarkCommitParallel(b *testing.B) {
	s := openStore(b, b.TempDir(), Config{})
	tree := snapshot(b, s, b.TempDir(), "").Tree
	names := make(chan string, 64)
	for i := range 64 {
		names <- fmt.Sprintf("h%d", i)
	}
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		head := <-names
		for n := 0; pb.Next(); n++ {
			if _, err := s.PutBytes(b.Context(), fmt.Appendf(nil, "%s object %d", head, n)); err != nil {
				b.Fatal(err)
			}
			commit(b, s, head, tree, fmt.Sprintf("round %d", n))
		}
		names <- head
	})
}

// BenchmarkMillionObjects puts a million distinct objects of 20 to 200 bytes
// and syncs, and tells the process's peak of memory. Run it by itself, with
// -benchtime 1x.
func BenchmarkMillionObjects(b *testing.B) {
	for b.Loop() {
		dir := b.TempDir()
		s := openStore(b, dir, Config{})
		content := make([]byte, 200)
		for i := range 1_000_000 {
			binary.LittleEndian.PutUint64(content, uint64(i))
			if _, err := s.PutBytes(b.Context(), content[:20+i*7919%181]); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
		st, err := s.Stats(b.Context())
		if err != nil || st.Objects != 1_000_000 {
			b.Fatalf("%+v, %v", st, err)
		}
		b.ReportMetric(float64(st.PackBytes>>20), "pack-MiB")
		b.ReportMetric(peakMiB(b), "peak-RSS-MiB")
	}
}

// peakMiB is the most memory that the process ever had.
func peakMiB(b *testing.B) float64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Maxrss >> 10)
}
