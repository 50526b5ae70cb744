package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"skerry.internal/coordinator/mcp"
)

func (a *app) mcpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "mcp", Short: "Serve the agent's tools by the Model Context Protocol on standard input and output", Args: cobra.NoArgs,
		Long: "An MCP client starts this program and speaks with it over its standard input and output; see docs/mcp.md.\n" +
			"The endpoint and the token come from where all commands take them. Executions go on when the client ends.",
		Example: "  skerry mcp\n  SKERRY_ENDPOINT=https://skerry.example:7420 SKERRY_TOKEN=... skerry mcp",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serveMCP(cmd.Context())
		},
	}
}

// serveMCP ends with the input, or at once with ctx: nothing is lost, since
// what runs does not depend on this program.
func (a *app) serveMCP(ctx context.Context) error {
	saved, err := a.resolve()
	if err != nil {
		return err
	}
	c, err := a.clients()
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	server := mcp.NewServer(mcp.Clients{Starter: c.executions, Executions: c.executions, Files: c.files, Timers: c.timers, Transfers: c.transfers},
		mcp.Config{Version: version, Secrets: []string{saved.Token}, Logger: logger})
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, mcp.Stdio(a.stdin, a.stdout)) }()
	select {
	case err := <-ended:
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped by a signal
		}
		return err
	case <-ctx.Done():
		return nil
	}
}
