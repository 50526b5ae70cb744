package mcp

import (
	"context"
	"crypto/rand"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const maxWaitMS = 30_000

// options are the parameters that run_shell and run_command share.
func options() []param {
	return []param{
		{name: "cwd", kind: text, doc: "Working directory relative to the workspace; default: its root."},
		{name: "runner_id", kind: text, doc: "Runner to use; default: the one that you already use."},
		{name: "environment_id", kind: text, doc: "Not supported yet: refused when given.", later: "environments come with a later version"},
		{name: "wait_ms", kind: number, most: maxWaitMS, doc: "How long to wait for the end, in milliseconds; default 10000. The command goes on after that."},
		{name: "background", kind: flag, doc: "Answer at once with the execution id."},
		{name: "timeout_s", kind: number, most: 1<<32 - 1, doc: "Wall-clock limit in seconds after which the command is ended; 0 or absent: the runner's default."},
		{name: "npu", kind: number, most: 1024, doc: "Not supported yet: refused when over 0.", later: "NPUs come with a later version"},
		{name: "network", kind: text, doc: "Network policy by name; default \"none\": no network."},
		{name: "idempotency_key", kind: text, doc: "The same key runs at most once; a repeat gets the first execution. 1 to 128 of A-Z a-z 0-9 . _ : -"},
	}
}

func runOptions(a arguments) *skerryv1.RunOptions {
	o := &skerryv1.RunOptions{
		Runner: get[string](a, "runner_id"), Cwd: get[string](a, "cwd"), WaitMs: a.wait(), Background: get[bool](a, "background"),
		TimeoutS: uint32(get[int64](a, "timeout_s")), Network: get[string](a, "network"), IdempotencyKey: get[string](a, "idempotency_key"),
	}
	if o.IdempotencyKey == "" {
		o.IdempotencyKey, o.FirstUse = "mcp-"+rand.Text(), true
	}
	return o
}

func runShell(c Starter) tool {
	return tool{
		name: "run_shell", title: "Run a shell command",
		description: "Run a bash command (-euo pipefail) or a script of the workspace in a fresh sandboxed process at the workspace root. " +
			"Answers when it has ended or wait_ms has passed, with its execution id, state, verdict, output (head and tail when long) and the files that it created, modified or deleted. " +
			"Give exactly one of command and scriptPath. Standard input is empty; processes left in the background are ended with the command.",
		params: append([]param{
			{name: "command", kind: text, most: 20_000, doc: "Bash text, at most 20000 characters."},
			{name: "scriptPath", kind: text, doc: "Workspace-relative path of a script that bash runs."},
			{name: "arguments", kind: list, most: 32, doc: "Positional arguments ($1, $2, ...), at most 32 of 512 bytes each."},
		}, options()...),
		hints: hints{destructive: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			o := runOptions(a)
			res, err := c.RunShell(ctx, connect.NewRequest(&skerryv1.RunShellRequest{Command: get[string](a, "command"),
				ScriptPath: get[string](a, "scriptPath"), Arguments: get[[]string](a, "arguments"), Options: o}))
			if err != nil {
				return nil, startError(err, o.IdempotencyKey)
			}
			return executionResult(res.Msg.Execution)
		},
	}
}

func runCommand(c Starter) tool {
	return tool{
		name: "run_command", title: "Run a program",
		description: "Run a program without a shell in a fresh sandboxed process at the workspace root; arguments arrive exactly as given. " +
			"Otherwise as run_shell.",
		params: append([]param{
			{name: "program", kind: text, required: true, doc: "Name on the PATH, or a path."},
			{name: "args", kind: list, most: 256, doc: "Arguments, at most 256 of 16 KiB each and 64 KiB together."},
		}, options()...),
		hints: hints{destructive: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			o := runOptions(a)
			res, err := c.RunCommand(ctx, connect.NewRequest(&skerryv1.RunCommandRequest{Program: get[string](a, "program"),
				Args: get[[]string](a, "args"), Options: o}))
			if err != nil {
				return nil, startError(err, o.IdempotencyKey)
			}
			return executionResult(res.Msg.Execution)
		},
	}
}

func startError(err error, key string) error {
	if unknownOutcome(err) {
		return outcomeUnknown(err, key)
	}
	return err
}
