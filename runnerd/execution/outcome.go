package execution

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"strings"
	"unicode/utf8"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox"
	"skerry.internal/sandbox/supervisor"
)

// outcome maps the supervisor's exit to the state and verdict of the record.
func outcome(exit supervisor.Exit) (string, *skerryv1.Verdict) {
	v := &skerryv1.Verdict{Kind: string(exit.Kind), Signal: exit.Signal, Detail: withoutHostPaths(exit), Limit: exit.Limit}
	if exit.Code != nil {
		code := int32(*exit.Code)
		v.ExitCode = &code
	}
	switch exit.Kind {
	case supervisor.KindExited:
		if exit.Code != nil && *exit.Code == 0 {
			return skerryv1.StateCompleted, v
		}
		return skerryv1.StateFailed, v
	case supervisor.KindCancelled:
		return skerryv1.StateCancelled, v
	case supervisor.KindLost:
		return skerryv1.StateUnknown, v
	case supervisor.KindSignaled, supervisor.KindTimedOut, supervisor.KindOOMKilled, supervisor.KindQuotaExceeded, supervisor.KindStartFailed:
		return skerryv1.StateFailed, v
	}
	v.Kind, v.Detail = skerryv1.VerdictLost, "verdict of an unknown kind: "+string(exit.Kind)
	return skerryv1.StateUnknown, v
}

var absolutePath = regexp.MustCompile(`/[^\s:;,'"()]+`)

// withoutHostPaths is the detail as an agent may see it. What the supervisor
// says of the sandbox's set-up and of control groups can name paths of the
// host, which the daemon's log has; where the command itself could not be
// started, the path is the agent's own.
func withoutHostPaths(exit supervisor.Exit) string {
	if exit.Kind == supervisor.KindStartFailed && exit.Code != nil {
		return exit.Detail
	}
	return absolutePath.ReplaceAllStringFunc(exit.Detail, func(path string) string {
		for _, inside := range []string{sandbox.WorkspaceDir, sandbox.EnvDir, sandbox.HomeDir} {
			if path == inside || strings.HasPrefix(path, inside+"/") {
				return path
			}
		}
		return "[path]"
	})
}

func usage(exit supervisor.Exit) *skerryv1.Usage {
	return &skerryv1.Usage{UserCpuUs: uint64(exit.Usage.UserMicros), SystemCpuUs: uint64(exit.Usage.SystemMicros),
		MaxRssBytes: uint64(exit.Usage.MaxRSSBytes), PeakMemoryBytes: uint64(exit.Usage.PeakMemoryBytes),
		ReadBytes: uint64(exit.Usage.ReadBytes), WrittenBytes: uint64(exit.Usage.WrittenBytes)}
}

// output makes the bounded text of both streams from the log.
func (e *Engine) output(id string) (stdout, stderr *skerryv1.Output) {
	out, errs, err := supervisor.Summary(e.dir(id), e.cfg.OutputBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.log.Error("output not readable", "execution", id, "err", err)
	}
	return e.text(out), e.text(errs)
}

func (e *Engine) text(s supervisor.StreamSummary) *skerryv1.Output {
	o := &skerryv1.Output{TotalBytes: s.Total, OmittedBytes: s.Omitted}
	o.Binary = !utf8.Valid(s.Head) || !utf8.Valid(s.Tail)
	head, tail := strings.ToValidUTF8(string(s.Head), "\uFFFD"), strings.ToValidUTF8(string(s.Tail), "\uFFFD")
	if s.Omitted == 0 {
		head, tail = head+tail, ""
	}
	head, tail, cut := boundLines(head, tail, e.cfg.OutputLines)
	o.OmittedBytes += cut
	shown := uint64(strings.Count(head, "\n") + strings.Count(tail, "\n"))
	o.OmittedLines = uint32(min(s.Lines-min(shown, s.Lines), math.MaxUint32))
	o.Text = head + tail
	if o.OmittedBytes > 0 {
		o.Text = head + omission(o.OmittedBytes) + tail
	}
	return o
}

// boundLines keeps the first quarter and the last three quarters of `most` lines.
func boundLines(head, tail string, most int) (string, string, uint64) {
	lines := strings.SplitAfter(head, "\n")
	if tail != "" {
		lines = append(lines, strings.SplitAfter(tail, "\n")...)
	}
	if len(lines) <= most {
		return head, tail, 0
	}
	front, back := most/4, most-most/4
	cut := strings.Join(lines[front:len(lines)-back], "")
	return strings.Join(lines[:front], ""), strings.Join(lines[len(lines)-back:], ""), uint64(len(cut))
}

func omission(bytes uint64) string {
	return fmt.Sprintf("\n[... %d bytes omitted; the log has them ...]\n", bytes)
}
