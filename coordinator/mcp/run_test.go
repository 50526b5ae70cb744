package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func ended(code int32) *skerryv1.Execution {
	state := skerryv1.StateCompleted
	if code != 0 {
		state = skerryv1.StateFailed
	}
	return &skerryv1.Execution{Id: "ex_1", Runner: "r", Workspace: "ws_1", State: state,
		Verdict: &skerryv1.Verdict{Kind: skerryv1.VerdictExited, ExitCode: &code}, Stdout: &skerryv1.Output{}, Stderr: &skerryv1.Output{}}
}

func TestRunPassesEverything(t *testing.T) {
	var shell *skerryv1.RunShellRequest
	var command *skerryv1.RunCommandRequest
	f := &fake{t: t,
		runShell: func(_ context.Context, r *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
			shell = r
			return ended(3), nil
		},
		runCommand: func(r *skerryv1.RunCommandRequest) (*skerryv1.Execution, error) {
			command = r
			return ended(0), nil
		}}
	s := newSession(t, f)
	rest := `"cwd":"d","runner_id":"r","environment_id":"","wait_ms":0,"background":true,"timeout_s":5,"npu":0,"network":"none","idempotency_key":"k"}`
	a := s.good("run_shell", `{"command":"c","arguments":["1","2"],`+rest)
	zero := uint32(0)
	o := &skerryv1.RunOptions{Cwd: "d", Runner: "r", WaitMs: &zero, Background: true, TimeoutS: 5, Network: "none", IdempotencyKey: "k"}
	if want := (&skerryv1.RunShellRequest{Command: "c", Arguments: []string{"1", "2"}, Options: o}); !proto.Equal(shell, want) {
		t.Errorf("sent %v", shell)
	}
	if a.json["id"] != "ex_1" || a.json["state"] != "failed" || !strings.Contains(a.text[0], "execution ex_1 failed: exited with code 3") {
		t.Errorf("answer %v %v", a.json, a.text)
	}
	s.good("run_command", `{"program":"p","args":["a b",""],`+rest)
	if want := (&skerryv1.RunCommandRequest{Program: "p", Args: []string{"a b", ""}, Options: o}); !proto.Equal(command, want) {
		t.Errorf("sent %v", command)
	}
	s.good("run_shell", `{"scriptPath":"s.sh"}`)
	if shell.ScriptPath != "s.sh" || shell.Options.WaitMs != nil || shell.Options.IdempotencyKey == "" {
		t.Errorf("sent %v", shell)
	}
}

func TestErrorsSpeakTheToolsWords(t *testing.T) {
	var err error
	s := newSession(t, &fake{t: t, runShell: func(context.Context, *skerryv1.RunShellRequest) (*skerryv1.Execution, error) { return nil, err },
		write: func(*skerryv1.WriteFileRequest) (*skerryv1.WriteFileResponse, error) { return nil, err }})
	for _, k := range []struct {
		tool string
		err  error
		want failed
	}{
		{"run_shell", problem.Limit("options.timeoutS", "10 seconds", "use a shorter time-out"),
			failed{Reason: problem.LimitExceeded, Message: "over the limit of 10 seconds", Field: "timeout_s", Limit: "10 seconds", Remedy: "use a shorter time-out"}},
		{"run_shell", problem.Invalid("scriptPath", "x", "is wrong"), failed{Reason: problem.InvalidArgument, Message: "is wrong", Field: "scriptPath", Remedy: "x"}},
		{"run_shell", problem.Limit("arguments[3]", "512 bytes", "x"),
			failed{Reason: problem.LimitExceeded, Message: "over the limit of 512 bytes", Field: "arguments[3]", Limit: "512 bytes", Remedy: "x"}},
		{"run_shell", problem.Missing("options.runner", "no such runner"), failed{Reason: problem.NotFound, Message: "no such runner", Field: "runner_id"}},
		{"run_shell", problem.New(connect.CodeUnavailable, problem.NoRunner, "wait", "no runner is up").Retry(),
			failed{Reason: problem.NoRunner, Message: "no runner is up", Remedy: "wait", Retryable: true}},
		{"write_file", &problem.Error{Code: connect.CodeAlreadyExists, Reason: problem.AlreadyExists, Message: "the path exists", Field: "path", Remedy: "set ifExists to overwrite or append"},
			failed{Reason: problem.AlreadyExists, Message: "the path exists", Field: "path", Remedy: "set if_exists to overwrite or append"}},
		{"write_file", connect.NewError(connect.CodeUnauthenticated, errors.New("no")),
			failed{Reason: "UNAUTHENTICATED", Message: "no", Remedy: "whoever set up this MCP server must give it a valid token"}},
		{"write_file", connect.NewError(connect.CodeUnavailable, errors.New("refused for "+secret)),
			failed{Reason: "UNAVAILABLE", Message: "the coordinator cannot be reached: refused for [redacted]", Retryable: true,
				Remedy: "call again a little later; if that fails, whoever runs Skerry must look"}},
	} {
		err = k.err
		a := s.call(k.tool, map[string]string{"run_shell": `{"command":"x"}`, "write_file": `{"path":"p","content":"c"}`}[k.tool])
		if got := a.problem(t); got != k.want {
			t.Errorf("%v\n got %+v\nwant %+v", k.err, got, k.want)
		}
		for _, part := range []string{k.want.Reason, k.want.Message, k.want.Field, k.want.Limit, k.want.Remedy} {
			if !strings.Contains(a.text[0], part) {
				t.Errorf("text lacks %q: %s", part, a.text[0])
			}
		}
	}
}

// I3: when the answer to a start is lost, the error gives the key with which a
// repeat runs at most once.
func TestI3ALostAnswerNamesItsKey(t *testing.T) {
	var keys []string
	s := newSession(t, &fake{t: t, runShell: func(_ context.Context, r *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		keys = append(keys, r.Options.IdempotencyKey)
		if len(keys) < 3 {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("connection reset"))
		}
		return ended(0), nil
	}})
	p := s.call("run_shell", `{"command":"x"}`).problem(t)
	if p.Reason != problem.OutcomeUnknown || !p.Retryable || !strings.Contains(p.Remedy, fmt.Sprintf("%q", keys[0])) {
		t.Errorf("got %+v", p)
	}
	s.call("run_shell", `{"command":"x"}`)
	s.good("run_shell", `{"command":"x","idempotency_key":"`+keys[0]+`"}`)
	if keys[0] == keys[1] || keys[2] != keys[0] {
		t.Errorf("keys %q", keys)
	}
}

func TestAFaultIsAToolError(t *testing.T) {
	s := newSession(t, &fake{t: t}) // its functions are nil
	if p := s.call("run_shell", `{"command":"x"}`).problem(t); p.Reason != problem.Internal {
		t.Errorf("got %+v", p)
	}
}

func TestSecretsNeverAppear(t *testing.T) {
	e := ended(0)
	e.Stdout = &skerryv1.Output{Text: "token=" + secret + "\n", TotalBytes: 20}
	e.Command = &skerryv1.Command{Shell: "echo " + secret}
	s := newSession(t, &fake{t: t, runShell: func(context.Context, *skerryv1.RunShellRequest) (*skerryv1.Execution, error) { return e, nil },
		read: func(*skerryv1.ReadFileRequest) (*skerryv1.ReadFileResponse, error) {
			return &skerryv1.ReadFileResponse{File: &skerryv1.FileInfo{Path: secret}, Text: secret, Lines: 1, Offset: 1}, nil
		}})
	for _, a := range []answered{s.good("run_shell", `{"command":"x"}`), s.good("read_file", `{"path":"a"}`)} {
		if all := fmt.Sprint(a.json, a.text); strings.Contains(all, secret) || !strings.Contains(all, redacted) {
			t.Errorf("got %s", all)
		}
	}
}

// One call that waits does not hold up the others.
func TestCallsRunAtOnce(t *testing.T) {
	release := make(chan struct{})
	s := newSession(t, &fake{t: t,
		runShell: func(ctx context.Context, _ *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
			select {
			case <-release:
				return ended(0), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		list: func(*skerryv1.ListExecutionsRequest) (*skerryv1.ListExecutionsResponse, error) {
			close(release)
			return &skerryv1.ListExecutionsResponse{}, nil
		}})
	done := make(chan answered)
	go func() { done <- s.call("run_shell", `{"command":"x"}`) }()
	s.good("execution_status", `{}`)
	if a := <-done; a.isError {
		t.Errorf("got %v", a.text)
	}
}
