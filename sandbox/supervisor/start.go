package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// shimEnv keeps the shim small. Its goroutines mostly sit in system calls; with a
// single processor the runtime notices that at once and rests, which saves an
// eighth of the processor time of a short execution.
var shimEnv = []string{"GOMAXPROCS=1", "GOGC=50", "GOMEMLIMIT=16MiB"}

// Start writes the spec into dir, which must exist, be empty and be private
// (0700), and starts a shim that outlives the caller. ctx bounds the start
// alone. A shim that was started is reaped here, so none stays as a zombie.
func Start(ctx context.Context, shimPath, dir string, spec Spec) (*Handle, error) {
	if err := prepareDir(ctx, dir, spec); err != nil {
		return nil, err
	}
	end, err := startShim(shimPath, dir, nil)
	if err != nil {
		return nil, err
	}
	return &Handle{dir: dir, end: end}, nil
}

// startShim starts a shim with the given argument and standard input.
func startShim(shimPath, dir string, stdin *os.File) (*shimEnd, error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start shim: %w", err)
	}
	defer theirs.Close()
	cmd := exec.Command(shimPath, "supervise", dir)
	cmd.Env = shimEnv
	cmd.Stderr = theirs
	if stdin != nil {
		cmd.Stdin = stdin
	}
	// A session of its own: no terminal, no signal meant for the daemon's
	// group. No Pdeathsig: the shim must survive the daemon (I2).
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start shim: %w", err)
	}
	end := &shimEnd{gone: make(chan struct{}), reaped: make(chan struct{})}
	go end.await(cmd, ours)
	return end, nil
}

// shimEnd is what a daemon learns of a shim that is its child. The pipe that is
// the shim's standard error carries its complaints, should it have any, and ends
// when the shim has done its work, a little earlier than the process does.
type shimEnd struct {
	gone       chan struct{}
	complaints []byte // valid once gone is closed
	reaped     chan struct{}
}

func (e *shimEnd) await(cmd *exec.Cmd, stderr *os.File) {
	e.complaints, _ = io.ReadAll(io.LimitReader(stderr, 4<<10))
	close(e.gone)
	stderr.Close()
	_ = cmd.Wait() // the verdict is in the directory, not in the status
	close(e.reaped)
}

// prepareDir makes dir ready for a shim.
func prepareDir(ctx context.Context, dir string, spec Spec) error {
	spec.Version = SpecVersion
	spec.applyDefaults()
	if err := spec.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start shim: %w", err)
	}
	if err := writeSpec(dir, spec); err != nil {
		return fmt.Errorf("start shim: %w", err)
	}
	return nil
}

func writeSpec(dir string, spec Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode spec: %w", err)
	}
	if err := os.Mkdir(filepath.Join(dir, logDir), 0o700); err != nil {
		return err
	}
	if spec.connects() {
		if err := makeControlDir(dir); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, specFile), b, 0o600)
}

// Attach finds an execution again after a restart of the daemon. It must not
// run at the same time as Start for the same directory: where it finds no shim
// it closes the case for good, see State.
func Attach(ctx context.Context, dir string) (*Handle, State, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", fmt.Errorf("attach: %w", err)
	}
	state, err := resolve(dir)
	if err != nil {
		return nil, "", fmt.Errorf("attach to %s: %w", dir, err)
	}
	return &Handle{dir: dir}, state, nil
}
