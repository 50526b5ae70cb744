package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
)

type bed struct {
	*Manager
	dir string
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, err := cas.Open(t.Context(), filepath.Join(dir, "cas"), cas.Config{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	j, err := journal.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	cfg := Config{MaxQueue: 8, MaxChangedPaths: 10, MaxFileBytes: 1 << 20}
	if os.Geteuid() == 0 {
		cfg.FirstUID, cfg.UIDs = 2_000_000_000, 10
	}
	m, err := NewManager(filepath.Join(dir, "ws"), store, j, cfg, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return &bed{Manager: m, dir: dir}
}

func (b *bed) workspace(t testing.TB) *Workspace {
	t.Helper()
	w, err := b.Get(t.Context(), ids.New(ids.Workspace, 0, time.Now()).String(), "agent", 1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func put(t testing.TB, w *Workspace, req Write, content string) error {
	t.Helper()
	s, err := w.Stage()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Write([]byte(content)); err != nil {
		return err
	}
	return s.Install(t.Context(), req)
}

func commit(t testing.TB, w *Workspace, source string) Committed {
	t.Helper()
	c, err := w.Commit(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func reason(err error) string { return problem.Of(err).GetReason() }

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

// A directory is swapped for a symlink to the outside in a loop while writes go
// through it: none may land outside.
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

func TestCommitTellsChangesAndLineage(t *testing.T) {
	w := newBed(t).workspace(t)
	first := commit(t, w, "execution:1")
	if first.Snapshot.Seq != 1 || first.Snapshot.Parent != "" {
		t.Fatalf("first snapshot %v", first.Snapshot)
	}
	for i := range 12 {
		if err := put(t, w, Write{Path: fmt.Sprintf("f%02d", i)}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	second := commit(t, w, "write:f")
	ch := second.Changes
	if ch.CreatedCount != 12 || len(ch.Created) != 10 || !ch.Truncated || ch.Created[0] != "f00" {
		t.Fatalf("changes %v", ch)
	}
	if second.Snapshot.Parent != first.Snapshot.Digest {
		t.Fatalf("parent %s, want %s", second.Snapshot.Parent, first.Snapshot.Digest)
	}
	if err := put(t, w, Write{Path: "f00", IfExists: IfExistsOverwrite}, "y"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.Tree() + "/f01"); err != nil {
		t.Fatal(err)
	}
	third := commit(t, w, "execution:2")
	if ch := third.Changes; len(ch.Modified) != 1 || len(ch.Deleted) != 1 || ch.CreatedCount != 0 {
		t.Fatalf("changes %v", ch)
	}
	again := commit(t, w, "execution:2")
	if again.Snapshot.Seq != 3 || again.Snapshot.Parent != second.Snapshot.Digest || len(again.Changes.Modified) != 1 {
		t.Fatalf("the same source again: %v %v", again.Snapshot, again.Changes)
	}
	page, next, err := w.History(t.Context(), "", 2)
	if err != nil || len(page) != 2 || page[0].Seq != 3 || next == "" {
		t.Fatalf("history %v %q %v", page, next, err)
	}
	page, next, err = w.History(t.Context(), next, 2)
	if err != nil || len(page) != 1 || page[0].Seq != 1 || next != "" {
		t.Fatalf("history page 2: %v %q %v", page, next, err)
	}
}

func TestI4ReadsSeeOnlyWhatIsCommitted(t *testing.T) {
	w := newBed(t).workspace(t)
	if err := put(t, w, Write{Path: "f"}, "committed"); err != nil {
		t.Fatal(err)
	}
	old := commit(t, w, "write:f").Snapshot.Digest
	if err := os.WriteFile(w.Tree()+"/f", []byte("half-writ"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, w, "", "f"); got != "committed" {
		t.Fatalf("read %q", got)
	}
	commit(t, w, "execution:1")
	if got := readAll(t, w, "", "f"); got != "half-writ" {
		t.Fatalf("head has %q", got)
	}
	if got := readAll(t, w, old, "f"); got != "committed" {
		t.Fatalf("old snapshot has %q", got)
	}
	if _, err := w.View(t.Context(), cas.DigestOf([]byte("other")).String()); reason(err) != problem.NotFound {
		t.Fatalf("a foreign digest: %v", err)
	}
}

func readAll(t *testing.T, w *Workspace, snapshot, path string) string {
	t.Helper()
	v, err := w.View(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := v.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestF17ReadsStayInside(t *testing.T) {
	w := newBed(t).workspace(t)
	for link, target := range map[string]string{"abs": "/etc/passwd", "up": "../../../../etc/passwd", "dirout": "/etc", "loop": "loop",
		"in": "real", "secret": ".ssh/id"} {
		if err := os.Symlink(target, w.Tree()+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(w.Tree()+"/real", []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.Tree()+"/.ssh", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.Tree()+"/.ssh/id", []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	commit(t, w, "execution:1")
	v, err := w.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"abs": problem.PathOutside, "up": problem.PathOutside, "dirout/passwd": problem.PathOutside,
		"loop": problem.InvalidArgument, "secret": problem.PathSensitive, ".SSH/id": problem.PathSensitive, "nothing": problem.NotFound,
		"real/x": problem.NotFound} {
		if _, _, err := v.Open(t.Context(), path); reason(err) != want {
			t.Errorf("open %s: %v, want %s", path, err, want)
		}
	}
	if got := readAll(t, w, "", "in"); got != "hello" {
		t.Fatalf("a symlink inside gives %q", got)
	}
	files, more, err := v.List(t.Context(), List{Recursive: true, Limit: 100})
	if err != nil || more {
		t.Fatal(err, more)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Path, ".ssh") {
			t.Errorf("the list shows %s", f.Path)
		}
		if f.Path == "abs" && (f.Type != "symlink" || f.SymlinkTarget != "/etc/passwd") {
			t.Errorf("symlink listed as %v", f)
		}
	}
}

func TestListPages(t *testing.T) {
	w := newBed(t).workspace(t)
	for _, p := range []string{"a/b/c", "a/d"} {
		if err := put(t, w, Write{Path: p}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"a!", "b\xff", "z"} {
		if err := os.WriteFile(w.Tree()+"/"+p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"a", "a/b", "a/b/c", "a/d", "a!", "b\xff", "z"}
	commit(t, w, "execution:1")
	v, err := w.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit <= len(want); limit++ {
		var got []string
		after := ""
		for {
			page, more, err := v.List(t.Context(), List{Recursive: true, Limit: limit, After: after})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range page {
				after = f.Path
				if f.RawPath != nil {
					after = string(f.RawPath)
				}
				got = append(got, after)
			}
			if !more {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("limit %d: %q, want %q", limit, got, want)
		}
	}
}

func TestReadTextPages(t *testing.T) {
	w := newBed(t).workspace(t)
	var lines []string
	for i := range 5000 {
		lines = append(lines, fmt.Sprintf("line %d äöü", i))
	}
	text := strings.Join(lines, "\n")
	for path, content := range map[string]string{"t": text, "long": strings.Repeat("ä", 60<<10) + "\nend\n", "bin": "a\x00b", "latin": "caf\xe9", "empty": ""} {
		if err := put(t, w, Write{Path: path}, content); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, w, "write:t")
	v, err := w.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for offset, pages := uint64(1), 0; offset != 0; pages++ {
		page, err := v.ReadText(t.Context(), "t", offset, MaxPageLines)
		if err != nil || len(page.Text) > MaxPageBytes || page.Lines > MaxPageLines || pages > 20 {
			t.Fatal(err, len(page.Text), page.Lines)
		}
		got.WriteString(page.Text)
		offset = page.NextOffset
	}
	if got.String() != text {
		t.Fatal("pages do not add up to the file")
	}
	long, err := v.ReadText(t.Context(), "long", 1, 10)
	if err != nil || long.OmittedBytes == 0 || strings.ContainsRune(long.Text, '\uFFFD') || long.NextOffset != 2 {
		t.Fatalf("long line: omitted %d next %d %v", long.OmittedBytes, long.NextOffset, err)
	}
	for path, binary := range map[string]bool{"bin": true, "latin": true, "empty": false} {
		page, err := v.ReadText(t.Context(), path, 1, 10)
		if err != nil || page.Binary != binary || page.Text != "" || page.File.Digest == "" {
			t.Errorf("%s: %v %v", path, page, err)
		}
	}
	tail, err := v.ReadText(t.Context(), "t", 5000, 10)
	if err != nil || tail.Text != lines[4999] || tail.NextOffset != 0 {
		t.Fatalf("last line: %v %v", tail, err)
	}
}

func TestRepairOfAFailedCommit(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	if err := put(t, w, Write{Path: "f"}, "x"); err != nil {
		t.Fatal(err)
	}
	// Another line of commits took the head: a commit must fail, not overwrite.
	empty, err := b.store.Snapshot(t.Context(), mustOpen(t, t.TempDir()), cas.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Commit(t.Context(), cas.CommitRequest{Head: w.ID, Epoch: 1, Tree: empty.Tree, Source: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), "execution:1"); !errors.Is(err, cas.ErrConflict) {
		t.Fatalf("commit: %v, want ErrConflict", err)
	}
	if err := w.Writable(); reason(err) != problem.WorkspaceNeedsRepair {
		t.Fatalf("Writable = %v", err)
	}
	if err := w.Repair(t.Context()); err == nil {
		t.Fatal("repair passed though the cause stands")
	}
	if err := b.store.DeleteHead(t.Context(), w.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Writable(); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, w, "", "f"); got != "x" {
		t.Fatalf("file after repair: %q", got)
	}
}

func TestRepairWakesAStuckWriter(t *testing.T) {
	w := newBed(t).workspace(t)
	ticket, err := w.Queue()
	if err != nil {
		t.Fatal(err)
	}
	w.setState(t.Context(), skerryv1.WorkspaceNeedsRepair, "test")
	done := make(chan error, 1)
	go func() {
		defer ticket.Release()
		if !w.AwaitRepair(t.Context()) {
			done <- errors.New("not woken")
			return
		}
		_, err := w.Commit(t.Context(), "execution:1")
		done <- err
	}()
	if err := w.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestI6AnOldEpochCannotCommit(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	commit(t, w, "execution:1")
	if _, err := b.Get(t.Context(), w.ID, "agent", 3); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), w.ID, "agent", 2); reason(err) != problem.Fenced {
		t.Fatalf("epoch 2 after 3: %v", err)
	}
	if _, err := b.Get(t.Context(), w.ID, "other", 3); reason(err) != problem.NotFound {
		t.Fatalf("another agent: %v", err)
	}
	if err := b.store.Fence(t.Context(), w.ID, 9); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), "execution:2"); !errors.Is(err, cas.ErrFenced) {
		t.Fatalf("commit of a fenced epoch: %v", err)
	}
}

func TestWatchGivesEveryChange(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan uint64, 1000)
	ended := make(chan error, 1)
	go func() {
		ended <- b.Watch(ctx, func(all []*Workspace) error {
			for _, w := range all {
				seen <- w.Status().GetHead().GetSeq()
			}
			return nil
		})
	}()
	<-seen // the state at the start
	for i := range 100 {
		if err := put(t, w, Write{Path: "f", IfExists: IfExistsOverwrite}, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		commit(t, w, fmt.Sprintf("write:%d", i))
	}
	for seq := range seen {
		if seq == 100 {
			break
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func BenchmarkCommit(b *testing.B) {
	w := newBed(b).workspace(b)
	i := 0
	for b.Loop() {
		i++
		if _, err := w.Commit(b.Context(), fmt.Sprintf("execution:%d", i)); err != nil {
			b.Fatal(err)
		}
	}
}

// What an agent is told of a failed commit names no path of the host.
func TestI7AFailedCommitNamesNoHostPath(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	if err := os.Rename(w.Tree(), w.Tree()+".away"); err != nil {
		t.Fatal(err)
	}
	_, err := w.Commit(t.Context(), "test:")
	if err == nil {
		t.Fatal("committed a directory that is not there")
	}
	for what, text := range map[string]string{"status": w.Status().Detail, "refusal": w.Writable().Error(), "cause": CommitCause(err)} {
		if text == "" || strings.Contains(text, b.dir) {
			t.Errorf("%s: %q", what, text)
		}
	}
	full := &os.PathError{Op: "write", Path: b.dir + "/cas/packs/1", Err: unix.ENOSPC}
	if got := CommitCause(full); got != "the runner's disk is full" {
		t.Errorf("full disk: %q", got)
	}
}

// A chmod of /workspace by the agent does not lock an ordinary user's daemon out.
func TestAgentCannotLockTheWorkspace(t *testing.T) {
	for _, mode := range []os.FileMode{0, 0o100, 0o400} {
		b := newBed(t)
		w := b.workspace(t)
		if err := put(t, w, Write{Path: "a"}, "x"); err != nil {
			t.Fatal(err)
		}
		w.UID, w.GID = -1, -1 // as for an ordinary user, also when the test is root
		if err := os.Chmod(w.Tree(), mode); err != nil {
			t.Fatal(err)
		}
		if c := commit(t, w, "test:"); c.Snapshot.Files != 1 || c.Snapshot.SkippedCount != 0 {
			t.Errorf("mode %#o: %v", mode, c.Snapshot)
		}
		if info, err := os.Stat(w.Tree()); err != nil || info.Mode().Perm()&0o700 != 0o700 {
			t.Errorf("mode %#o: left as %v, %v", mode, info.Mode(), err)
		}
	}
}

// The floor for writes holds for where a path leads, not only for its spelling,
// and nothing is written before it is found out.
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

// A digest of zeros is a digest that no snapshot has.
func TestZeroDigestIsNoSnapshot(t *testing.T) {
	w := newBed(t).workspace(t)
	commit(t, w, "test:")
	var typed *problem.Error
	if _, err := w.View(t.Context(), "sha256:"+strings.Repeat("0", 64)); !errors.As(err, &typed) || typed.Reason != problem.NotFound {
		t.Fatalf("View: %v, want %s", err, problem.NotFound)
	}
}
