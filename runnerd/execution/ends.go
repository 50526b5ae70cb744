package execution

import (
	"context"
	"errors"
	"strings"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
)

const (
	// endsPage is how many ends one message may have.
	endsPage = 256
	// commandBytes of what ran are told with its end.
	commandBytes = 200
)

// WatchEnds sends the ends after a number of a log, then each new one, until ctx
// ends or the engine stops. after counts only for the log that it came from: for
// another one all ends are sent. The first message may be empty; it names the log.
func (e *Engine) WatchEnds(ctx context.Context, log string, after uint64, send func(log string, ends []*skerryv1.ExecutionEnd) error) error {
	own, err := e.journal.EndLog(ctx)
	if err != nil {
		return err
	}
	if log != own {
		after = 0
	}
	for first := true; ; first = false {
		more := e.journal.Ended()
		page, err := e.journal.EndsAfter(ctx, after, endsPage)
		if err != nil {
			return err
		}
		if first || len(page) > 0 {
			if err := send(own, executionEnds(page)); err != nil {
				return err
			}
		}
		if n := len(page); n > 0 {
			after = page[n-1].Seq
			continue
		}
		select {
		case <-more:
		case <-e.ctx.Done():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func executionEnds(page []journal.End) []*skerryv1.ExecutionEnd {
	var out []*skerryv1.ExecutionEnd
	for _, end := range page {
		r := end.Record
		out = append(out, &skerryv1.ExecutionEnd{Seq: end.Seq, ExecutionId: r.Id, Agent: r.Agent, State: r.State,
			Verdict: r.GetVerdict().GetKind(), ExitCode: r.GetVerdict().ExitCode, Command: commandText(r.GetCommand()), Ended: r.GetTimes().GetEnded()})
	}
	return out
}

func commandText(c *skerryv1.Command) string {
	text := c.GetShell()
	switch {
	case c.GetScriptPath() != "":
		text = strings.Join(append([]string{c.ScriptPath}, c.Arguments...), " ")
	case len(c.GetArgv()) > 0:
		text = strings.Join(c.Argv, " ")
	}
	return strings.ToValidUTF8(text[:min(len(text), commandBytes)], "")
}

// Owner tells whose an execution is.
func (e *Engine) Owner(ctx context.Context, id string) (agent, workspace string, err error) {
	if x := e.find(id); x != nil {
		r := x.snapshot()
		return r.Agent, r.Workspace, nil
	}
	r, err := e.journal.Execution(ctx, id)
	if errors.Is(err, journal.ErrNotFound) {
		return "", "", missing(id)
	}
	return r.GetAgent(), r.GetWorkspace(), err
}

// CancelAll asks for the end of all that has not ended.
func (e *Engine) CancelAll(reason string) {
	e.mu.Lock()
	all := make([]*live, 0, len(e.live))
	for _, x := range e.live {
		all = append(all, x)
	}
	e.mu.Unlock()
	for _, x := range all {
		if h := x.requestCancel(reason); h != nil {
			e.tell(x, h, reason)
		}
	}
}
