package mcp

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// output is a stream's text as the runner gives it: at most 40 KiB, with a mark
// where bytes were left out.
func output(head, tail string, omitted uint64) *skerryv1.Output {
	o := &skerryv1.Output{Text: head + tail, TotalBytes: uint64(len(head)+len(tail)) + omitted, OmittedBytes: omitted}
	if omitted > 0 {
		o.Text = head + fmt.Sprintf("\n[... %d bytes omitted; the log has them ...]\n", omitted) + tail
	}
	return o
}

func TestResultsAreBounded(t *testing.T) {
	var paths []string
	for i := range 1000 {
		paths = append(paths, strings.Repeat("d", 200)+fmt.Sprint(i))
	}
	long := strings.Repeat("é", 20<<10)
	lines := strings.Repeat("x\n", 2000)
	for name, edit := range map[string]func(*skerryv1.Execution){
		"both streams long":   func(e *skerryv1.Execution) { e.Stdout, e.Stderr = output(long, "", 0), output(long, "", 0) },
		"omitted already":     func(e *skerryv1.Execution) { e.Stdout = output(long[:10<<10], long[:30<<10], 1<<30) },
		"control characters":  func(e *skerryv1.Execution) { e.Stdout = output(strings.Repeat("\x01", 40<<10), "", 0) },
		"quotes":              func(e *skerryv1.Execution) { e.Stdout = output(strings.Repeat(`"<`, 20<<10), "", 0) },
		"many lines":          func(e *skerryv1.Execution) { e.Stdout, e.Stderr = output(lines, "", 0), output(lines, "", 0) },
		"one line, no end":    func(e *skerryv1.Execution) { e.Stderr = output(strings.Repeat("x", 40<<10), "", 0) },
		"many changes":        func(e *skerryv1.Execution) { e.Changes = changes(paths) },
		"long command":        func(e *skerryv1.Execution) { e.Command = &skerryv1.Command{Shell: long} },
		"many long arguments": func(e *skerryv1.Execution) { e.Command = &skerryv1.Command{Argv: paths} },
	} {
		t.Run(name, func(t *testing.T) {
			e := ended(0)
			edit(e)
			s := newSession(t, &fake{t: t, runShell: func(context.Context, *skerryv1.RunShellRequest) (*skerryv1.Execution, error) { return e, nil }})
			a := s.good("run_shell", `{"command":"x"}`)
			if n := len(a.text[0]); n > maxText || strings.Count(a.text[0], "\n") > outputLines+50 {
				t.Errorf("text of %d bytes, %d lines", n, strings.Count(a.text[0], "\n"))
			}
			if a.size > maxJSON {
				t.Errorf("JSON of %d bytes", a.size)
			}
			if strings.ContainsRune(a.text[0], '\uFFFD') {
				t.Error("a character is split")
			}
		})
	}
}

func changes(paths []string) *skerryv1.Changes {
	n := uint32(len(paths))
	return &skerryv1.Changes{Created: paths, Modified: paths, Deleted: paths, CreatedCount: n, ModifiedCount: n, DeletedCount: n}
}

// F12: what is left out is counted, and the result says where it is.
func TestF12OmissionsAreCounted(t *testing.T) {
	numbered := func(from, to int) string {
		var out strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&out, "line %06d\n", i)
		}
		return out.String()
	}
	const width = 12
	for name, o := range map[string]*skerryv1.Output{
		"long":            output(numbered(0, 10000), "", 0),
		"omitted already": output(numbered(0, 800), numbered(7000, 10000), 6200*width),
		"both small":      output(numbered(0, 8), numbered(9990, 10000), 9982*width),
	} {
		t.Run(name, func(t *testing.T) {
			e := ended(0)
			e.Stdout = o
			b, shown, err := boundExecution(e)
			if err != nil {
				t.Fatal(err)
			}
			kept := strings.Count(b.Stdout.Text, "line ") * width
			if b.Stdout.OmittedBytes+uint64(kept) != 10000*width {
				t.Errorf("%d kept, %d omitted", kept, b.Stdout.OmittedBytes)
			}
			head, _, ok := strings.Cut(b.Stdout.Text, "\n[... ")
			if !ok || !strings.HasPrefix(head, "line 000000\n") || !strings.HasSuffix(b.Stdout.Text, "line 009999\n") {
				t.Errorf("head or tail is lost: %.100s", b.Stdout.Text)
			}
			where := fmt.Sprintf(`[... %d bytes omitted; read them with execution_logs: execution_id "ex_1", stream "stdout", cursor %d ...]`, b.Stdout.OmittedBytes, len(head))
			if strings.Count(shown, where) != 1 || strings.Count(shown, "bytes omitted;") != 1 {
				t.Errorf("text lacks %s", where)
			}
		})
	}
}

func TestChangesAreShownWithCounts(t *testing.T) {
	e := ended(0)
	e.Changes = &skerryv1.Changes{Created: []string{"a", "b\nM forged"}, CreatedCount: 7, Deleted: []string{"c"}, DeletedCount: 1, Truncated: true}
	e.Snapshot = &skerryv1.Snapshot{Digest: "sha256:1", SkippedCount: 2, Skipped: []*skerryv1.Skipped{{Path: "pipe", Kind: "fifo"}}}
	_, shown, err := boundExecution(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"7 created, 0 modified, 1 deleted\n", "A a\n", `A "b\nM forged"` + "\n", "A [... 5 more ...]\n", "D c\n", "snapshot sha256:1\n", "pipe (fifo)"} {
		if !strings.Contains(shown, want) {
			t.Errorf("lacks %q:\n%s", want, shown)
		}
	}
}

func TestStatusLists(t *testing.T) {
	var got *skerryv1.ListExecutionsRequest
	s := newSession(t, &fake{t: t, list: func(r *skerryv1.ListExecutionsRequest) (*skerryv1.ListExecutionsResponse, error) {
		got = r
		out := &skerryv1.ListExecutionsResponse{NextPageToken: "more"}
		for i := range r.Limit {
			e := ended(0)
			e.Id = fmt.Sprintf("ex_%d", i)
			e.Command = &skerryv1.Command{Shell: strings.Repeat("<\n", 10_000)}
			e.Stdout = output(strings.Repeat("x", 40<<10), "", 0)
			e.Changes = changes([]string{strings.Repeat("p", 4000)})
			e.Times = &skerryv1.Times{Accepted: timestamppb.Now()}
			out.Executions = append(out.Executions, e)
		}
		return out, nil
	}})
	a := s.good("execution_status", `{"state":"completed"}`)
	if got.State != "completed" || a.size > maxJSON || len(a.text[0]) > maxText {
		t.Errorf("asked %v, got %d bytes of JSON, %d of text", got, a.size, len(a.text[0]))
	}
	list := a.json["executions"].([]any)
	if len(list) == 0 || strings.Count(a.text[0], "\n") != len(list)+1 || !strings.Contains(a.text[0], "there are more") {
		t.Errorf("%d executions:\n%s", len(list), a.text[0])
	}
	first := list[0].(map[string]any)
	if first["id"] != "ex_0" || first["stdout"] != nil || first["changes"] != nil || first["verdict"] == nil {
		t.Errorf("entry %v", first)
	}
}

func TestAnUnendedExecutionSaysHowToGoOn(t *testing.T) {
	f := &fake{t: t}
	s := newSession(t, f)
	running := &skerryv1.Execution{Id: "ex_1", State: "running", Stdout: &skerryv1.Output{Text: "so far\n", TotalBytes: 7}}
	f.get = func(r *skerryv1.GetExecutionRequest) (*skerryv1.Execution, error) {
		if r.ExecutionId != "ex_1" || r.GetWaitMs() != 250 {
			t.Errorf("asked %v", r)
		}
		return running, nil
	}
	f.cancel = func(*skerryv1.CancelExecutionRequest) (*skerryv1.Execution, error) {
		return &skerryv1.Execution{Id: "ex_1", State: "queued", QueuePosition: 2, Problem: "commit failed"}, nil
	}
	a := s.good("execution_status", `{"execution_id":"ex_1","wait_ms":250}`)
	if !strings.Contains(a.text[0], "ex_1 is running\nit goes on") || !strings.Contains(a.text[0], "so far") {
		t.Errorf("got %s", a.text[0])
	}
	a = s.good("execution_cancel", `{"execution_id":"ex_1"}`)
	if !strings.Contains(a.text[0], "is queued, position 2") || !strings.Contains(a.text[0], "problem: commit failed") {
		t.Errorf("got %s", a.text[0])
	}
}
