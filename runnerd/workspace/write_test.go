package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

func TestWriteModes(t *testing.T) {
	w := newBed(t).workspace(t)
	if err := put(t, w, Write{Path: "a/b/c.txt"}, "one"); err != nil {
		t.Fatal(err)
	}
	if err := put(t, w, Write{Path: "a/b/c.txt"}, "two"); reason(err) != problem.AlreadyExists {
		t.Fatalf("write over a file: %v", err)
	}
	if err := put(t, w, Write{Path: "a/b/c.txt", IfExists: IfExistsAppend}, "+two"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(w.Tree() + "/a/b/c.txt"); string(got) != "one+two" {
		t.Fatalf("after append: %q", got)
	}
	if err := os.Chmod(w.Tree()+"/a/b/c.txt", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := put(t, w, Write{Path: "a/b/c.txt", IfExists: IfExistsOverwrite}, "three"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(w.Tree() + "/a/b/c.txt")
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Fatalf("overwrite changed the mode: %v %v", info.Mode(), err)
	}
	if w.UID >= 0 {
		for _, p := range []string{"", "/a", "/a/b", "/a/b/c.txt"} {
			var st unix.Stat_t
			if err := unix.Lstat(w.Tree()+p, &st); err != nil || int(st.Uid) != w.UID {
				t.Errorf("%q belongs to %d, want %d (%v)", p, st.Uid, w.UID, err)
			}
		}
	}
	if left, _ := os.ReadDir(w.dir + "/tmp"); len(left) != 0 {
		t.Fatalf("staged files stay behind: %v", left)
	}
}

func TestWriteRefuses(t *testing.T) {
	w := newBed(t).workspace(t)
	if err := os.Mkdir(w.Tree()+"/dir", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(w.Tree()+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", w.Tree()+"/out"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/skerry-must-not-appear", w.Tree()+"/dangling"); err != nil {
		t.Fatal(err)
	}
	zero, _ := cas.ParseDigest(strings.Repeat("0", 63) + "1")
	for _, c := range []struct {
		req    Write
		reason string
	}{
		{Write{Path: "../x"}, problem.PathOutside},
		{Write{Path: "/etc/x"}, problem.PathOutside},
		{Write{Path: ""}, problem.InvalidArgument},
		{Write{Path: "dir", IfExists: IfExistsOverwrite}, problem.NotAFile},
		{Write{Path: "fifo", IfExists: IfExistsAppend}, problem.NotAFile},
		{Write{Path: "out/skerry-must-not-appear"}, problem.PathOutside},
		{Write{Path: "dangling", IfExists: IfExistsOverwrite}, problem.NotAFile},
		{Write{Path: "fifo/x"}, problem.NotAFile},
		{Write{Path: ".git/config"}, problem.PathSensitive},
		{Write{Path: "x", IfExists: "maybe"}, problem.InvalidArgument},
		{Write{Path: "x", Mode: 0o4755}, problem.InvalidArgument},
		{Write{Path: "x", Digest: zero}, problem.DigestMismatch},
	} {
		err := put(t, w, c.req, "data")
		if p := problem.Of(err); p == nil || p.Reason != c.reason || p.Field == "" {
			t.Errorf("%+v: %v (%v), want %s with a field", c.req, err, p, c.reason)
		}
		if err != nil && strings.Contains(err.Error(), w.dir) {
			t.Errorf("%+v: the error shows a host path: %v", c.req, err)
		}
	}
	if err := put(t, w, Write{Path: "big"}, strings.Repeat("x", 1<<20+1)); reason(err) != problem.LimitExceeded {
		t.Errorf("over max_file_bytes: %v", err)
	}
	if _, err := os.Lstat("/etc/skerry-must-not-appear"); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("a write went outside")
	}
}

func TestF17WritesStayInsideUnderASwap(t *testing.T) {
	w := newBed(t).workspace(t)
	outside := t.TempDir()
	dir, link := w.Tree()+"/d", w.Tree()+"/l"
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	})
	inside := 0
	for i := range 2000 {
		err := put(t, w, Write{Path: fmt.Sprintf("d/sub%d/f", i%5), IfExists: IfExistsOverwrite}, "x")
		if err == nil {
			inside++
		}
	}
	close(stop)
	wg.Wait()
	if got, _ := os.ReadDir(outside); len(got) != 0 {
		t.Fatalf("%d entries landed outside", len(got))
	}
	if inside == 0 {
		t.Fatal("no write succeeded: the test shows nothing")
	}
}

func TestFloorHoldsThroughSymlinks(t *testing.T) {
	w := newBed(t).workspace(t)
	for dir, link := range map[string]string{".git/hooks": "hooks", ".ssh": "keys", "plain": "fine"} {
		if err := os.MkdirAll(filepath.Join(w.Tree(), dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, filepath.Join(w.Tree(), link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"hooks/pre-commit", "keys/authorized_keys", "keys/deep/er"} {
		var typed *problem.Error
		if err := put(t, w, Write{Path: p}, "x"); !errors.As(err, &typed) || typed.Reason != problem.PathSensitive {
			t.Errorf("%s: %v, want %s", p, err, problem.PathSensitive)
		}
		if _, err := os.Stat(filepath.Join(w.Tree(), p)); err == nil {
			t.Errorf("%s was written all the same", p)
		}
	}
	if err := put(t, w, Write{Path: "fine/sub/a"}, "x"); err != nil {
		t.Errorf("write through an innocent symlink: %v", err)
	}
}

func TestZeroDigestIsNoSnapshot(t *testing.T) {
	w := newBed(t).workspace(t)
	commit(t, w, "test:")
	var typed *problem.Error
	if _, err := w.View(t.Context(), "sha256:"+strings.Repeat("0", 64)); !errors.As(err, &typed) || typed.Reason != problem.NotFound {
		t.Fatalf("View: %v, want %s", err, problem.NotFound)
	}
}
