package mcp

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// listedExecutions is how many executions a list has at most.
const listedExecutions = 50

func executionResult(e *skerryv1.Execution) (*result, error) {
	b, shown, err := boundExecution(e)
	if err != nil {
		return nil, err
	}
	return message(b, shown)
}

// executionText tells about one execution: first what happened, last the output.
func executionText(e *skerryv1.Execution) string {
	var out strings.Builder
	fmt.Fprintf(&out, "execution %s %s\n", e.Id, stateText(e))
	if !skerryv1.Terminal(e.State) {
		out.WriteString("it goes on; wait with execution_status (wait_ms), read with execution_logs, end with execution_cancel\n")
	}
	if e.Problem != "" {
		fmt.Fprintf(&out, "problem: %s\n", clipText(e.Problem, 1000))
	}
	fmt.Fprintf(&out, "runner %s, workspace %s", e.Runner, e.Workspace)
	if e.Tier != "" {
		fmt.Fprintf(&out, ", sandbox tier %s", e.Tier)
	}
	if d := ran(e.Times); d > 0 {
		fmt.Fprintf(&out, ", ran %s", d)
	}
	out.WriteByte('\n')
	writeChanges(&out, e)
	writeOutput(&out, "stdout", e.Stdout)
	writeOutput(&out, "stderr", e.Stderr)
	return out.String()
}

func stateText(e *skerryv1.Execution) string {
	switch {
	case e.State == skerryv1.StateQueued && e.QueuePosition > 0:
		return fmt.Sprintf("is queued, position %d", e.QueuePosition)
	case e.Verdict == nil:
		return "is " + e.State
	}
	return e.State + ": " + verdictText(e.Verdict)
}

func verdictText(v *skerryv1.Verdict) string {
	out := v.Kind
	if v.ExitCode != nil {
		out += fmt.Sprintf(" with code %d", *v.ExitCode)
	}
	if v.Signal != "" {
		out += ", signal " + v.Signal
	}
	if v.Limit != "" {
		out += ", limit " + v.Limit
	}
	if v.Detail != "" {
		out += ", " + clipText(v.Detail, 1000)
	}
	return out
}

func ran(t *skerryv1.Times) time.Duration {
	if t.GetStarted() == nil || t.GetEnded() == nil {
		return 0
	}
	return t.Ended.AsTime().Sub(t.Started.AsTime()).Round(time.Millisecond)
}

func writeChanges(out *strings.Builder, e *skerryv1.Execution) {
	if s := e.Snapshot; s != nil {
		fmt.Fprintf(out, "snapshot %s\n", s.Digest)
		if s.SkippedCount > 0 {
			fmt.Fprintf(out, "not stored, because they are no files: %d, such as %s\n", s.SkippedCount, firstSkipped(s))
		}
	}
	c := e.Changes
	if c == nil {
		return
	}
	fmt.Fprintf(out, "files: %d created, %d modified, %d deleted\n", c.CreatedCount, c.ModifiedCount, c.DeletedCount)
	for _, l := range []struct {
		mark  string
		paths []string
		count uint32
	}{{"A", c.Created, c.CreatedCount}, {"M", c.Modified, c.ModifiedCount}, {"D", c.Deleted, c.DeletedCount}} {
		for _, p := range l.paths {
			fmt.Fprintf(out, "%s %s\n", l.mark, pathText(p))
		}
		if more := int(l.count) - len(l.paths); more > 0 {
			fmt.Fprintf(out, "%s [... %d more ...]\n", l.mark, more)
		}
	}
}

func firstSkipped(s *skerryv1.Snapshot) string {
	if len(s.Skipped) == 0 {
		return "unnamed ones"
	}
	return pathText(s.Skipped[0].Path) + " (" + s.Skipped[0].Kind + ")"
}

func writeOutput(out *strings.Builder, name string, o *skerryv1.Output) {
	if o.GetTotalBytes() == 0 && o.GetText() == "" {
		return
	}
	fmt.Fprintf(out, "--- %s, %d bytes", name, o.TotalBytes)
	if o.OmittedBytes > 0 {
		fmt.Fprintf(out, ", %d of them omitted here", o.OmittedBytes)
	}
	if o.Binary {
		out.WriteString(", binary: shown with U+FFFD")
	}
	out.WriteString(" ---\n" + o.Text)
	if !strings.HasSuffix(o.Text, "\n") {
		out.WriteByte('\n')
	}
}

// executionList shows what tells executions apart; the rest is one call away.
func executionList(page *skerryv1.ListExecutionsResponse, state string) (*result, error) {
	more := page.NextPageToken != ""
	out := &skerryv1.ListExecutionsResponse{}
	var rows strings.Builder
	for _, e := range page.Executions {
		b := summary(e)
		row := fmt.Sprintf("%s  %s  %s  %s\n", b.Id, stamp(b.GetTimes().GetAccepted()), stateText(b), asked(b.Command))
		if rows.Len()+len(row) > maxText/2 {
			more = true
			break
		}
		rows.WriteString(row)
		out.Executions = append(out.Executions, b)
	}
	if state != "" {
		state += " "
	}
	head := fmt.Sprintf("%d %sexecutions, newest first\n", len(out.Executions), state)
	if more {
		head = fmt.Sprintf("the newest %d %sexecutions; there are more: use state to list fewer kinds\n", len(out.Executions), state)
	}
	return message(out, head+rows.String())
}

// summary is an execution without what can be long.
func summary(e *skerryv1.Execution) *skerryv1.Execution {
	b := &skerryv1.Execution{Id: e.Id, Agent: e.Agent, Runner: e.Runner, Workspace: e.Workspace, State: e.State, Tier: e.Tier, Backend: e.Backend,
		Verdict: e.Verdict, Times: e.Times, Command: e.Command, IdempotencyKey: e.IdempotencyKey, QueuePosition: e.QueuePosition,
		Epoch: e.Epoch, Problem: clipText(e.Problem, 200)}
	boundCommand(b.Command, 100)
	if b.Verdict != nil {
		b.Verdict.Detail = clipText(b.Verdict.Detail, 200)
	}
	return b
}

func asked(c *skerryv1.Command) string {
	switch {
	case c.GetScriptPath() != "":
		return pathText(strings.Join(append([]string{c.ScriptPath}, c.Arguments...), " "))
	case len(c.GetArgv()) > 0:
		return pathText(strings.Join(c.Argv, " "))
	}
	return pathText(c.GetShell())
}

// pathText is a name that an agent chose, on one line.
func pathText(p string) string {
	if strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(p)
	}
	return p
}

func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}
