// Command skerry is what agents and admins type: it runs commands on runners,
// moves files, shows history, serves MCP over stdio, and with "skerry dev" runs
// a coordinator and a runner in one process.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by -ldflags "-X main.version=...".
var version = "0.0.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitError ends the program with a code and, unless err is nil, a message.
type exitError struct {
	code int
	err  error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

// Exit codes beside those of waited commands.
const (
	exitStillRunning = 124
	exitOwnError     = 125
)

func run(ctx context.Context, args []string, stdin *os.File, stdout, stderr *os.File) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.command()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !a.begun {
		err = usage(cmd, err)
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			a.fail(exit.err)
		}
		return exit.code
	}
	a.fail(err)
	return exitOwnError
}

// app is what every command shares.
type app struct {
	stdin, stdout, stderr *os.File
	// begun says that the words of the command line were understood.
	begun bool

	json     bool
	endpoint string
	token    string
	context  string
	caFile   string
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "skerry",
		Short:         "Run agents' work in sandboxes on compute hosts",
		Example:       "  skerry dev --data ./data &\n  skerry sh 'python3 analyse.py > result.csv'\n  skerry file cat result.csv",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,

		PersistentPreRun: func(*cobra.Command, []string) { a.begun = true },
	}
	flags := root.PersistentFlags()
	flags.BoolVar(&a.json, "json", false, "print the API message as JSON")
	flags.StringVar(&a.endpoint, "endpoint", "", "coordinator to call, or several separated by commas, of which the first that can be dialled is (else SKERRY_ENDPOINT, else the context file)")
	flags.StringVar(&a.token, "token", "", "bearer token (else SKERRY_TOKEN, else the context file); SKERRY_TOKEN keeps it out of ps")
	flags.StringVar(&a.context, "context", "", "context file (else SKERRY_CONTEXT, else skerry/context.json in the user's configuration)")
	flags.StringVar(&a.caFile, "ca-file", "", "PEM certificates that an https endpoint must chain to (else SKERRY_CA_FILE, else the system's)")
	root.AddCommand(a.shCommand(), a.runCommand(), a.execCommand(), a.portForwardCommand(), a.fileCommand(), a.workspaceCommand(), a.transferCommand(),
		a.runnerCommand(), a.tokenCommand(), a.agentCommand(), a.timerCommand(), a.inboxCommand(), a.clusterCommand(), a.devCommand(), a.mcpCommand(), a.doctorCommand(), a.versionCommand())
	return group(root)
}

// group makes a command that has others below it refuse words that name none
// of them; without any it shows its help.
func group(c *cobra.Command) *cobra.Command {
	c.Args, c.SuggestionsMinimumDistance, c.DisableFlagsInUseLine = cobra.ArbitraryArgs, 2, true
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := fmt.Errorf("unknown command %q", args[0])
		if close := cmd.SuggestionsFor(args[0]); len(close) > 0 {
			err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(close, " or "))
		}
		return usage(cmd, err)
	}
	return c
}

// usage says where to read what may be typed.
func usage(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w; see: %s --help", err, cmd.CommandPath())
}

// choices lets the shell complete a flag whose values are known.
func choices(c *cobra.Command, flag string, values ...string) {
	// It fails only for a flag that does not exist; a test completes them all.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  skerry version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{"version": version})
			}
			_, err := fmt.Fprintln(a.stdout, version)
			return err
		},
	}
}
