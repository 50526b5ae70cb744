package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func code(e Exit) int {
	if e.Code == nil {
		return -1
	}
	return *e.Code
}

func TestVerdicts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		argv   []string
		kind   Kind
		code   int
		signal string
	}{
		{"zero", []string{"true"}, KindExited, 0, ""},
		{"one", []string{"false"}, KindExited, 1, ""},
		{"126 by itself", []string{"sh", "-c", "exit 126"}, KindExited, 126, ""},
		{"127 by itself", []string{"sh", "-c", "exit 127"}, KindExited, 127, ""},
		{"137 is no signal", []string{"sh", "-c", "exit 137"}, KindExited, 137, ""},
		{"SIGKILL", []string{"sh", "-c", "kill -9 $$"}, KindSignaled, -1, "SIGKILL"},
		{"SIGSEGV", []string{"sh", "-c", "kill -SEGV $$"}, KindSignaled, -1, "SIGSEGV"},
		{"absent program", []string{"no-such-program"}, KindStartFailed, 127, ""},
		{"absent path", []string{"/no/such/program"}, KindStartFailed, 127, ""},
		{"not executable", []string{"/usr/lib/os-release"}, KindStartFailed, 126, ""},
		{"directory", []string{"/usr"}, KindStartFailed, 126, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newFixture(t, tc.argv...).run(t)
			if e.Kind != tc.kind || code(e) != tc.code || e.Signal != tc.signal {
				t.Errorf("got kind %s code %d signal %q (%s), want %s %d %q",
					e.Kind, code(e), e.Signal, e.Detail, tc.kind, tc.code, tc.signal)
			}
			if e.Ended.Before(e.Started) || e.Started.IsZero() {
				t.Errorf("started %s, ended %s", e.Started, e.Ended)
			}
		})
	}
}

func TestOutputAndInput(t *testing.T) {
	f := newFixture(t, "sh", "-c", "cat; echo problem >&2; echo more > /dev/stdout; echo worse > /dev/stderr; cat /dev/stdin; pwd > file")
	if err := os.WriteFile(filepath.Join(f.dir, "stdin"), []byte("input\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.spec.Stdin = "stdin"
	e := f.run(t)
	out, errs := f.output(t)
	if out != "input\nmore\ninput\n" || errs != "problem\nworse\n" || code(e) != 0 {
		t.Errorf("stdout %q, stderr %q, exit %+v", out, errs, e)
	}
	if e.Log.StdoutBytes != uint64(len(out)) || e.Log.StderrBytes != uint64(len(errs)) {
		t.Errorf("log stats %+v", e.Log)
	}
	b, err := os.ReadFile(filepath.Join(f.workspace, "file"))
	if err != nil || string(b) != "/workspace\n" {
		t.Errorf("file in the workspace: %q, %v", b, err)
	}
}

// F07: nothing hangs on an open standard input.
func TestF07StdinIsNull(t *testing.T) {
	e := newFixture(t, "cat").run(t)
	if e.Kind != KindExited || code(e) != 0 {
		t.Errorf("cat without input: %+v", e)
	}
}

func TestSandboxThatCannotBeSetUp(t *testing.T) {
	f := newFixture(t, "true")
	f.spec.Files[0].Args = append(f.spec.Files[0].Args, "--ro-bind", "/no/such/source", "/x")
	e := f.run(t)
	if e.Kind != KindStartFailed || !strings.Contains(e.Detail, "/no/such/source") {
		t.Errorf("got %+v, want start_failed naming the source", e)
	}
}

func TestSpecErrors(t *testing.T) {
	for name, spec := range map[string]Spec{
		"no argv":             {},
		"relative program":    {Argv: []string{"bwrap"}},
		"root credential":     {Argv: []string{"/x"}, Credential: &Credential{0, 1}},
		"stdin elsewhere":     {Argv: []string{"/x"}, Stdin: "../x"},
		"reserved name":       {Argv: []string{"/x"}, Files: []FileArg{{Name: "control"}}},
		"relative file":       {Argv: []string{"/x"}, Files: []FileArg{{Name: "a", Path: "b"}}},
		"negative time":       {Argv: []string{"/x"}, Timeout: -1},
		"relative cgroup dir": {Argv: []string{"/x"}, Cgroups: []CgroupDir{{Path: "x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Start(t.Context(), shimBinary, t.TempDir(), spec); !errors.Is(err, ErrSpec) {
				t.Errorf("got %v, want ErrSpec", err)
			}
		})
	}
}

// I3: a directory is run once, whoever tries again.
func TestSecondStartRefused(t *testing.T) {
	f := newFixture(t, "sh", "-c", "echo once >> /workspace/count")
	f.run(t)
	err := superviseAgain(t, f.dir)
	if !strings.Contains(err, ErrRefused.Error()) {
		t.Errorf("second supervise said %q, want a refusal", err)
	}
	b, _ := os.ReadFile(filepath.Join(f.workspace, "count"))
	if string(b) != "once\n" {
		t.Errorf("the command ran again: %q", b)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	f := newFixture(t, "sleep", "100")
	h := f.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
}
