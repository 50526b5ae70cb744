package rpc

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func testServices() *Services {
	return &Services{cfg: Config{Tier: "base", TierAtLeast: func(t string) bool { return t == "base" },
		DefaultTimeout: time.Hour, MaxTimeout: 2 * time.Hour}}
}

func many(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func TestShellRequestsAreChecked(t *testing.T) {
	env := map[string]string{}
	for i := range maxEnvVars + 1 {
		env[fmt.Sprintf("V%d", i)] = ""
	}
	ok := func(o *skerryv1.RunOptions) *skerryv1.RunShellRequest {
		return &skerryv1.RunShellRequest{Command: "true", Options: o}
	}
	for name, c := range map[string]struct {
		req           *skerryv1.RunShellRequest
		reason, field string
	}{
		"nothing":         {&skerryv1.RunShellRequest{}, problem.InvalidArgument, "command"},
		"both":            {&skerryv1.RunShellRequest{Command: "a", ScriptPath: "b"}, problem.InvalidArgument, "command"},
		"long":            {&skerryv1.RunShellRequest{Command: strings.Repeat("ä", maxCommandChars+1)}, problem.LimitExceeded, "command"},
		"NUL":             {&skerryv1.RunShellRequest{Command: "a\x00b"}, problem.InvalidArgument, "command"},
		"script outside":  {&skerryv1.RunShellRequest{ScriptPath: "../x"}, problem.PathOutside, "scriptPath"},
		"many arguments":  {&skerryv1.RunShellRequest{Command: "a", Arguments: many(33, "")}, problem.LimitExceeded, "arguments"},
		"a long argument": {&skerryv1.RunShellRequest{Command: "a", Arguments: []string{"", strings.Repeat("x", 513)}}, problem.LimitExceeded, "arguments[1]"},
		"cwd":             {ok(&skerryv1.RunOptions{Cwd: "/etc"}), problem.PathOutside, "options.cwd"},
		"key":             {ok(&skerryv1.RunOptions{IdempotencyKey: "a b"}), problem.InvalidArgument, "options.idempotencyKey"},
		"network":         {ok(&skerryv1.RunOptions{Network: "internet"}), problem.Unsupported, "options.network"},
		"stdin":           {ok(&skerryv1.RunOptions{Stdin: make([]byte, maxStdin+1)}), problem.LimitExceeded, "options.stdin"},
		"env name":        {ok(&skerryv1.RunOptions{Env: map[string]string{"A=B": "c"}}), problem.InvalidArgument, "options.env"},
		"env value":       {ok(&skerryv1.RunOptions{Env: map[string]string{"A": "\x00"}}), problem.InvalidArgument, "options.env.A"},
		"many variables":  {ok(&skerryv1.RunOptions{Env: env}), problem.LimitExceeded, "options.env"},
		"large variables": {ok(&skerryv1.RunOptions{Env: map[string]string{"A": strings.Repeat("x", maxEnvBytes)}}), problem.LimitExceeded, "options.env"},
		"tier":            {ok(&skerryv1.RunOptions{RequireTier: "more"}), problem.TierUnavailable, "options.requireTier"},
		"timeout":         {ok(&skerryv1.RunOptions{TimeoutS: 7201}), problem.LimitExceeded, "options.timeoutS"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := testServices().shellLaunch(nil, c.req)
			p := problem.Of(err)
			if p == nil || p.Reason != c.reason || p.Field != c.field || p.Remedy == "" {
				t.Errorf("%v (%v); want %s on %s with a remedy", err, p, c.reason, c.field)
			}
		})
	}
	l, command, err := testServices().shellLaunch(nil, &skerryv1.RunShellRequest{ScriptPath: "./a//b.sh", Arguments: []string{"-x"}})
	if err != nil || strings.Join(l.Argv, " ") != "/bin/bash --noprofile --norc -euo pipefail -- /workspace/a/b.sh -x" || command.ScriptPath != "a/b.sh" || l.Timeout != time.Hour {
		t.Errorf("script: %v %v %v", l, command, err)
	}
}

func TestCommandRequestsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		req           *skerryv1.RunCommandRequest
		reason, field string
	}{
		"no program":     {&skerryv1.RunCommandRequest{}, problem.InvalidArgument, "program"},
		"long program":   {&skerryv1.RunCommandRequest{Program: strings.Repeat("x", 4097)}, problem.LimitExceeded, "program"},
		"NUL":            {&skerryv1.RunCommandRequest{Program: "a\x00"}, problem.InvalidArgument, "program"},
		"many arguments": {&skerryv1.RunCommandRequest{Program: "a", Args: many(257, "")}, problem.LimitExceeded, "args"},
		"a long one":     {&skerryv1.RunCommandRequest{Program: "a", Args: []string{strings.Repeat("x", maxArg+1)}}, problem.LimitExceeded, "args[0]"},
		"long together":  {&skerryv1.RunCommandRequest{Program: "a", Args: many(5, strings.Repeat("x", maxArg))}, problem.LimitExceeded, "args"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := testServices().commandLaunch(nil, c.req)
			if p := problem.Of(err); p == nil || p.Reason != c.reason || p.Field != c.field {
				t.Errorf("%v; want %s on %s", err, c.reason, c.field)
			}
		})
	}
}

func TestIdentityIgnoresHowLongOneWaits(t *testing.T) {
	wait := uint32(7)
	a := identity(&skerryv1.RunShellRequest{Command: "x", Options: &skerryv1.RunOptions{WaitMs: &wait, Background: true, IdempotencyKey: "k", Cwd: "d"}})
	b := identity(&skerryv1.RunShellRequest{Command: "x", Options: &skerryv1.RunOptions{IdempotencyKey: "k", Cwd: "d", Runner: "r"}})
	c := identity(&skerryv1.RunShellRequest{Command: "x", Options: &skerryv1.RunOptions{IdempotencyKey: "k", Cwd: "e"}})
	if fmt.Sprint(a) != fmt.Sprint(b) || fmt.Sprint(a) == fmt.Sprint(c) {
		t.Errorf("%v | %v | %v", a, b, c)
	}
}

func TestPageTokensAreChecked(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	token := pageToken(digest, &skerryv1.FileInfo{Path: "a\uFFFD", RawPath: []byte("a\xff")})
	after, snapshot, err := parsePage(token, "ignored")
	if err != nil || after != "a\xff" || snapshot != digest {
		t.Fatalf("%q %q %v", after, snapshot, err)
	}
	for _, bad := range []string{"x", digest, digest + "/!", strings.Repeat("x", 72) + "YQ"} {
		if _, _, err := parsePage(bad, ""); problem.Of(err) == nil {
			t.Errorf("parsePage(%q) = %v", bad, err)
		}
	}
}

func TestADamagedObjectIsToldAsSuch(t *testing.T) {
	err := errorMapper{slog.New(slog.DiscardHandler)}.mapped(fmt.Errorf("read: %w", &cas.CorruptError{Reason: "checksum"}), "p")
	if p := problem.Of(err); connect.CodeOf(err) != connect.CodeDataLoss || p.GetReason() != problem.StoreFailed || p.GetRemedy() == "" {
		t.Fatalf("%v %v", err, p)
	}
}
