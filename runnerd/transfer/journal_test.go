package transfer

import (
	"database/sql"
	"testing"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// A file that was committed is not said to have failed when its outcome could
// not be recorded.
func TestI3OutcomesThatCannotBeRecordedAreUnknown(t *testing.T) {
	c := newCluster(t)
	a, b := c.runner("a"), c.runner("b")
	w := b.workspace(map[string]string{"have": "x"})
	db, err := sql.Open("sqlite", "file:"+b.dir+"/journal.db?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `CREATE TRIGGER full BEFORE UPDATE ON transfer_files WHEN NEW.state = 'completed'
		BEGIN SELECT RAISE(ABORT, 'disk is full'); END`); err != nil {
		t.Fatal(err)
	}
	spec := c.spec(a, b, a.workspace(map[string]string{"f": "1"}), w, mapping("f", "f"))
	s := b.finish(spec)
	if s.State != skerryv1.StateUnknown || s.Counts.Unknown != 1 || s.Counts.Failed+s.Counts.Pending+s.Counts.Completed != 0 {
		t.Errorf("ended %v", s)
	}
	page, err := b.Files(t.Context(), &skerryv1.ListTransferFilesRequest{TransferId: spec.TransferId, Limit: 10})
	if err != nil || len(page.Files) != 1 || page.Files[0].State != skerryv1.StateUnknown || page.Files[0].Problem.GetReason() != problem.OutcomeUnknown {
		t.Errorf("outcomes %v %v", page, err)
	}
}
