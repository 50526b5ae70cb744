package mcp

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/wire"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Bounds of one result. The rest is never lost: the execution's log, the next
// page or the history has it, and the result says where.
const (
	// maxText bounds the text form.
	maxText = 50 << 10
	// maxJSON bounds the structured form.
	maxJSON = 64 << 10
	// outputText is what the text of both streams may have together.
	outputText  = 36 << 10
	outputLines = 2000
	// changedPaths and changedText bound each list of changed paths.
	changedPaths = 100
	changedText  = 2 << 10
	commandText  = 2000
	skippedPaths = 10
)

// boundExecution gives a copy of an execution that fits a result in both forms.
func boundExecution(e *skerryv1.Execution) (*skerryv1.Execution, string, error) {
	for room := outputText; ; room /= 2 {
		b := proto.CloneOf(e)
		boundCommand(b.Command, commandText)
		boundChanges(b.Changes, changedPaths, changedText)
		boundSkipped(b.Snapshot, skippedPaths)
		boundOutputs(b, room)
		encoded, err := wire.MarshalJSON(b)
		if err != nil {
			return nil, "", err
		}
		// Text with many characters that JSON escapes is larger than its room.
		shown := executionText(b)
		if (len(encoded) <= maxJSON && len(shown) <= maxText) || room < 1<<10 {
			return b, shown, nil
		}
	}
}

// boundOutputs shares room between the streams: what one leaves, the other has.
func boundOutputs(e *skerryv1.Execution, room int) {
	out, errs := e.GetStdout(), e.GetStderr()
	outRoom, errRoom := share(len(out.GetText()), len(errs.GetText()), room)
	outLines, errLines := share(strings.Count(out.GetText(), "\n"), strings.Count(errs.GetText(), "\n"), outputLines)
	boundOutput(out, e.Id, "stdout", outRoom, outLines)
	boundOutput(errs, e.Id, "stderr", errRoom, errLines)
}

func share(a, b, room int) (int, int) {
	switch half := room / 2; {
	case a+b <= room:
		return a, b
	case a <= half:
		return a, room - a
	case b <= half:
		return room - b, b
	default:
		return half, half
	}
}

// boundOutput keeps the first quarter and the last three quarters of room.
// Between them stands what is left out and where to read it.
func boundOutput(o *skerryv1.Output, id, stream string, room, lines int) {
	if o == nil {
		return
	}
	head, tail, cut := splitOutput(o)
	fits := len(head)+len(tail) <= room && strings.Count(head, "\n")+strings.Count(tail, "\n") <= lines
	if fits && !cut {
		return
	}
	keptHead, keptTail := head, tail
	if !fits {
		keptTail = tail[len(tail)-tailBytes(tail, room*3/4, lines*3/4):]
		if !cut { // all of it stands in tail
			head = tail[:len(tail)-len(keptTail)]
			tail = keptTail
		}
		keptHead = head[:headBytes(head, room/4, lines/4)]
	}
	o.OmittedBytes += uint64(len(head) - len(keptHead) + len(tail) - len(keptTail))
	o.OmittedLines += uint32(strings.Count(head[len(keptHead):], "\n") + strings.Count(tail[:len(tail)-len(keptTail)], "\n"))
	at := len(keptHead)
	if o.Binary {
		at = 0 // the text's length is not the number of bytes
	}
	o.Text = fmt.Sprintf("%s\n[... %d bytes omitted; read them with execution_logs: execution_id %q, stream %q, cursor %d ...]\n%s",
		keptHead, o.OmittedBytes, id, stream, at, keptTail)
}

// splitOutput takes out the mark that the runner puts where it left bytes out.
// Text without it is all tail.
func splitOutput(o *skerryv1.Output) (head, tail string, cut bool) {
	mark := fmt.Sprintf("\n[... %d bytes omitted; the log has them ...]\n", o.OmittedBytes)
	// The last one: the command itself may have printed the like before.
	i := strings.LastIndex(o.Text, mark)
	if o.OmittedBytes == 0 || i < 0 {
		return "", o.Text, false
	}
	return o.Text[:i], o.Text[i+len(mark):], true
}

// headBytes is the length of the longest start of s with at most room bytes and
// lines that splits no character.
func headBytes(s string, room, lines int) int {
	n := min(len(s), max(room, 0))
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	for i := 0; i < n; i++ {
		if s[i] != '\n' {
			continue
		}
		if lines--; lines <= 0 {
			return i + 1
		}
	}
	return n
}

// tailBytes is the same for the end of s.
func tailBytes(s string, room, lines int) int {
	at := len(s) - min(len(s), max(room, 0))
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	for i := len(s) - 2; i >= at; i-- {
		if s[i] != '\n' {
			continue
		}
		if lines--; lines <= 0 {
			return len(s) - i - 1
		}
	}
	return len(s) - at
}

// boundCommand cuts what was asked for; whoever asked knows it.
func boundCommand(c *skerryv1.Command, room int) {
	if c == nil {
		return
	}
	c.Shell = clipText(c.Shell, room)
	c.ScriptPath = clipText(c.ScriptPath, room)
	c.Cwd = clipText(c.Cwd, room)
	c.Argv, c.Arguments = clipList(c.Argv, room), clipList(c.Arguments, room)
}

func clipList(items []string, room int) []string {
	for i, item := range items {
		if room -= len(item); room < 0 {
			rest := fmt.Sprintf("[... %d of %d arguments omitted]", len(items)-i, len(items))
			return append(items[:i:i], rest)
		}
	}
	return items
}

// boundChanges shortens the lists; the counts stay.
func boundChanges(c *skerryv1.Changes, most, room int) {
	if c == nil {
		return
	}
	for _, l := range []*[]string{&c.Created, &c.Modified, &c.Deleted} {
		n, left := 0, room
		for n < min(len(*l), most) && len((*l)[n]) <= left {
			left -= len((*l)[n])
			n++
		}
		if n < len(*l) {
			*l, c.Truncated = (*l)[:n], true
		}
	}
}

func boundSkipped(s *skerryv1.Snapshot, most int) {
	if s == nil {
		return
	}
	s.Skipped = s.Skipped[:min(len(s.Skipped), most)]
	for _, k := range s.Skipped {
		k.Path = clipText(k.Path, 200)
	}
}
