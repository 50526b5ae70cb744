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
