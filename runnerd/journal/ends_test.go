package journal

import (
	"fmt"
	"testing"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

func finish(t *testing.T, j *Journal, id, state string) {
	t.Helper()
	record := execution(id, "").Record
	record.State = state
	if err := j.Finish(t.Context(), record); err != nil {
		t.Fatal(err)
	}
}

func ends(t *testing.T, j *Journal, after uint64) (out []string) {
	t.Helper()
	list, err := j.EndsAfter(t.Context(), after, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, fmt.Sprint(e.Seq, e.Record.Id, e.Record.State))
	}
	return out
}

func TestEndsAreNumberedOnce(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	for _, id := range []string{"ex_1", "ex_2", "ex_3"} {
		if _, err := j.Accept(t.Context(), execution(id, "")); err != nil {
			t.Fatal(err)
		}
	}
	woken := j.Ended()
	finish(t, j, "ex_2", skerryv1.StateUnknown)
	<-woken
	finish(t, j, "ex_1", skerryv1.StateCompleted)
	log, err := j.EndLog(t.Context())
	if err != nil || log == "" {
		t.Fatal(log, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openTest(t, dir)
	if again, err := j.EndLog(t.Context()); again != log || err != nil {
		t.Errorf("log %q, then %q, %v", log, again, err)
	}
	// The unknown one resolves: it is told again.
	finish(t, j, "ex_2", skerryv1.StateFailed)
	if got := fmt.Sprint(ends(t, j, 0)); got != "[2ex_1completed 3ex_2failed]" {
		t.Errorf("ends %s", got)
	}
	if got := fmt.Sprint(ends(t, j, 2)); got != "[3ex_2failed]" {
		t.Errorf("ends after 2: %s", got)
	}
}

// A file of a version without numbers opens, and its ends of old stay untold.
func TestEndsOfOldFiles(t *testing.T) {
	dir := t.TempDir()
	j := openTest(t, dir)
	for _, statement := range []string{"DROP INDEX executions_ended", "ALTER TABLE executions DROP COLUMN end_seq", "DELETE FROM meta",
		"INSERT INTO executions (id, agent, workspace, state, record) VALUES ('ex_1', 'a', 'w', 'completed', x'')"} {
		if _, err := j.write.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openTest(t, dir)
	if got := ends(t, j, 0); len(got) != 0 {
		t.Errorf("ends %v", got)
	}
	if _, err := j.Accept(t.Context(), execution("ex_2", "")); err != nil {
		t.Fatal(err)
	}
	finish(t, j, "ex_2", skerryv1.StateCompleted)
	if got := fmt.Sprint(ends(t, j, 0)); got != "[1ex_2completed]" {
		t.Errorf("ends %s", got)
	}
}
