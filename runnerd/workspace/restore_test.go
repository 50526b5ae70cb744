package workspace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// shell runs a script in the workspace's directory as its owner would.
func shell(t testing.TB, w *Workspace, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-euc", script+"\nif [ $EUID = 0 ]; then chown -hR --reference=. .; fi")
	cmd.Dir = w.Tree()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// listing names everything in the workspace with type, mode, owner and content.
func listing(t testing.TB, w *Workspace) string {
	t.Helper()
	cmd := exec.Command("bash", "-euc", `find . -mindepth 1 -printf '%y %m %U %p %l %T@\n' | sort; find . -type f | sort | xargs -r sha256sum`)
	cmd.Dir = w.Tree()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

const scene = `rm -rf ./* ; mkdir -p d/sub empty; echo one > d/a; echo deep > d/sub/b; chmod 751 d; chmod 640 d/a
ln d/a d/hard; ln -s a d/link; echo top > top; truncate -s 1M holes; echo x >> holes`

func TestRestoreBringsEverythingBack(t *testing.T) {
	w := newBed(t).workspace(t)
	shell(t, w, scene)
	first, want := commit(t, w, "execution:1"), listing(t, w)
	shell(t, w, `rm -rf d; ln -s / d; echo changed > top; rm holes; mkdir holes; mkfifo holes/pipe; echo new > new`)
	second := commit(t, w, "execution:2")
	third, err := w.Restore(t.Context(), first.Snapshot.Digest, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := listing(t, w); got != want {
		t.Fatalf("restored:\n%s\nwas:\n%s", got, want)
	}
	if third.Snapshot.Digest != first.Snapshot.Digest || third.Snapshot.Parent != second.Snapshot.Digest || third.Snapshot.Seq != 3 {
		t.Fatalf("head %v after %v and %v", third.Snapshot, first.Snapshot, second.Snapshot)
	}
	if c, err := w.CommitOf(t.Context(), w.Head().Tree); err != nil || c.Source != "restore:"+first.Snapshot.Digest {
		t.Fatalf("source %q, %v", c.Source, err)
	}
	if _, err := w.Restore(t.Context(), second.Snapshot.Digest, ""); err != nil {
		t.Fatalf("undo: %v", err)
	}
	if left, err := filepath.Glob(w.dir + "/.skerry-restore-*"); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}

func TestRestoreOnePath(t *testing.T) {
	w := newBed(t).workspace(t)
	shell(t, w, scene)
	first, all := commit(t, w, "execution:1"), listing(t, w)
	for name, change := range map[string]string{
		"d/a":     `rm d/a; mkdir -p d/a/x; echo y > d/a/x/y`,
		"d":       `rm -rf d; echo file > d`,
		"d/link":  `rm d/link; echo file > d/link`,
		"d/sub/b": `rm -rf d/sub`,
		"holes":   `rm holes; ln -s /etc/passwd holes`,
		"empty":   `rmdir empty; ln -s / empty`,
		"top":     `echo other > top`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.Restore(t.Context(), first.Snapshot.Digest, ""); err != nil {
				t.Fatal(err)
			}
			shell(t, w, change+"; echo kept > other")
			commit(t, w, "execution:2")
			c, err := w.Restore(t.Context(), first.Snapshot.Digest, name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(w.Tree() + "/other"); err != nil {
				t.Fatal("what was not named is gone:", err)
			}
			if got := withoutTimes(listing(t, w)); got != withoutTimes(all) {
				t.Fatalf("restored:\n%s\nwas:\n%s\nchanges %v", got, all, c.Changes)
			}
		})
	}
}

// withoutTimes leaves out what the parents of restored paths may differ in,
// and that a hard link restored alone is a file of its own.
func withoutTimes(list string) string {
	var out []string
	for line := range strings.Lines(list) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && !strings.Contains(line, "  ") {
			line = line[:i]
		} else if i > 0 && len(strings.Fields(line)) > 2 {
			line = line[:i]
		}
		out = append(out, strings.TrimSpace(line))
	}
	return strings.Join(out, "\n")
}

func TestRestoreStaysInside(t *testing.T) {
	w := newBed(t).workspace(t)
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/victim", []byte("safe"), 0o644); err != nil {
		t.Fatal(err)
	}
	shell(t, w, `mkdir d; echo evil > d/victim; mkdir .git; echo x > .git/config`)
	first := commit(t, w, "execution:1")
	shell(t, w, `rm -rf d; ln -s `+outside+` d`)
	commit(t, w, "execution:2")
	for path, want := range map[string]string{
		"d/victim": problem.PathOutside, "../victim": problem.PathOutside, "/etc/passwd": problem.PathOutside,
		".git/config": problem.PathSensitive, "d/none": problem.NotFound, "": "",
	} {
		if path == "" {
			continue
		}
		if _, err := w.Restore(t.Context(), first.Snapshot.Digest, path); reason(err) != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if b, err := os.ReadFile(outside + "/victim"); err != nil || string(b) != "safe" {
		t.Fatalf("outside: %q %v", b, err)
	}
	other := newBed(t).workspace(t)
	if _, err := other.Restore(t.Context(), first.Snapshot.Digest, ""); reason(err) != problem.NotFound {
		t.Fatalf("another workspace's snapshot: %v", err)
	}
	if left, err := os.ReadDir(w.dir + "/tmp"); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}

// A crash between the two steps of an exchange leaves the directory missing
// and the old one beside: opening the workspace puts it back.
func TestInterruptedRestoreIsEnded(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	shell(t, w, scene)
	commit(t, w, "execution:1")
	want := listing(t, w)
	left := w.dir + "/.skerry-restore-" + cas.DigestOf([]byte("tree")).Hex()[:8] + "-AAAA"
	if err := os.Rename(w.Tree(), left+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(left+"/half", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(left+"/half", 0o500); err != nil {
		t.Fatal(err)
	}
	if err := w.makeDirs(); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, w); got != want {
		t.Fatalf("after the crash:\n%s\nwas:\n%s", got, want)
	}
	if left, err := filepath.Glob(w.dir + "/.skerry-restore-*"); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}

func TestRestoreNeedsNoWriteRightOnDirectories(t *testing.T) {
	w := newBed(t).workspace(t)
	t.Cleanup(func() { _ = cas.RemoveTree(w.dir) }) // the test's own cleaning is kept out by modes
	shell(t, w, `mkdir d; echo one > d/a; chmod 500 d`)
	first := commit(t, w, "execution:1")
	shell(t, w, `chmod 700 d; echo two > d/a; chmod 500 d`)
	commit(t, w, "execution:2")
	if _, err := w.Restore(t.Context(), first.Snapshot.Digest, "d"); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(w.Tree()+"/d", &st); err != nil || st.Mode&0o777 != 0o500 {
		t.Fatalf("mode %#o, %v", st.Mode, err)
	}
	if b, err := os.ReadFile(w.Tree() + "/d/a"); err != nil || string(b) != "one\n" {
		t.Fatalf("%q %v", b, err)
	}
}

func TestFileHistory(t *testing.T) {
	w := newBed(t).workspace(t)
	for i, script := range []string{`echo 0 > other`, `echo 1 > f`, `echo 2 > other`, `echo 3 > f`, `chmod 755 f`, `rm f`, `mkdir f; echo x > f/x`} {
		shell(t, w, script)
		commit(t, w, "execution:"+string(rune('0'+i)))
	}
	var got []string
	for token, pages := "", 0; ; pages++ {
		revs, next, err := w.FileHistory(t.Context(), "f", token, 2)
		if err != nil || pages > 5 {
			t.Fatal(err, pages)
		}
		for _, r := range revs {
			got = append(got, r.Change+r.Revision.Source)
			if (r.File == nil) != (r.Change == fileDeleted) {
				t.Errorf("revision %v", r)
			}
		}
		if token = next; token == "" {
			break
		}
	}
	if s := strings.Join(got, " "); s != "created6 deleted5 modified4 modified3 created1" {
		t.Fatalf("history: %s", s)
	}
	if _, _, err := w.FileHistory(t.Context(), ".ssh/id", "", 2); reason(err) != problem.PathSensitive {
		t.Fatalf("secret: %v", err)
	}
	if _, err := w.manager.store.GC(t.Context(), cas.GCOptions{NoGrace: true, Keep: func(string) int { return 4 }}); err != nil {
		t.Fatal(err)
	}
	revs, next, err := w.FileHistory(t.Context(), "f", "", 50)
	if err != nil || next != "" || len(revs) != 4 || revs[3].Change != fileKept || revs[3].File == nil {
		t.Fatalf("after a collection: %v %q %v", revs, next, err)
	}
}
