package workspace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	"skerry.internal/sandbox/sandboxtest"
)

// The same as an ordinary user, to whom everything in the workspace belongs.
func TestRestoresAsOrdinaryUser(t *testing.T) {
	sandboxtest.AsOrdinaryUser(t, "", "RestoreBrings|RestoreOne|RestoreStays|RestoreNeeds|InterruptedRestore|TestDelete$|TestFileHistory$")
}

// deepScene is a path longer than PATH_MAX with a directory at its end that
// keeps an ordinary user out.
const deepScene = `n=$(printf 'n%.0s' {1..200}); ( for i in {1..40}; do mkdir $n; cd $n; done; mkdir locked; echo x > locked/f; chmod 000 locked )`

func TestRestoreOverDeepLockedDirectories(t *testing.T) {
	if os.Geteuid() == 0 { // root passes every mode
		sandboxtest.AsOrdinaryUser(t, "", "^TestRestoreOverDeepLockedDirectories$")
		return
	}
	b := newBed(t)
	w := b.workspace(t)
	shell(t, w, `echo one > f`)
	first := commit(t, w, "execution:1")
	shell(t, w, deepScene)
	commit(t, w, "execution:2")
	t.Cleanup(func() { _ = cas.RemoveTree(w.dir) })
	if _, err := w.Restore(t.Context(), first.Snapshot.Digest, ""); err != nil {
		t.Errorf("restore: %v", err)
	}
	if w.Head().Tree.String() != first.Snapshot.Digest {
		t.Errorf("head %v", w.Head())
	}
	if err := w.makeDirs(); err != nil {
		t.Errorf("next start: %v", err)
	}
}

// What a restore brings back counts, as a write does.
func TestRestoreKeepsToTheQuota(t *testing.T) {
	b := newBed(t)
	b.cfg.Quota = Quota{Bytes: 1000, Entries: 10}
	w := b.workspace(t)
	shell(t, w, `mkdir d; head -c 2000 /dev/zero >d/big; echo x >small`)
	large := commit(t, w, "execution:1")
	if large.Over == nil {
		t.Fatal("not over its quota")
	}
	shell(t, w, `rm -r d`)
	small := commit(t, w, "execution:2")
	for _, path := range []string{"", "d", "d/big"} {
		_, err := w.Restore(t.Context(), large.Snapshot.Digest, path)
		if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), "workspace_bytes") {
			t.Errorf("restore of %q: %v", path, err)
		}
	}
	if w.Head().Tree.String() != small.Snapshot.Digest {
		t.Fatal("the head changed")
	}
	if _, err := w.Restore(t.Context(), large.Snapshot.Digest, "small"); err != nil {
		t.Fatal(err)
	}
	// Over the quota, what makes the workspace smaller is allowed.
	shell(t, w, `mkdir d; head -c 3000 /dev/zero >d/big`)
	commit(t, w, "execution:3")
	for _, path := range []string{"d/big", ""} {
		if _, err := w.Restore(t.Context(), large.Snapshot.Digest, path); err != nil {
			t.Errorf("restore of %q to less: %v", path, err)
		}
	}
}

func TestQuotaCountsTheDirectoriesOfAWrite(t *testing.T) {
	b := newBed(t)
	b.cfg.Quota = Quota{Entries: 4}
	w := b.workspace(t)
	err := put(t, w, Write{Path: "a/b/c/d/e"}, "x")
	if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), "workspace_entries") {
		t.Fatalf("%v", err)
	}
	for _, path := range []string{"a/b/c/d"} {
		if err := put(t, w, Write{Path: path}, "x"); err != nil {
			t.Fatal(err)
		}
		commit(t, w, "write:"+path)
	}
	if err := put(t, w, Write{Path: "a/b/c/e"}, "x"); err == nil {
		t.Fatal("a fifth entry")
	}
}

// A history is read while collections shorten it.
func TestFileHistoryBesideCollections(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	for i := range 60 {
		shell(t, w, fmt.Sprintf("echo %d > f", i))
		commit(t, w, fmt.Sprintf("execution:%d", i))
	}
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !done.Load() {
				token := ""
				for {
					revs, next, err := w.FileHistory(t.Context(), "f", token, 7)
					if err != nil && problem.Of(err).GetReason() != problem.NotFound {
						t.Errorf("%v", err)
						return
					}
					if err != nil || next == "" || len(revs) == 0 {
						break
					}
					token = next
				}
			}
		})
	}
	for keep := 58; keep >= 2; keep -= 2 {
		if _, err := b.store.GC(t.Context(), cas.GCOptions{NoGrace: true, Keep: func(string) int { return keep }}); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	readers.Wait()
}

// What is no file, directory or symlink is in no snapshot.
func TestRestoreOfWhatIsNoFile(t *testing.T) {
	w := newBed(t).workspace(t)
	shell(t, w, `mkdir d; mkfifo d/pipe; echo x >d/$'bad\xff'; ln -s nowhere d/dangling`)
	first := commit(t, w, "execution:1")
	want := listing(t, w)
	for _, path := range []string{"d/pipe", "d/none", "none/x", "d/dangling/x"} {
		_, err := w.Restore(t.Context(), first.Snapshot.Digest, path)
		if p := problem.Of(err); p.GetReason() != problem.NotFound || p.GetField() != "path" {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got := listing(t, w); got != want {
		t.Fatalf("%s\nwas\n%s", got, want)
	}
	shell(t, w, `rm -r d; ln -s / d`)
	commit(t, w, "execution:2")
	for _, path := range []string{"d/dangling", "d/bad\xff"} {
		_, err := w.Restore(t.Context(), first.Snapshot.Digest, path)
		if p := problem.Of(err); p.GetReason() != problem.PathOutside || p.GetField() != "path" {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left, err := os.ReadDir(w.dir + "/tmp"); err != nil || len(left) > 0 {
		t.Errorf("left %v %v", left, err)
	}
}

// A collection cuts a history, and for a while older commits are still there.
func TestHistoryBehindACollection(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	var digests []string
	for i := range 12 {
		shell(t, w, fmt.Sprintf("echo %d > f", i))
		digests = append(digests, commit(t, w, fmt.Sprintf("execution:%d", i)).Snapshot.Digest)
		if i%2 == 0 {
			continue
		}
		if _, err := b.store.GC(t.Context(), cas.GCOptions{Keep: func(string) int { return 2 }}); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{1, 2, 3, 256} {
			token := ""
			for {
				_, next, err := w.History(t.Context(), token, limit)
				if err != nil {
					t.Fatalf("commit %d, pages of %d: %v", i, limit, err)
				}
				if token = next; token == "" {
					break
				}
			}
		}
		for _, digest := range digests {
			if _, err := w.View(t.Context(), digest); err != nil && problem.Of(err).GetReason() != problem.NotFound {
				t.Fatalf("commit %d: %v", i, err)
			}
		}
	}
}

// A restore for which the disk has no room changes nothing and says so.
func TestRestoreOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	b := newBed(t)
	w := b.workspace(t)
	if err := unix.Mount("small", w.dir, "tmpfs", 0, "size=3m,mode=711"); err != nil {
		if os.Getenv("SKERRY_REQUIRE_PROBES") == "1" {
			t.Fatal(err)
		}
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.dir, unix.MNT_DETACH) })
	if err := w.makeDirs(); err != nil {
		t.Fatal(err)
	}
	shell(t, w, `head -c 1M /dev/urandom >one`)
	first := commit(t, w, "execution:1")
	shell(t, w, `rm one; head -c 2500K /dev/zero >two`)
	second, want := commit(t, w, "execution:2"), listing(t, w)
	for _, path := range []string{"", "one"} {
		_, err := w.Restore(t.Context(), first.Snapshot.Digest, path)
		if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), "disk space") {
			t.Errorf("restore of %q: %v", path, err)
		}
	}
	if got := listing(t, w); got != want || w.Head().Tree.String() != second.Snapshot.Digest {
		t.Errorf("%s\nwas\n%s", got, want)
	}
	if left, err := filepath.Glob(w.dir + "/.skerry-*"); err != nil || len(left) > 0 {
		t.Errorf("left %v %v", left, err)
	}
	if left, err := os.ReadDir(w.dir + "/tmp"); err != nil || len(left) > 0 {
		t.Errorf("left %v %v", left, err)
	}
}
