package workspace

import (
	"os"
	"testing"

	"skerry.internal/cas"
)

// deepScene is a path longer than PATH_MAX with a directory at its end that
// keeps an ordinary user out.
const deepScene = `n=$(printf 'n%.0s' {1..200}); ( for i in {1..40}; do mkdir $n; cd $n; done; mkdir locked; echo x > locked/f; chmod 000 locked )`

func TestRestoreOverDeepLockedDirectories(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root passes every mode: run as an ordinary user")
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
