package workspace

import (
	"strings"
	"testing"

	"skerry.internal/proto/problem"
)

func TestQuotas(t *testing.T) {
	b := newBed(t)
	b.cfg.Quota = Quota{Bytes: 1000, Entries: 4}
	w := b.workspace(t)
	write := func(path, mode string, size int) error {
		t.Helper()
		err := put(t, w, Write{Path: path, IfExists: mode}, strings.Repeat("x", size))
		if err == nil {
			commit(t, w, "write:"+path)
		}
		return err
	}
	refused := func(limit string, err error) {
		t.Helper()
		if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), limit) {
			t.Errorf("%v, want a refusal by %s", err, limit)
		}
	}
	for _, ok := range []error{write("a", "", 600), write("b", "", 400), write("a", IfExistsOverwrite, 500), write("b", IfExistsAppend, 100)} {
		if ok != nil {
			t.Fatal(ok)
		}
	}
	refused("workspace_bytes", write("c", "", 1))
	refused("workspace_bytes", write("a", IfExistsAppend, 1))
	if err := write("a", IfExistsOverwrite, 1); err != nil {
		t.Fatal(err)
	}
	// A command may pass the quota: it is told so, and what it left is kept.
	shell(t, w, `mkdir d; for i in 1 2 3; do echo > d/$i; done`)
	c := commit(t, w, "execution:1")
	if c.Over == nil || c.Over.Limit != "workspace_entries" || c.Over.Have != 6 || c.Over.Most != 4 {
		t.Fatalf("over: %+v", c.Over)
	}
	if u := w.Status().Usage; u.Over != "workspace_entries" || u.Entries != 6 || u.MaxEntries != 4 || u.MaxBytes != 1000 {
		t.Fatalf("usage %v", u)
	}
	refused("workspace_entries", write("e", "", 1))
	if err := write("a", IfExistsOverwrite, 1); err != nil {
		t.Fatalf("a write that adds nothing: %v", err)
	}
	shell(t, w, `rm -r d`)
	if c := commit(t, w, "execution:2"); c.Over != nil {
		t.Fatalf("over: %+v", c.Over)
	}
}

// What sizes do not show counts against the quota: a command cannot fill the
// disk with it, nor gain by holes and hard links what it may not have.
func TestQuotaOfWhatNoSizeShows(t *testing.T) {
	fresh := func(t *testing.T) *Workspace {
		b := newBed(t)
		b.cfg.Quota = Quota{Bytes: 1 << 20, Entries: 100}
		return b.workspace(t)
	}
	for name, tc := range map[string]struct{ fill, limit string }{
		"reserved space": {": > f; fallocate -n -l 4M f", "workspace_bytes"},
		"pipes":          {"for i in $(seq 120); do echo p$i; done | xargs mkfifo", "workspace_entries"},
	} {
		t.Run(name, func(t *testing.T) {
			w := fresh(t)
			shell(t, w, tc.fill)
			if c := commit(t, w, "execution:"+name); c.Over == nil || c.Over.Limit != tc.limit {
				t.Fatalf("over: %+v", c.Over)
			}
			if u := w.Status().Usage; u.Over != tc.limit {
				t.Errorf("usage %v", u)
			}
			if p := problem.Of(put(t, w, Write{Path: "more"}, "x")); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), tc.limit) {
				t.Errorf("a write is not refused: %v", p)
			}
			shell(t, w, "rm -rf *")
			if c := commit(t, w, "execution:rm "+name); c.Over != nil {
				t.Errorf("emptied, and over %+v", c.Over)
			}
		})
	}
	w := fresh(t)
	// Sizes over the quota that take nothing do not raise what the next may take.
	shell(t, w, "truncate -s 1G holes; head -c 1000 /dev/zero > a; for i in $(seq 20); do ln a l$i; done")
	if c := commit(t, w, "execution:holes"); c.Over == nil || c.Over.Limit != "workspace_bytes" {
		t.Fatalf("over: %+v", c.Over)
	}
	if q := w.WatchedQuota(); q.UsedBytes > 1<<20 || q.UsedEntries < 22 {
		t.Errorf("the next command may take as much as the holes: %+v", q)
	}
}
