package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/testscript"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// TestScripts runs testdata/script/*.txtar against the built programs: one
// skerry dev for all, and for each script an agent of its own, so that they can
// run at once. $ADMIN is the context file of the admin.
//
// Beside the commands of testscript there are:
//
//	code N PROGRAM ARGS...   run a program that must exit with code N
//	has PATH...              the JSON on stdout has these values (a.b.0.c)
//	is PATH VALUE            one of them is VALUE, where \n is a newline
//	setenv NAME PATH         keep one of them in the environment
//	setout NAME              keep the last stdout, without its newline
func TestScripts(t *testing.T) {
	d := newDev(t)
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: d.scriptSetup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": scriptCode, "has": scriptHas, "is": scriptIs, "setenv": scriptSetenv, "setout": scriptSetout,
		},
	})
}

func (d *dev) scriptSetup(env *testscript.Env) error {
	name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	res, err := d.admin().tok.CreateToken(context.Background(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "script-" + strings.ReplaceAll(name, "_", "-")}))
	if err != nil {
		return err
	}
	saved, err := json.Marshal(map[string]string{"endpoint": d.ready.Endpoint, "token": res.Msg.Secret})
	if err != nil {
		return err
	}
	file := filepath.Join(env.WorkDir, ".context.json")
	if err := os.WriteFile(file, saved, 0o600); err != nil {
		return err
	}
	env.Setenv("PATH", binDir+string(os.PathListSeparator)+env.Getenv("PATH"))
	env.Setenv("SKERRY_CONTEXT", file)
	env.Setenv("ADMIN", filepath.Join(d.dir, "context.json"))
	env.Setenv("ENDPOINT", d.ready.Endpoint)
	env.Setenv("TZ", "UTC")
	return nil
}

func scriptCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, not %d", got, want)
	}
}

// jsonAt finds a value in the JSON on the last stdout.
func jsonAt(ts *testscript.TestScript, path string) (string, bool) {
	var at any
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &at); err != nil {
		ts.Fatalf("stdout is not one JSON value: %v", err)
	}
	for step := range strings.SplitSeq(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			next, ok := v[step]
			if !ok {
				return "", false
			}
			at = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return "", false
			}
			at = v[i]
		default:
			return "", false
		}
	}
	return fmt.Sprint(at), true
}

func scriptHas(ts *testscript.TestScript, neg bool, args []string) {
	for _, path := range args {
		if _, ok := jsonAt(ts, path); ok == neg {
			ts.Fatalf("%s: found %v", path, ok)
		}
	}
}

func scriptIs(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: is PATH VALUE")
	}
	got, ok := jsonAt(ts, args[0])
	want := strings.ReplaceAll(args[1], `\n`, "\n")
	if !ok || (got == want) == neg {
		ts.Fatalf("%s is %q (found %v)", args[0], got, ok)
	}
}

func scriptSetenv(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: setenv NAME PATH")
	}
	v, ok := jsonAt(ts, args[1])
	if !ok {
		ts.Fatalf("%s not found", args[1])
	}
	ts.Setenv(args[0], v)
}

func scriptSetout(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: setout NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}
