package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// interactiveFlags are those of sh and run that join this program's terminal to
// the command.
type interactiveFlags struct {
	stdin    bool
	terminal bool
	keys     string
	set      *pflag.FlagSet
}

func (f *interactiveFlags) register(flags *pflag.FlagSet) {
	f.set = flags
	flags.BoolVarP(&f.stdin, "interactive", "i", false, "pass standard input on as it comes, of any length")
	flags.BoolVarP(&f.terminal, "tty", "t", false, "give the command a terminal")
	flags.StringVar(&f.keys, "detach-keys", defaultDetachKeys, "keys that leave the command running, with -it; empty: none")
}

func (f *interactiveFlags) any() bool { return f.stdin || f.terminal }

// check refuses what does not go together.
func (f *interactiveFlags) check(a *app, run *runFlags) error {
	switch {
	case run.stdin:
		return errors.New("stdin: give either --stdin or --interactive")
	case a.json && !run.background:
		return errors.New("json: an interactive command's output is not JSON; with --background the record is printed")
	case f.terminal && f.stdin && !run.background && !isTerminal(a.stdin):
		return errors.New("tty: standard input is no terminal; leave -t out to pipe input to the command")
	}
	_, err := parseKeys(f.keys)
	return err
}

// options says how input is to reach the command.
func (f *interactiveFlags) options(a *app) *skerryv1.Interactive {
	if !f.terminal {
		return &skerryv1.Interactive{Stdin: true}
	}
	rows, cols, _ := a.windowSize()
	return &skerryv1.Interactive{Terminal: &skerryv1.TerminalOptions{Rows: rows, Cols: cols, Term: termName()}}
}

// interact joins the standard streams to an execution just started. Without
// --wait it waits for as long as that takes.
func (a *app) interact(ctx context.Context, c *clients, f *runFlags, e *skerryv1.Execution) error {
	if f.set.Changed("wait") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	s := newSession(a, c, e)
	s.input = f.interactiveFlags.stdin
	s.keys, _ = parseKeys(f.keys) // checked before
	return a.attend(ctx, s, 0)
}

// attend runs a session and ends as the command did.
func (a *app) attend(ctx context.Context, s *session, cursor uint64) error {
	e, err := s.run(ctx, cursor)
	switch {
	case errors.Is(err, errDetached):
		_, err := fmt.Fprintf(a.stderr, "\nskerry: detached; execution %s goes on; attach again with: skerry exec attach %s\n", s.id, s.id)
		return err
	case errors.Is(err, context.DeadlineExceeded):
		e, err = a.refresh(context.WithoutCancel(ctx), s.clients, &skerryv1.Execution{Id: s.id}, 0)
	}
	if err != nil {
		return err
	}
	return a.ended(e)
}

func (a *app) execAttach() *cobra.Command {
	var fromStart, noStdin bool
	var keys string
	c := &cobra.Command{
		Use: "attach ID", Short: "Join this terminal to a running execution",
		Long: "Join this terminal to a running execution: follow its output and, if it was started with --interactive or --tty, type to it.\n" +
			"It ends with the execution, whose exit code it gives, or with the detach keys, which leave it running. Several may be attached at once.",
		Example: "  skerry exec attach ex_01...\n  skerry exec attach --from-start --no-stdin ex_01...\n  skerry exec attach --detach-keys ctrl-],q ex_01...",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json {
				return errors.New("json: an attached terminal is not JSON; read it with: skerry exec logs --json")
			}
			parsed, err := parseKeys(keys)
			if err != nil {
				return err
			}
			c, err := a.clients()
			if err != nil {
				return err
			}
			return a.attach(cmd.Context(), c, args[0], attachment{fromStart, !noStdin, parsed})
		},
	}
	c.Flags().BoolVar(&fromStart, "from-start", false, "print all output that is kept, not only what comes from now on")
	c.Flags().BoolVar(&noStdin, "no-stdin", false, "only look; type nothing (ctrl-c leaves)")
	c.Flags().StringVar(&keys, "detach-keys", defaultDetachKeys, "keys that leave the execution running; empty: none")
	return c
}

type attachment struct {
	fromStart, input bool
	keys             []byte
}

func (a *app) attach(ctx context.Context, c *clients, id string, how attachment) error {
	e, err := a.attachable(ctx, c, id)
	if err != nil {
		return err
	}
	var cursor uint64
	if !how.fromStart {
		var none uint32
		res, err := c.executions.ReadExecutionLogs(ctx, connect.NewRequest(&skerryv1.ReadExecutionLogsRequest{ExecutionId: id, TailBytes: &none, MaxBytes: 1}))
		if err != nil {
			return err
		}
		cursor = res.Msg.NextCursor
	}
	s := newSession(a, c, e)
	s.input = how.input && e.Interactive && !skerryv1.Terminal(e.State)
	s.keys, s.redraw = how.keys, true
	if how.input && !e.Interactive {
		_, _ = fmt.Fprintf(a.stderr, "skerry: execution %s takes no input; following its output\n", id)
	}
	return a.attend(ctx, s, cursor)
}

// attachable gives the execution; one that is queued is waited for.
func (a *app) attachable(ctx context.Context, c *clients, id string) (*skerryv1.Execution, error) {
	e := &skerryv1.Execution{Id: id}
	for {
		res, err := c.executions.GetExecution(ctx, connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: id}))
		if err != nil {
			return nil, err
		}
		if e = res.Msg.Execution; e.State != skerryv1.StateQueued {
			return e, nil
		}
		if err := rest(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}
