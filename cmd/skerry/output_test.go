package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// Errors name files, and agents name files: what they put into a name must not
// reach a terminal as a command to it.
func TestErrorsAreHarmlessOnATerminal(t *testing.T) {
	hostile := "a\x1b]0;owned\x07\r\n\u009b2J\u202egnp.exe\u2028"
	for _, err := range []error{
		errors.New(hostile),
		connect.NewError(connect.CodeNotFound, errors.New("path: "+hostile)),
		fmt.Errorf("following failed: %w", connect.NewError(connect.CodeNotFound, errors.New(hostile))),
	} {
		file, ferr := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if ferr != nil {
			t.Fatal(ferr)
		}
		(&app{stderr: file}).fail(err)
		_ = file.Close()
		out, ferr := os.ReadFile(file.Name())
		if ferr != nil {
			t.Fatal(ferr)
		}
		line, ok := strings.CutSuffix(string(out), "\n")
		if !ok || strings.ContainsAny(line, "\x1b\x07\r\n\u009b\u202e\u2028") {
			t.Errorf("printed %q", out)
		}
	}
}

// Who calls a new cluster for the first time lacks its authority, not the cluster.
func TestUnreachableSaysWhatToDo(t *testing.T) {
	for want, cause := range map[string]error{
		"--ca-file":  fmt.Errorf("dial: %w", x509.UnknownAuthorityError{}),
		"skerry dev": errors.New("connection refused"),
	} {
		if got := message(connect.NewError(connect.CodeUnavailable, cause)); !strings.Contains(got, want) {
			t.Errorf("%v: %q does not name %s", cause, got, want)
		}
	}
}
