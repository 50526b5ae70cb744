package rpc

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/execution"
	"skerry.internal/runnerd/workspace"
)

// Limits of a request to run something.
const (
	maxCommandChars = 20000
	maxShellArgs    = 32
	maxShellArg     = 512
	maxArgs         = 256
	maxArg          = 16 << 10
	maxArgsTotal    = 64 << 10
	maxProgram      = 4096
	maxStdin        = 1 << 20
	maxEnvVars      = 100
	maxEnvBytes     = 64 << 10
	maxReason       = 1000
	// MaxWait bounds how long an answer is held back.
	MaxWait     = 30 * time.Second
	defaultWait = 10 * time.Second
)

var (
	keyPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

func noNUL(field, s string) error {
	if strings.ContainsRune(s, 0) {
		return problem.Invalid(field, "remove the NUL byte", "has a NUL byte")
	}
	return nil
}

// shellLaunch checks a RunShellRequest and says how to start it.
func (s *Services) shellLaunch(h http.Header, req *skerryv1.RunShellRequest) (execution.Launch, *skerryv1.Command, error) {
	var none execution.Launch
	if (req.Command == "") == (req.ScriptPath == "") {
		return none, nil, problem.Invalid("command", "give exactly one of command and scriptPath", "command and scriptPath are both set or both empty")
	}
	if n := utf8.RuneCountInString(req.Command); n > maxCommandChars {
		return none, nil, problem.Limit("command", fmt.Sprintf("%d characters", maxCommandChars), "write a script file and run it by scriptPath")
	}
	if err := noNUL("command", req.Command); err != nil {
		return none, nil, err
	}
	if err := checkArgs("arguments", req.Arguments, maxShellArgs, maxShellArg, maxShellArgs*maxShellArg); err != nil {
		return none, nil, err
	}
	script, err := workspace.CleanPath("scriptPath", req.ScriptPath)
	if err != nil {
		return none, nil, err
	}
	argv := []string{"/bin/bash", "--noprofile", "--norc", "-euo", "pipefail"}
	if req.Command != "" {
		argv = append(argv, "-c", req.Command, "bash")
	} else {
		argv = append(argv, "--", "/workspace/"+script)
	}
	command := &skerryv1.Command{Shell: req.Command, ScriptPath: script, Arguments: req.Arguments}
	l, err := s.launch(h, append(argv, req.Arguments...), req.Options, command)
	return l, command, err
}

// commandLaunch checks a RunCommandRequest and says how to start it.
func (s *Services) commandLaunch(h http.Header, req *skerryv1.RunCommandRequest) (execution.Launch, *skerryv1.Command, error) {
	switch {
	case req.Program == "":
		return execution.Launch{}, nil, problem.Invalid("program", "name a program", "is empty")
	case len(req.Program) > maxProgram:
		return execution.Launch{}, nil, problem.Limit("program", fmt.Sprintf("%d bytes", maxProgram), "use a shorter path")
	}
	if err := noNUL("program", req.Program); err != nil {
		return execution.Launch{}, nil, err
	}
	if err := checkArgs("args", req.Args, maxArgs, maxArg, maxArgsTotal); err != nil {
		return execution.Launch{}, nil, err
	}
	argv := append([]string{req.Program}, req.Args...)
	command := &skerryv1.Command{Argv: argv}
	l, err := s.launch(h, argv, req.Options, command)
	return l, command, err
}

func checkArgs(field string, args []string, most, each, total int) error {
	if len(args) > most {
		return problem.Limit(field, fmt.Sprintf("%d arguments", most), "pass a file instead")
	}
	sum := 0
	for i, a := range args {
		at := fmt.Sprintf("%s[%d]", field, i)
		if len(a) > each {
			return problem.Limit(at, fmt.Sprintf("%d bytes an argument", each), "pass a file instead")
		}
		if err := noNUL(at, a); err != nil {
			return err
		}
		sum += len(a)
	}
	if sum > total {
		return problem.Limit(field, fmt.Sprintf("%d bytes together", total), "pass a file instead")
	}
	return nil
}

// launch checks the options that both calls share.
func (s *Services) launch(h http.Header, argv []string, o *skerryv1.RunOptions, command *skerryv1.Command) (execution.Launch, error) {
	l := execution.Launch{Argv: argv, Env: o.GetEnv(), Stdin: o.GetStdin()}
	cwd, err := workspace.CleanPath("options.cwd", o.GetCwd())
	if err != nil {
		return l, err
	}
	l.Cwd, command.Cwd = cwd, cwd
	if k := o.GetIdempotencyKey(); k != "" && !keyPattern.MatchString(k) {
		return l, problem.Invalid("options.idempotencyKey", "use 1 to 128 of A-Z a-z 0-9 . _ : -", "is not a valid key")
	}
	if l.Network, err = s.network(h, o.GetNetwork()); err != nil {
		return l, err
	}
	if len(l.Stdin) > maxStdin {
		return l, problem.Limit("options.stdin", fmt.Sprintf("%d bytes", maxStdin), "upload a file and read it")
	}
	if err := checkEnv(l.Env); err != nil {
		return l, err
	}
	if err := setInteractive(&l, o.GetInteractive()); err != nil {
		return l, err
	}
	if err := s.checkTier(o.GetRequireTier()); err != nil {
		return l, err
	}
	l.Timeout, err = s.timeout(o.GetTimeoutS())
	command.TimeoutS, command.Network = uint32(l.Timeout/time.Second), l.Network
	return l, err
}

func checkEnv(env map[string]string) error {
	if len(env) > maxEnvVars {
		return problem.Limit("options.env", fmt.Sprintf("%d variables", maxEnvVars), "write a file instead")
	}
	sum := 0
	for name, value := range env {
		if !envPattern.MatchString(name) {
			return problem.Invalid("options.env", "use letters, digits and _, not starting with a digit", "%.64q is not a variable name", name)
		}
		if err := noNUL("options.env."+name, value); err != nil {
			return err
		}
		sum += len(name) + len(value)
	}
	if sum > maxEnvBytes {
		return problem.Limit("options.env", fmt.Sprintf("%d bytes together", maxEnvBytes), "write a file instead")
	}
	return nil
}

func (s *Services) checkTier(want string) error {
	if want == "" || s.cfg.TierAtLeast(want) {
		return nil
	}
	e := problem.New(connect.CodeFailedPrecondition, problem.TierUnavailable, "ask for less, or for another runner; skerry doctor tells how to raise the tier",
		"this runner's sandbox tier is %s, not at least %.64q", s.cfg.Tier, want)
	e.Field = "options.requireTier"
	return e
}

func (s *Services) timeout(seconds uint32) (time.Duration, error) {
	if seconds == 0 {
		return s.cfg.DefaultTimeout, nil
	}
	d := time.Duration(seconds) * time.Second
	if d > s.cfg.MaxTimeout {
		return 0, problem.Limit("options.timeoutS", fmt.Sprintf("%d seconds", s.cfg.MaxTimeout/time.Second), "use a shorter time-out or split the work")
	}
	return d, nil
}

// wait reads a wait_ms field.
func wait(field string, ms *uint32, unset time.Duration) (time.Duration, error) {
	if ms == nil {
		return unset, nil
	}
	d := time.Duration(*ms) * time.Millisecond
	if d > MaxWait {
		return 0, problem.Limit(field, fmt.Sprintf("%d milliseconds", MaxWait.Milliseconds()), "wait again with GetExecution")
	}
	return d, nil
}

// limited reads a limit field: 0 is the default.
func limited(field string, value uint32, unset, most int) (int, error) {
	switch {
	case value == 0:
		return unset, nil
	case int64(value) > int64(most):
		return 0, problem.Limit(field, fmt.Sprint(most), "ask for less and page")
	}
	return int(value), nil
}
