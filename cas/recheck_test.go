package cas

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forge makes the stat cache of key "k" vouch for what the file at the root
// is now with what it was.
func forge(t *testing.T, s *Store, work, name string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(work, name), &st); err != nil {
		t.Fatal(err)
	}
	s.caches.mu.Lock()
	defer s.caches.mu.Unlock()
	root := *s.caches.byKey["k"].root
	root.entries = slices.Clone(root.entries)
	for i := range root.entries {
		if root.entries[i].name == name {
			root.entries[i].id = statIDOf(&st)
		}
	}
	s.caches.byKey["k"].root = &root
}

// TestRecheckFindsFalseCache: a cache that vouches for a file that has other
// content is found out, told, and does not get into the tree; with the check
// off it would.
func TestRecheckFindsFalseCache(t *testing.T) {
	for _, size := range []int{20, 3 << 20} {
		for _, trust := range []bool{false, true} {
			t.Run(fmt.Sprintf("size=%d/trust=%v", size, trust), func(t *testing.T) {
				s := openStore(t, t.TempDir(), Config{recheckEvery: 1})
				work := t.TempDir()
				writeFile(t, filepath.Join(work, "f"), string(randomBytes(1, size)))
				writeFile(t, filepath.Join(work, "other"), "at rest")
				waitUntilSettled(t, s, work)
				if res := snapshot(t, s, work, "k"); res.CacheMismatches != 0 || res.Rechecked != 2 {
					t.Errorf("at rest: %+v", res)
				}
				edited := randomBytes(2, size)
				writeFile(t, filepath.Join(work, "f"), string(edited))
				old := time.Unix(1e9, 0)
				if err := os.Chtimes(filepath.Join(work, "f"), old, old); err != nil {
					t.Fatal(err)
				}
				forge(t, s, work, "f")
				dir, err := os.Open(work)
				if err != nil {
					t.Fatal(err)
				}
				defer dir.Close()
				res, err := s.Snapshot(t.Context(), dir, SnapshotOptions{CacheKey: "k", TrustCache: trust})
				if err != nil {
					t.Fatal(err)
				}
				right := string(readCommitted(t, s, res.Tree, "f")) == string(edited)
				if right == trust {
					t.Errorf("the tree holds the file's content: %v", right)
				}
				if !trust && (res.CacheMismatches != 1 || res.CacheMismatch != "f" || res.NewFiles != 2) {
					t.Errorf("result %+v", res)
				}
				if res := snapshot(t, s, work, "k"); !trust && res.CacheMismatches != 0 {
					t.Errorf("afterwards: %+v", res)
				}
			})
		}
	}
}

// TestRecheckIsBounded: however many files there are, a snapshot reads few.
func TestRecheckIsBounded(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{recheckEvery: 1})
	work := t.TempDir()
	for i := range 300 {
		writeFile(t, filepath.Join(work, fmt.Sprint(i)), fmt.Sprint("content ", i))
	}
	waitUntilSettled(t, s, work)
	if res := snapshot(t, s, work, "k"); res.Rechecked != recheckFiles || res.NewFiles != 0 {
		t.Errorf("%d files read again, %d read", res.Rechecked, res.NewFiles)
	}
	for i := range 20 {
		writeFile(t, filepath.Join(work, fmt.Sprint(i)), string(randomBytes(uint64(i), 1<<20)))
	}
	waitUntilSettled(t, s, work)
	for range 5 {
		if res := snapshot(t, s, work, "k"); res.Rechecked > recheckFiles {
			t.Errorf("%d files read again", res.Rechecked)
		}
	}
	var r recheck
	r.start(&dirNode{totals: dirTotals{TreeStats: TreeStats{Files: 1000}}}, SnapshotOptions{}, 1)
	bytes := int64(0)
	for range 1000 {
		if n := (&node{id: statID{mode: unix.S_IFREG, size: 1 << 20}}); r.chosen(n) {
			bytes += n.id.size
		}
	}
	if bytes != recheckBytes {
		t.Errorf("%d bytes chosen", bytes)
	}
}
