package runnerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"skerry.internal/proto/ids"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/execution"
	"skerry.internal/sandbox/sandboxtest"
)

// The test binary is a daemon that crashes when it has these.
const (
	faultDirEnv  = "SKERRY_FAULT_DIR"
	faultStepEnv = "SKERRY_FAULT_STEP" // the number of the step to crash at; 0: none
	faultShimEnv = "SKERRY_FAULT_SHIM"
	faultCtrdEnv = "SKERRY_FAULT_CONTAINERD" // containerd's socket; empty: bubblewrap
)

var shimBinary string

func TestMain(m *testing.M) {
	if dir := os.Getenv(faultDirEnv); dir != "" {
		if err := crashingDaemon(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := sandboxtest.Main(m, &shimBinary)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const faultCommands = 2

// faultReport is what a daemon that lives to the end tells.
type faultReport struct {
	Steps      []string
	Executions []*skerryv1.Execution
	Ran        string
	Head       string
}

// crashingDaemon opens the daemon at dir, asks for the commands, each under a
// key of its own, and waits for their ends.
func crashingDaemon(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Name, cfg.Sandbox.Shim = filepath.Join(dir, "data"), "node1", os.Getenv(faultShimEnv)
	if address := os.Getenv(faultCtrdEnv); address != "" {
		cfg.Sandbox.Backends, cfg.Sandbox.Containerd.Address = []string{"containerd"}, address
	}
	var report faultReport
	var mu sync.Mutex
	deps := Deps{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Metrics: prometheus.NewRegistry(), Step: func(step string) {
		mu.Lock() // of two at a time one dies
		defer mu.Unlock()
		report.Steps = append(report.Steps, step)
		if fmt.Sprint(len(report.Steps)) == os.Getenv(faultStepEnv) {
			fmt.Fprintf(os.Stderr, "crash at step %d: %s\n", len(report.Steps), step)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}}
	d, err := New(ctx, cfg, deps)
	if err != nil {
		return err
	}
	if err := report.ask(ctx, d); err != nil {
		return errors.Join(err, d.Close())
	}
	if err := d.Close(); err != nil {
		return err
	}
	b, err := json.Marshal(&report)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "report.json"), b, 0o600)
}

func (r *faultReport) ask(ctx context.Context, d *Daemon) error {
	const agent = "a"
	known, err := d.workspaces.Recorded(ctx)
	if err != nil {
		return err
	}
	id := ids.New(ids.Workspace, 0, time.UnixMilli(1)).String()
	for earlier := range known {
		id = earlier
	}
	w, err := d.workspaces.Get(ctx, id, agent, 1)
	if err != nil {
		return err
	}
	for n := range faultCommands {
		record := &skerryv1.Execution{Agent: agent, Command: &skerryv1.Command{}, IdempotencyKey: fmt.Sprint("key ", n)}
		launch := execution.Launch{Argv: []string{"sh", "-c", fmt.Sprintf("echo %d >> ran; exit %d", n, n)}, Cwd: ".", Timeout: time.Minute}
		id, err := d.engine.Submit(ctx, w, record, launch, wrapperspb.Int64(int64(n)))
		if err != nil {
			return err
		}
		e, err := d.engine.AwaitEnd(ctx, agent, id)
		if err != nil {
			return err
		}
		r.Executions = append(r.Executions, e)
	}
	all, err := d.engine.List(ctx, agent, "", "", 10)
	if err != nil || len(all) != faultCommands {
		return fmt.Errorf("%d executions: %w", len(all), err)
	}
	b, err := os.ReadFile(filepath.Join(w.Tree(), "ran"))
	r.Ran, r.Head = string(b), w.Head().Tree.String()
	return err
}

// daemonAt runs the daemon in a process of its own, to crash at a step.
func daemonAt(t *testing.T, dir string, step int) (crashed bool, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), faultDirEnv+"="+dir, faultShimEnv+"="+shimBinary, fmt.Sprintf("%s=%d", faultStepEnv, step))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true, string(out)
	}
	if err != nil {
		t.Fatalf("the daemon ended with %v:\n%s", err, out)
	}
	return false, string(out)
}

func readReport(t *testing.T, dir string) faultReport {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	var r faultReport
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// I2, I3: whatever step of an execution the daemon is killed at, and the next
// daemon at whatever step of taking it up again, each command runs once, its own
// exit code is recorded, and what it wrote is committed.
func TestI3KilledAtEveryStep(t *testing.T) {
	sandboxtest.RequireBwrap(t)
	want := []string{"accepted", "turn", "sandbox made", "directory made", "started", "ended", "released", "snapshot taken", "head moved", "committed", "recorded", "forgotten"}
	killAtEach(t, want, faultCommands*len(want))
}

// The same with containerd, whose sandboxes are made in a step of their own.
func TestI3KilledAtEveryStepOnContainerd(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	t.Setenv(faultCtrdEnv, c.Address)
	want := []string{"accepted", "turn", "sandbox made", "directory made", "started", "begun", "ended", "released", "snapshot taken", "head moved", "committed", "recorded", "forgotten"}
	killAtEach(t, want, len(want))
	for deadline := time.Now().Add(20 * time.Second); len(c.Shims()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("containers left: %s", c.Ctr("skerry", "containers", "list"))
		}
	}
}

// killAtEach crashes at the first so many steps, of which each command makes the
// wanted ones.
func killAtEach(t *testing.T, want []string, many int) {
	t.Helper()
	whole := faultDir(t)
	daemonAt(t, whole, 0)
	steps := readReport(t, whole).Steps
	if len(steps) != faultCommands*len(want) || strings.Join(steps[:len(want)], ", ") != strings.Join(want, ", ") {
		t.Fatalf("steps: %q", steps)
	}
	for first := 1; first <= many; first++ {
		dir := faultDir(t)
		crashes := 0
		var said strings.Builder
		// The second crash comes at a step that varies with the first.
		for _, step := range []int{first, 1 + first*7%11} {
			crashed, output := daemonAt(t, dir, step)
			said.WriteString(output)
			if crashed {
				crashes++
			}
		}
		_, output := daemonAt(t, dir, 0)
		said.WriteString(output)
		checkFaults(t, readReport(t, dir), fmt.Sprintf("crash at step %d (%s), %d crashes\n%s", first, steps[first-1], crashes, said.String()))
		if crashes == 0 {
			t.Errorf("no crash at step %d", first)
		}
	}
}

// faultDir is below a directory that sandbox users can't pass.
func faultDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func checkFaults(t *testing.T, r faultReport, when string) {
	t.Helper()
	if r.Ran != "0\n1\n" {
		t.Errorf("ran %q: %s", r.Ran, when)
	}
	for n, e := range r.Executions {
		state := skerryv1.StateCompleted
		if n > 0 {
			state = skerryv1.StateFailed
		}
		if e.State != state || e.Verdict.Kind != skerryv1.VerdictExited || int(e.Verdict.GetExitCode()) != n {
			t.Errorf("command %d is %s, %v: %s", n, e.State, e.Verdict, when)
		}
		if created, modified := e.Changes.GetCreatedCount(), e.Changes.GetModifiedCount(); created+modified != 1 {
			t.Errorf("command %d changed %v: %s", n, e.Changes, when)
		}
	}
	if last := r.Executions[len(r.Executions)-1]; last.Snapshot.GetDigest() != r.Head {
		t.Errorf("the head is %s, the last snapshot %s: %s", r.Head, last.Snapshot.GetDigest(), when)
	}
}
