package rpc

import (
	"context"
	"fmt"
	"maps"
	"regexp"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/execution"
	"skerry.internal/sandbox/supervisor"
)

const maxInput = 256 << 10

var (
	termPattern   = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,64}$`)
	writerPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{0,64}$`)
)

// setInteractive checks how input is to reach the command.
func setInteractive(l *execution.Launch, i *skerryv1.Interactive) error {
	const field = "options.interactive"
	switch {
	case i == nil:
		return nil
	case i.Stdin == (i.Terminal != nil):
		return problem.Invalid(field, "set one of stdin and terminal", "stdin and terminal are both set or both unset")
	case len(l.Stdin) > 0:
		return problem.Invalid("options.stdin", "write it with WriteInput", "is for executions that are not interactive")
	}
	l.Input = &supervisor.Input{}
	if i.Terminal == nil {
		return nil
	}
	rows, err := windowField(field+".terminal.rows", i.Terminal.Rows, 24)
	if err != nil {
		return err
	}
	cols, err := windowField(field+".terminal.cols", i.Terminal.Cols, 80)
	if err != nil {
		return err
	}
	l.Input.Terminal = &supervisor.WindowSize{Rows: rows, Cols: cols}
	return setTerm(l, field+".terminal.term", i.Terminal.Term)
}

// windowField reads rows or columns; unset replaces 0, unless it is 0 itself.
func windowField(field string, value uint32, unset uint16) (uint16, error) {
	switch {
	case value == 0 && unset > 0:
		return unset, nil
	case value == 0:
		return 0, problem.Invalid(field, fmt.Sprintf("use 1..%d", supervisor.MaxWindow), "is 0")
	case value > supervisor.MaxWindow:
		return 0, problem.Limit(field, fmt.Sprint(supervisor.MaxWindow), "use a smaller window")
	}
	return uint16(value), nil
}

// setTerm sets the variable, unless the environment that was asked for has it.
func setTerm(l *execution.Launch, field, term string) error {
	if term == "" {
		term = "xterm"
	}
	if !termPattern.MatchString(term) {
		return problem.Invalid(field, "use 1 to 64 of A-Z a-z 0-9 . _ + -", "is no terminal's name")
	}
	if _, set := l.Env["TERM"]; set {
		return nil
	}
	l.Env = maps.Clone(l.Env)
	if l.Env == nil {
		l.Env = map[string]string{}
	}
	l.Env["TERM"] = term
	return nil
}

// WriteInput implements ExecutionService.
func (s executions) WriteInput(ctx context.Context, req *connect.Request[skerryv1.WriteInputRequest]) (*connect.Response[skerryv1.WriteInputResponse], error) {
	agent, err := agentOf(req.Header())
	if err != nil {
		return nil, err
	}
	m := req.Msg
	if len(m.Data) > maxInput {
		return nil, problem.Limit("data", fmt.Sprintf("%d bytes a call", maxInput), "write it in several calls")
	}
	if !writerPattern.MatchString(m.Writer) {
		return nil, problem.Invalid("writer", "use at most 64 of A-Z a-z 0-9 . _ : -", "is no valid name")
	}
	state, err := s.engine.WriteInput(ctx, agent, m.ExecutionId, supervisor.InputChunk{Writer: m.Writer, Offset: m.Offset, Data: m.Data, Close: m.Close})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.WriteInputResponse{Accepted: state.Accepted, Written: uint32(state.Written), Closed: state.Closed}), nil
}

// ResizeTerminal implements ExecutionService.
func (s executions) ResizeTerminal(ctx context.Context, req *connect.Request[skerryv1.ResizeTerminalRequest]) (*connect.Response[skerryv1.ResizeTerminalResponse], error) {
	agent, err := agentOf(req.Header())
	if err != nil {
		return nil, err
	}
	rows, err := windowField("rows", req.Msg.Rows, 0)
	if err != nil {
		return nil, err
	}
	cols, err := windowField("cols", req.Msg.Cols, 0)
	if err != nil {
		return nil, err
	}
	if err := s.engine.ResizeTerminal(ctx, agent, req.Msg.ExecutionId, supervisor.WindowSize{Rows: rows, Cols: cols}); err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.ResizeTerminalResponse{}), nil
}
