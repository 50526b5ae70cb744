// Package mcp offers Skerry to agents as a Model Context Protocol server: the
// tools that they know by name, as a client of the API. It holds no state of
// its own; what it names (executions, cursors, snapshots) outlives the session.
package mcp

import (
	"context"
	"log/slog"

	"connectrpc.com/connect"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Starter starts executions.
type Starter interface {
	RunShell(context.Context, *connect.Request[skerryv1.RunShellRequest]) (*connect.Response[skerryv1.RunShellResponse], error)
	RunCommand(context.Context, *connect.Request[skerryv1.RunCommandRequest]) (*connect.Response[skerryv1.RunCommandResponse], error)
}

// Executions looks at executions and ends them.
type Executions interface {
	GetExecution(context.Context, *connect.Request[skerryv1.GetExecutionRequest]) (*connect.Response[skerryv1.GetExecutionResponse], error)
	ListExecutions(context.Context, *connect.Request[skerryv1.ListExecutionsRequest]) (*connect.Response[skerryv1.ListExecutionsResponse], error)
	ReadExecutionLogs(context.Context, *connect.Request[skerryv1.ReadExecutionLogsRequest]) (*connect.Response[skerryv1.ReadExecutionLogsResponse], error)
	CancelExecution(context.Context, *connect.Request[skerryv1.CancelExecutionRequest]) (*connect.Response[skerryv1.CancelExecutionResponse], error)
}

// Files reads and writes workspace files.
type Files interface {
	ListFiles(context.Context, *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error)
	ReadFile(context.Context, *connect.Request[skerryv1.ReadFileRequest]) (*connect.Response[skerryv1.ReadFileResponse], error)
	WriteFile(context.Context, *connect.Request[skerryv1.WriteFileRequest]) (*connect.Response[skerryv1.WriteFileResponse], error)
}

// Timers keeps reminders.
type Timers interface {
	CreateTimer(context.Context, *connect.Request[skerryv1.CreateTimerRequest]) (*connect.Response[skerryv1.CreateTimerResponse], error)
	ListTimers(context.Context, *connect.Request[skerryv1.ListTimersRequest]) (*connect.Response[skerryv1.ListTimersResponse], error)
	CancelTimer(context.Context, *connect.Request[skerryv1.CancelTimerRequest]) (*connect.Response[skerryv1.CancelTimerResponse], error)
}

// Transfers copies files between workspaces.
type Transfers interface {
	StartTransfer(context.Context, *connect.Request[skerryv1.StartTransferRequest]) (*connect.Response[skerryv1.StartTransferResponse], error)
	GetTransfer(context.Context, *connect.Request[skerryv1.GetTransferRequest]) (*connect.Response[skerryv1.GetTransferResponse], error)
	ListTransfers(context.Context, *connect.Request[skerryv1.ListTransfersRequest]) (*connect.Response[skerryv1.ListTransfersResponse], error)
	CancelTransfer(context.Context, *connect.Request[skerryv1.CancelTransferRequest]) (*connect.Response[skerryv1.CancelTransferResponse], error)
	ListTransferWorkspaces(context.Context, *connect.Request[skerryv1.ListTransferWorkspacesRequest]) (*connect.Response[skerryv1.ListTransferWorkspacesResponse], error)
}

// Clients are the parts of the API that the tools call. The generated Connect
// clients satisfy them; ExecutionServiceClient is both of the first two.
type Clients struct {
	Starter    Starter
	Executions Executions
	Files      Files
	Timers     Timers
	Transfers  Transfers
}

// Config is what a server needs beside its clients.
type Config struct {
	// Version is shown to clients.
	Version string
	// Secrets never appear in a result or an error, whatever they come from:
	// the token that the clients carry, above all. Empty ones are ignored.
	Secrets []string
	// Logger gets the protocol's own events; nil: none.
	Logger *slog.Logger
}

const instructions = `Skerry runs commands in a sandbox on a compute host and keeps what they make.
You have one persistent workspace directory; every command starts a fresh process at its root, without network unless a policy is named.
A command is a durable execution: when the wait ends before it does, it goes on. Follow it with execution_status (wait_ms up to 30000) and execution_logs, end it with execution_cancel.
list_files and read_file show the last committed snapshot; an execution's files are committed when it has ended.
An error says its reason, the field or limit at fault and what to do.`

// NewServer makes a server with all tools. Connect it to a transport: Stdio
// for a client that starts it as a program.
func NewServer(c Clients, cfg Config) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "skerry", Title: "Skerry", Version: cfg.Version},
		&sdk.ServerOptions{Instructions: instructions, Logger: cfg.Logger, Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}})
	redact := newRedactor(cfg.Secrets)
	for _, t := range tools(c) {
		s.AddTool(t.declare(), t.handler(redact))
	}
	return s
}

func tools(c Clients) []tool {
	return []tool{
		runShell(c.Starter), runCommand(c.Starter),
		executionStatus(c.Executions), executionLogs(c.Executions), executionCancel(c.Executions),
		listFiles(c.Files), readFile(c.Files), writeFile(c.Files),
		timerCreate(c.Timers), timerList(c.Timers), timerCancel(c.Timers),
		workspaceTransfer(c.Transfers),
	}
}
