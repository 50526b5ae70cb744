package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func signalByName(name string) int { return int(unix.SignalNum(name)) }

func asConnect(err error, target **connect.Error) bool { return errors.As(err, target) }

func (a *app) execCommand() *cobra.Command {
	c := &cobra.Command{Use: "exec", Short: "Look at executions and end them", Example: "  skerry exec list --state running"}
	c.AddCommand(a.execList(), a.execStatus(), a.execLogs(), a.execAttach(), a.execCancel())
	return group(c)
}

func (a *app) execList() *cobra.Command {
	req := &skerryv1.ListExecutionsRequest{}
	c := &cobra.Command{
		Use: "list", Short: "List the agent's executions, newest first", Example: "  skerry exec list --state failed --limit 10", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := c.executions.ListExecutions(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"ID", "STATE", "VERDICT", "RUNNER", "ACCEPTED", "COMMAND"}}
			for _, e := range res.Msg.Executions {
				rows = append(rows, []string{e.Id, e.State, verdictText(e), e.Runner, stamp(e.GetTimes().GetAccepted()), commandText(e.Command)})
			}
			if err := a.table(rows); err != nil || res.Msg.NextPageToken == "" {
				return err
			}
			_, err = fmt.Fprintf(a.stderr, "more: --page %s\n", res.Msg.NextPageToken)
			return err
		},
	}
	c.Flags().StringVar(&req.State, "state", "", "queued, running, completed, failed, cancelled or unknown")
	c.Flags().StringVar(&req.Runner, "runner", "", "only this runner")
	c.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many (default 50, at most 200)")
	c.Flags().StringVar(&req.PageToken, "page", "", "continue a list")
	choices(c, "state", skerryv1.StateQueued, skerryv1.StateRunning, skerryv1.StateCompleted, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown)
	return c
}

func verdictText(e *skerryv1.Execution) string {
	v := e.Verdict
	switch {
	case v == nil:
		return "-"
	case v.ExitCode != nil:
		return fmt.Sprintf("%s %d", v.Kind, *v.ExitCode)
	case v.Signal != "":
		return v.Kind + " " + v.Signal
	}
	return v.Kind
}

func (a *app) execStatus() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use: "status ID", Short: "Show one execution", Example: "  skerry exec status ex_01... --wait 1m", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			ms := waitMS(wait)
			deadline := time.Now().Add(wait)
			res, err := c.executions.GetExecution(cmd.Context(), connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: args[0], WaitMs: &ms}))
			if err != nil {
				return err
			}
			e, err := a.awaitUntil(cmd.Context(), c, res.Msg.Execution, deadline)
			if err != nil {
				return err
			}
			return a.printExecution(e)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "wait for its end at most this long")
	return c
}

func (a *app) printExecution(e *skerryv1.Execution) error {
	if a.json {
		return a.printJSON(e)
	}
	t := e.GetTimes()
	rows := [][]string{
		{"id", e.Id}, {"state", e.State}, {"verdict", verdictText(e)}, {"detail", orDash(e.GetVerdict().GetDetail())},
		{"command", commandText(e.Command)}, {"agent", e.Agent}, {"runner", e.Runner}, {"workspace", e.Workspace}, {"tier", e.Tier}, {"backend", e.Backend},
		{"accepted", stamp(t.GetAccepted())}, {"started", stamp(t.GetStarted())}, {"ended", stamp(t.GetEnded())},
		{"snapshot", orDash(e.GetSnapshot().GetDigest())}, {"parent", orDash(e.GetSnapshot().GetParent())},
		{"changes", fmt.Sprintf("%d created, %d modified, %d deleted", e.GetChanges().GetCreatedCount(), e.GetChanges().GetModifiedCount(), e.GetChanges().GetDeletedCount())},
	}
	if e.Problem != "" {
		rows = append(rows, []string{"problem", e.Problem})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	printChanges(a.stdout, e.Changes)
	return nil
}

func (a *app) execLogs() *cobra.Command {
	var follow bool
	var tail uint32
	req := &skerryv1.ReadExecutionLogsRequest{}
	c := &cobra.Command{
		Use: "logs ID", Short: "Print an execution's output", Example: "  skerry exec logs --follow ex_01...", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.ExecutionId = args[0]
			if follow {
				_, err := a.follow(cmd.Context(), c, args[0], req.Cursor, req.Stream)
				return err
			}
			if cmd.Flags().Changed("tail") {
				req.TailBytes = &tail
			}
			return a.printLog(cmd.Context(), c, req)
		},
	}
	c.Flags().BoolVar(&follow, "follow", false, "go on until the execution has ended")
	c.Flags().Uint64Var(&req.Cursor, "cursor", 0, "start at this byte of the output")
	c.Flags().StringVar(&req.Stream, "stream", "", "only stdout or stderr")
	c.Flags().Uint32Var(&tail, "tail", 0, "start this many bytes before the end")
	choices(c, "stream", "stdout", "stderr")
	return c
}

// printLog prints all pages up to the present end; with --json one page a line.
func (a *app) printLog(ctx context.Context, c *clients, req *skerryv1.ReadExecutionLogsRequest) error {
	for {
		res, err := c.executions.ReadExecutionLogs(ctx, connect.NewRequest(req))
		if err != nil {
			return err
		}
		page := res.Msg
		if err := a.printPage(page, page.Records, page.DroppedBytes); err != nil {
			return err
		}
		start := req.Cursor
		if req.TailBytes != nil {
			start = page.NextCursor - 1
		}
		if page.End || page.NextCursor <= start {
			return nil
		}
		req.Cursor, req.TailBytes = page.NextCursor, nil
	}
}

func (a *app) printPage(page any, records []*skerryv1.LogRecord, dropped uint64) error {
	if a.json {
		return a.printJSON(page)
	}
	if dropped > 0 {
		_, _ = fmt.Fprintf(a.stderr, "skerry: %d bytes are no longer kept\n", dropped)
	}
	for _, r := range records {
		if err := a.writeRecord(r); err != nil {
			return err
		}
	}
	return nil
}

// resumeFor is how long follow tries to go on after the daemons were lost.
const resumeFor = time.Minute

// follow streams output until the end and gives the ended execution. When the
// connection breaks, as by a restart of a daemon, it goes on at the same byte.
func (a *app) follow(ctx context.Context, c *clients, id string, cursor uint64, stream string) (*skerryv1.Execution, error) {
	f := &following{app: a, clients: c, req: &skerryv1.FollowExecutionLogsRequest{ExecutionId: id, Cursor: cursor, Stream: stream}}
	for {
		final, err := f.once(ctx)
		if final != nil || ctx.Err() != nil || f.seen.IsZero() || !mayResume(err) {
			return final, err
		}
		if time.Since(f.seen) > resumeFor {
			return nil, fmt.Errorf("output interrupted; go on with: skerry exec logs --follow --cursor %d %s: %w", f.req.Cursor, id, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(resumePause):
		}
	}
}

const resumePause = 300 * time.Millisecond

// mayResume: the daemons could not be reached or said to try again. An answer
// that names another problem stands. A broken connection counts as cancelled for
// Connect; whether the caller's own context ended is for the caller to know.
func mayResume(err error) bool {
	if p := problem.Of(err); p != nil {
		return p.Retryable || p.Reason == problem.RunnerUnreachable
	}
	var wireError *connect.Error
	return asConnect(err, &wireError) && connect.CodeOf(err) != connect.CodeDeadlineExceeded
}

// following is a log that is being followed.
type following struct {
	app     *app
	clients *clients
	req     *skerryv1.FollowExecutionLogsRequest // Cursor is where to go on
	seen    time.Time                            // when there last was a connection
}

// once follows over one connection.
func (f *following) once(ctx context.Context) (*skerryv1.Execution, error) {
	in, err := f.clients.executions.FollowExecutionLogs(ctx, connect.NewRequest(f.req))
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	connected := false
	defer func() {
		if connected {
			f.seen = time.Now() // until now, though there may have been nothing to say
		}
	}()
	for in.Receive() {
		connected = true
		f.seen = time.Now()
		page := in.Msg()
		if err := f.app.printPage(page, page.Records, page.DroppedBytes); err != nil {
			return nil, err
		}
		f.req.Cursor = page.NextCursor
		if page.End {
			return page.Execution, nil
		}
	}
	if in.Err() == nil {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the output ended early"))
	}
	return nil, in.Err()
}

func (a *app) execCancel() *cobra.Command {
	var wait time.Duration
	var reason string
	c := &cobra.Command{
		Use: "cancel ID", Short: "End an execution with all its processes", Example: "  skerry exec cancel ex_01... --reason 'wrong input'", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			ms := waitMS(wait)
			deadline := time.Now().Add(wait)
			res, err := c.executions.CancelExecution(cmd.Context(), connect.NewRequest(&skerryv1.CancelExecutionRequest{ExecutionId: args[0], Reason: reason, WaitMs: &ms}))
			if err != nil {
				return err
			}
			e, err := a.awaitUntil(cmd.Context(), c, res.Msg.Execution, deadline)
			if err != nil {
				return err
			}
			if err := a.printExecution(e); err != nil || skerryv1.Terminal(e.State) {
				return err
			}
			return &exitError{code: exitStillRunning}
		},
	}
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait for its end")
	c.Flags().StringVar(&reason, "reason", "", "kept in the record")
	return c
}
