package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// runFlags are what sh and run have in common.
type runFlags struct {
	wait        time.Duration
	background  bool
	timeout     time.Duration
	runner      string
	key         string
	cwd         string
	env         []string
	stdin       bool
	requireTier string
	network     string
	labels      []string
	interactiveFlags
}

func (f *runFlags) register(c *cobra.Command) {
	flags := c.Flags()
	f.interactiveFlags.register(flags)
	flags.DurationVar(&f.wait, "wait", 30*time.Second, "how long to wait for the end (with -i or -t: for ever); the command goes on after that and the exit code is 124")
	flags.BoolVar(&f.background, "background", false, "do not wait; print the execution's id")
	flags.DurationVar(&f.timeout, "timeout", 0, "wall-clock limit of the command (default: the runner's)")
	flags.StringVar(&f.runner, "runner", "", "runner to use (default: the one that the agent uses)")
	flags.StringArrayVar(&f.labels, "runner-label", nil, `condition on the labels of the runner that an agent without one gets: k=v, k!=v or "k in (v, w)" (repeatable)`)
	flags.StringVar(&f.key, "idempotency-key", "", "run at most once for this key")
	flags.StringVar(&f.cwd, "cwd", "", "directory relative to the workspace")
	flags.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for the command (repeatable)")
	flags.BoolVar(&f.stdin, "stdin", false, "send standard input, at most 1 MiB (default: the command reads nothing)")
	flags.StringVar(&f.network, "network", "", "network policy of the runner, or none (default: the runner's, as a rule none)")
	flags.StringVar(&f.requireTier, "require-tier", "", "fail unless the runner's sandbox tier is at least this")
}

func (f *runFlags) options(stdin io.Reader) (*skerryv1.RunOptions, error) {
	o := &skerryv1.RunOptions{Runner: f.runner, Cwd: f.cwd, IdempotencyKey: f.key, RequireTier: f.requireTier, Network: f.network, RunnerSelector: f.labels}
	if f.wait < 0 {
		return nil, errors.New("wait: must not be negative")
	}
	if f.timeout < 0 || (f.timeout > 0 && f.timeout < time.Second) {
		return nil, errors.New("timeout: must be at least 1s")
	}
	o.TimeoutS = uint32((f.timeout + time.Second - 1) / time.Second)
	for _, pair := range f.env {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("env: %q is not NAME=VALUE", pair)
		}
		if o.Env == nil {
			o.Env = map[string]string{}
		}
		o.Env[name] = value
	}
	if f.stdin {
		const most = 1 << 20
		b, err := io.ReadAll(io.LimitReader(stdin, most+1))
		if err != nil {
			return nil, fmt.Errorf("stdin: %w", err)
		}
		if len(b) > most {
			return nil, errors.New("stdin: over the limit of 1048576 bytes; put a file and read it")
		}
		o.Stdin = b
	}
	return o, nil
}

func (a *app) shCommand() *cobra.Command {
	var f runFlags
	var script bool
	c := &cobra.Command{
		Use: "sh [flags] 'COMMAND' [ARG...]", Short: "Run a shell command in the agent's workspace",
		Long:    "Run a shell command in the agent's workspace. With -it it has this terminal; without a command that is an interactive bash.",
		Example: "  skerry sh -it\n  tar c data | skerry sh -i 'tar x'\n  skerry sh 'python3 analyse.py > out.csv'\n  skerry sh --background --timeout 6h ./train.sh\n  skerry sh --network pypi 'pip install --target lib attrs'\n  skerry sh --script jobs/run.sh -- --fast",
		Args: func(cmd *cobra.Command, args []string) error {
			if f.terminal && !script {
				return nil
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.start(cmd.Context(), &f, interactiveShell)
			}
			return a.start(cmd.Context(), &f, func(ctx context.Context, c *clients, o *skerryv1.RunOptions) (*skerryv1.Execution, error) {
				req := &skerryv1.RunShellRequest{Command: args[0], Arguments: args[1:], Options: o}
				if script {
					req.Command, req.ScriptPath = "", args[0]
				}
				res, err := c.executions.RunShell(ctx, connect.NewRequest(req))
				if err != nil {
					return nil, err
				}
				return res.Msg.Execution, nil
			})
		},
	}
	c.Flags().BoolVar(&script, "script", false, "COMMAND is the path of a script in the workspace")
	f.register(c)
	c.Flags().SetInterspersed(true)
	return c
}

// interactiveShell starts bash for somebody who types.
func interactiveShell(ctx context.Context, c *clients, o *skerryv1.RunOptions) (*skerryv1.Execution, error) {
	if _, set := o.Env["PS1"]; !set {
		if o.Env == nil {
			o.Env = map[string]string{}
		}
		o.Env["PS1"] = `skerry:\w\$ `
	}
	res, err := c.executions.RunCommand(ctx, connect.NewRequest(&skerryv1.RunCommandRequest{Program: "/bin/bash", Args: []string{"--noprofile", "--norc", "-i"}, Options: o}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Execution, nil
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use: "run [flags] -- PROG [ARG...]", Short: "Run a program without a shell in the agent's workspace",
		Example: "  skerry run -- python3 analyse.py --input data.csv",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.start(cmd.Context(), &f, func(ctx context.Context, c *clients, o *skerryv1.RunOptions) (*skerryv1.Execution, error) {
				res, err := c.executions.RunCommand(ctx, connect.NewRequest(&skerryv1.RunCommandRequest{Program: args[0], Args: args[1:], Options: o}))
				if err != nil {
					return nil, err
				}
				return res.Msg.Execution, nil
			})
		},
	}
	f.register(c)
	c.Flags().SetInterspersed(false)
	return c
}

type submit func(context.Context, *clients, *skerryv1.RunOptions) (*skerryv1.Execution, error)

// start runs something, shows it as the flags ask and ends as the command did.
func (a *app) start(ctx context.Context, f *runFlags, call submit) error {
	c, err := a.clients()
	if err != nil {
		return err
	}
	o, err := f.options(a.stdin)
	if err != nil {
		return err
	}
	if f.any() {
		if err := f.check(a, f); err != nil {
			return err
		}
		o.Interactive = f.interactiveFlags.options(a)
	}
	deadline := time.Now().Add(f.wait)
	// With --json the answer is held back; else the output is followed as it comes.
	var hold uint32
	if a.json && !f.background {
		hold = waitMS(f.wait)
	}
	o.WaitMs = &hold
	e, err := call(ctx, c, o)
	if err != nil {
		return err
	}
	switch {
	case f.background && a.json:
		return a.printJSON(e)
	case f.background:
		_, err = fmt.Fprintln(a.stdout, e.Id)
		return err
	case f.any():
		return a.interact(ctx, c, f, e)
	case a.json:
		if e, err = a.awaitUntil(ctx, c, e, deadline); err != nil {
			return err
		}
		if err := a.printJSON(e); err != nil {
			return err
		}
	default:
		if e, err = a.show(ctx, c, e, deadline); err != nil {
			return err
		}
	}
	return a.ended(e)
}

const maxWaitMS = 30_000

func waitMS(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), maxWaitMS))
}

// awaitUntil waits in steps of what one call may wait.
func (a *app) awaitUntil(ctx context.Context, c *clients, e *skerryv1.Execution, deadline time.Time) (*skerryv1.Execution, error) {
	for !skerryv1.Terminal(e.State) && time.Until(deadline) > 0 {
		var err error
		if e, err = a.refresh(ctx, c, e, waitMS(time.Until(deadline))); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// refresh reads an execution again, waiting up to ms for its end.
func (a *app) refresh(ctx context.Context, c *clients, e *skerryv1.Execution, ms uint32) (*skerryv1.Execution, error) {
	res, err := c.executions.GetExecution(ctx, connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: e.Id, WaitMs: &ms}))
	if err != nil {
		return nil, fmt.Errorf("execution %s was started, but waiting for it failed: %w", e.Id, err)
	}
	return res.Msg.Execution, nil
}

// show follows the output until the end or the deadline.
func (a *app) show(ctx context.Context, c *clients, e *skerryv1.Execution, deadline time.Time) (*skerryv1.Execution, error) {
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	final, err := a.follow(waiting, c, e.Id, 0, "")
	if err == nil {
		return final, nil
	}
	// The server, who knows the deadline too, may be the first to see it pass.
	if ctx.Err() == nil && (waiting.Err() != nil || connect.CodeOf(err) == connect.CodeDeadlineExceeded) {
		return a.refresh(ctx, c, e, 0)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted; execution %s goes on: skerry exec status %s", e.Id, e.Id)
	}
	return nil, fmt.Errorf("execution %s was started, but following it failed: %w", e.Id, err)
}

// ended turns the end of an execution into the program's exit code.
func (a *app) ended(e *skerryv1.Execution) error {
	code, note := exitCode(e)
	if note != "" && !a.json {
		_, _ = fmt.Fprintf(a.stderr, "skerry: execution %s %s\n", e.Id, note)
	}
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// exitCode is the command's own where it has one, else as shells have it.
func exitCode(e *skerryv1.Execution) (int, string) {
	if !skerryv1.Terminal(e.State) {
		return exitStillRunning, "is still " + e.State + "; follow it with: skerry exec logs --follow " + e.Id
	}
	v := e.Verdict
	detail := ""
	if v.GetDetail() != "" {
		detail = ": " + oneLine(v.Detail)
	}
	switch v.GetKind() {
	case skerryv1.VerdictExited:
		return int(v.GetExitCode()), ""
	case skerryv1.VerdictSignaled:
		return 128 + signalNumber(v.Signal), "was ended by " + v.Signal + detail
	case skerryv1.VerdictStartFailed:
		if v.ExitCode != nil {
			return int(*v.ExitCode), "did not start" + detail
		}
		return exitOwnError, "did not start" + detail
	case skerryv1.VerdictTimedOut:
		return killed, "timed out" + detail
	case skerryv1.VerdictCancelled:
		return killed, "was cancelled" + detail
	case skerryv1.VerdictOOMKilled:
		return killed, "ran out of memory" + detail
	case skerryv1.VerdictQuotaExceeded:
		if v.GetExitCode() != 0 { // it ended by itself
			return int(v.GetExitCode()), "passed the limit of " + v.Limit + detail
		}
		if v.ExitCode != nil {
			return 1, "passed the limit of " + v.Limit + detail
		}
		return killed, "passed the limit of " + v.Limit + detail
	}
	return exitOwnError, "has an unknown outcome" + detail
}

const killed = 128 + int(syscall.SIGKILL)

func signalNumber(name string) int {
	if n := signalByName(name); n > 0 {
		return n
	}
	return int(syscall.SIGKILL)
}

// writeRecord sends raw output to the stream that it came from.
func (a *app) writeRecord(r *skerryv1.LogRecord) error {
	to := a.stdout
	if r.Stream == "stderr" {
		to = a.stderr
	}
	_, err := to.Write(r.Data)
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
		return &exitError{code: exitOwnError, err: errors.New("output closed")}
	}
	return err
}
