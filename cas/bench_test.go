package cas

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
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
