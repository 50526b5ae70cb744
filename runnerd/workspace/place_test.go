package workspace

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

func file(t testing.TB, w *Workspace, content string, mode uint32) cas.Entry {
	t.Helper()
	x, err := w.manager.store.PutFile(t.Context(), strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	x.Mode, x.MTime = mode, time.Unix(1_600_000_000, 0)
	return x
}

func place(t testing.TB, w *Workspace, overwrite bool, items ...Placement) []error {
	t.Helper()
	errs, err := w.Place(t.Context(), items, overwrite)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(w.dir + "/tmp"); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
	return errs
}

func TestPlace(t *testing.T) {
	w := newBed(t).workspace(t)
	outside := t.TempDir()
	shell(t, w, `mkdir -p have/dir; echo old > have/f; echo same > have/same; ln -s `+outside+` out; ln -s have in; ln -s nowhere link; mkfifo pipe`)
	commit(t, w, "execution:x")
	f := file(t, w, "new\n", 0o640)
	cases := []struct {
		path  string
		entry cas.Entry
		want  string // without overwriting
		over  string // with it
	}{
		{"a/b/c", f, "", ""},
		{"a/b/dir", cas.Entry{Type: cas.TypeDir, Mode: 0o750}, "", ""},
		{"a/b/link", cas.Entry{Type: cas.TypeSymlink, Mode: 0o777, Target: "../../../etc/passwd"}, "", ""},
		{"have/f", f, problem.FileConflict, ""},
		{"have/same", file(t, w, "same\n", 0o600), "", ""},
		{"have/dir", f, problem.NotAFile, problem.NotAFile},
		{"have/dir", cas.Entry{Type: cas.TypeDir}, "", ""},
		{"have/f/x", f, problem.NotAFile, problem.NotAFile},
		{"have/same", cas.Entry{Type: cas.TypeDir}, problem.NotAFile, problem.NotAFile},
		{"out/f", f, problem.PathOutside, problem.PathOutside},
		{"in/g", f, problem.PathOutside, problem.PathOutside},
		{"link", f, problem.FileConflict, ""},
		{"pipe", f, problem.FileConflict, problem.NotAFile},
		{"../x", f, problem.PathOutside, problem.PathOutside},
		{"/etc/x", f, problem.PathOutside, problem.PathOutside},
		{"a//b", f, problem.InvalidArgument, problem.InvalidArgument},
		{"", f, problem.InvalidArgument, problem.InvalidArgument},
		{"n\x00l", f, problem.InvalidArgument, problem.InvalidArgument},
		{".ssh/key", f, problem.PathSensitive, problem.PathSensitive},
		{"a/.git/config", f, problem.PathSensitive, problem.PathSensitive},
	}
	for _, overwrite := range []bool{false, true} {
		var items []Placement
		for _, tc := range cases {
			items = append(items, Placement{tc.path, tc.entry})
		}
		errs := place(t, w, overwrite, items...)
		for i, tc := range cases {
			want := tc.want
			if overwrite {
				want = tc.over
			}
			if got := reason(errs[i]); got != want {
				t.Errorf("%q (overwrite %v): %v, want %q", tc.path, overwrite, errs[i], want)
			}
		}
		commit(t, w, "transfer:t")
	}
	info, err := os.Lstat(w.Tree() + "/a/b/c")
	if err != nil || info.Mode().Perm() != 0o640 || info.ModTime().Unix() != 1_600_000_000 {
		t.Errorf("a/b/c: %v %v", info, err)
	}
	for path, want := range map[string]string{"a/b/c": "new\n", "have/f": "new\n", "link": "new\n"} {
		if b, err := os.ReadFile(w.Tree() + "/" + path); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", path, b, err)
		}
	}
	if target, err := os.Readlink(w.Tree() + "/a/b/link"); err != nil || target != "../../../etc/passwd" {
		t.Errorf("link: %q %v", target, err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Fatalf("written outside: %v %v", left, err)
	}
}

func TestPlaceHoldsTheQuota(t *testing.T) {
	b := newBed(t)
	b.cfg.Quota = Quota{Bytes: 10}
	w := b.workspace(t)
	errs := place(t, w, false, Placement{"a", file(t, w, "12345678", 0o600)}, Placement{"b", file(t, w, "12345678", 0o600)}, Placement{"c", file(t, w, "12", 0o600)})
	if errs[0] != nil || reason(errs[1]) != problem.LimitExceeded || errs[2] != nil {
		t.Fatalf("%v", errs)
	}
}

func TestPlaceFailsForDamageAlone(t *testing.T) {
	w := newBed(t).workspace(t)
	bad := cas.Entry{Type: cas.TypeFile, Mode: 0o600, Size: 3, Digest: cas.DigestOf([]byte("not")), MTime: time.Unix(1, 0)}
	errs := place(t, w, false, Placement{"a", file(t, w, "a", 0o600)}, Placement{"bad", bad}, Placement{"c", file(t, w, "c", 0o600)})
	if errs[0] != nil || reason(errs[1]) != problem.StoreFailed || errs[2] != nil {
		t.Fatalf("%v", errs)
	}
}

func TestI6FencedWorkspaceIsABranch(t *testing.T) {
	b := newBed(t)
	w := b.workspace(t)
	shell(t, w, "echo 1 > f")
	commit(t, w, "execution:1")
	if fenced, err := w.Fence(t.Context(), 1); fenced || err != nil {
		t.Fatalf("fenced by its own epoch: %v %v", fenced, err)
	}
	if fenced, err := w.Fence(t.Context(), 2); !fenced || err != nil {
		t.Fatal(fenced, err)
	}
	if reason(w.Writable()) != problem.Fenced {
		t.Fatalf("writable: %v", w.Writable())
	}
	// What still ran is not lost.
	shell(t, w, "echo 2 > f")
	if c := commit(t, w, "execution:2"); c.Snapshot.Seq != 2 || !w.Fenced() {
		t.Fatalf("commit %v, fenced %v", c.Snapshot, w.Fenced())
	}
	if _, err := b.Get(t.Context(), w.ID, "agent", 2); reason(err) != problem.Fenced {
		t.Fatalf("the newer epoch opens a branch: %v", err)
	}
	if got, err := b.Get(t.Context(), w.ID, "agent", 1); err != nil || got != w {
		t.Fatalf("the branch cannot be read: %v", err)
	}
	// Over a restart too.
	delete(b.open, w.ID)
	all, err := b.Recorded(t.Context())
	if err != nil || !all[w.ID].Fenced() {
		t.Fatalf("after a restart: %v %v", all[w.ID], err)
	}
}

func TestAdoptGoesOnWithTheHistory(t *testing.T) {
	b := newBed(t)
	old := b.workspace(t)
	shell(t, old, "mkdir d; echo 1 > d/f; ln -s d l; chmod 640 d/f")
	for range 3 {
		shell(t, old, "echo x >> d/f")
		commit(t, old, "execution:x")
	}
	from, err := b.store.ReadCommit(t.Context(), old.Head().Commit)
	if err != nil {
		t.Fatal(err)
	}
	w := b.workspace(t)
	for range 2 {
		if err := w.Adopt(t.Context(), from); err != nil {
			t.Fatal(err)
		}
	}
	head, err := b.store.ReadCommit(t.Context(), w.Head().Commit)
	if err != nil || head.Seq != 4 || head.Parent != from.Digest || head.Tree != from.Tree || w.Writable() != nil {
		t.Fatalf("head %+v %v, writable %v", head, err, w.Writable())
	}
	shell(t, w, "echo more > g")
	if c := commit(t, w, "execution:y"); c.Snapshot.Seq != 5 {
		t.Fatal(c.Snapshot)
	}
	// The commit that it goes on from may be gone.
	if err := b.store.DeleteHead(t.Context(), old.ID); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := b.store.GC(context.Background(), cas.GCOptions{NoGrace: true}); err != nil {
			t.Fatal(err)
		}
	}
	if rep, err := b.store.Verify(t.Context(), cas.VerifyOptions{Reachable: true}); err != nil || !rep.OK() {
		t.Fatalf("verify: %+v %v", rep, err)
	}
	if _, err := b.store.ReadCommit(t.Context(), from.Digest); !errors.Is(err, cas.ErrNotFound) {
		t.Fatalf("the test is vain, the old commit is there: %v", err)
	}
	if log, _, err := w.History(t.Context(), "", 10); err != nil || len(log) != 2 {
		t.Fatalf("history %v %v", log, err)
	}
}
