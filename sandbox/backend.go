package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"skerry.internal/sandbox/bubblewrap"
	"skerry.internal/sandbox/containerd"
	"skerry.internal/sandbox/supervisor"
)

// backend makes sandboxes from documents. What it makes must pass the suite in
// conformance_test.go.
type backend interface {
	// Command gives the supervisor's orders.
	Command(doc *specs.Spec) (supervisor.Spec, error)
	// Begin makes the sandbox for a supervisor that waits for it; ready returns
	// when it does.
	Begin(ctx context.Context, id, dir string, doc *specs.Spec, ready func(context.Context) error) error
	// Begun tells how far an earlier Begin came.
	Begun(ctx context.Context, id string) (containerd.Progress, error)
	// End removes what is left when the supervisor has given a verdict.
	End(ctx context.Context, id string) error
	// Sweep is End for all that are not live.
	Sweep(ctx context.Context, live func(id string) bool) error
	Close() error
}

// bwrapBackend's supervisors make their sandboxes themselves.
type bwrapBackend struct{ *bubblewrap.Backend }

func (b bwrapBackend) Command(doc *specs.Spec) (supervisor.Spec, error) {
	return b.Backend.Command(doc, os.Getuid())
}

func (bwrapBackend) Begin(context.Context, string, string, *specs.Spec, func(context.Context) error) error {
	return nil
}

// Begun is asked of executions alone that another backend began.
func (bwrapBackend) Begun(context.Context, string) (containerd.Progress, error) {
	return containerd.NotBegun, errOtherBackend
}

var errOtherBackend = errors.New("the runner was restarted without the backend that was to make it (sandbox.backends)")

func (bwrapBackend) End(context.Context, string) error              { return nil }
func (bwrapBackend) Sweep(context.Context, func(string) bool) error { return nil }
func (bwrapBackend) Close() error                                   { return nil }

// ContainerdConfig says how to reach containerd, and what its sandboxes show.
// Empty fields have the defaults of package containerd.
type ContainerdConfig struct {
	Address, Namespace, Runtime string
	// Image gives the root file system; empty: the host's read-only system.
	Image       string
	Snapshotter string
	// RootUID and RootGID are the container root's on the host: of no agent and
	// of nobody else. Zero means 65532.
	RootUID, RootGID uint32
}

const defaultRootID = 65532

func (c *ContainerdConfig) applyDefaults() {
	orDefault(&c.Address, containerd.DefaultAddress)
	orDefault(&c.Namespace, containerd.DefaultNamespace)
	orDefault(&c.Runtime, containerd.DefaultRuntime)
	orDefault(&c.Snapshotter, containerd.DefaultSnapshotter)
	orDefault(&c.RootUID, uint32(defaultRootID))
	orDefault(&c.RootGID, c.RootUID)
}

func newContainerd(h *Host) (*containerd.Backend, error) {
	c := h.config.Containerd
	c.applyDefaults()
	points := []string{"/proc", "/dev", "/tmp", "/run", HomeDir, WorkspaceDir, EnvDir, EgressDir, ControlDir}
	return containerd.New(containerd.Config{
		Address: c.Address, Namespace: c.Namespace, Runtime: c.Runtime, Owner: h.config.StateDir,
		Image: c.Image, Snapshotter: c.Snapshotter, RootUID: c.RootUID, RootGID: c.RootGID,
		Init: InitPath, ControlDir: ControlDir, System: h.system.Dirs, Links: map[string]string{"/var/tmp": "/tmp"},
		MountPoints: append(points, h.config.MountPoints...), Files: imageFiles(), Append: imageUsers(), TempDir: h.config.StateDir,
	})
}

// Backend says who makes the sandboxes: Bubblewrap or Containerd.
func (h *Host) Backend() string { return h.config.Backend }

// abortTimeout bounds what is done about a sandbox that could not be made.
const abortTimeout = 30 * time.Second

// Begin makes the sandbox of an execution whose supervisor was started with the
// spec of Command for the same policy. A sandbox that can't be made ends the
// execution at once, as start_failed with the reason that the error gives too.
// When ctx ends first, all stays as it is: Resume of a later daemon goes on.
func (h *Host) Begin(ctx context.Context, id string, execution *supervisor.Handle, p Policy) error {
	if h.backend == nil || !execution.Connects() {
		return nil
	}
	wanted, done := whileWanted(ctx, execution)
	defer done()
	doc, err := h.document(p)
	if err == nil {
		err = h.backend.Begin(wanted, id, execution.Dir(), doc, execution.AwaitDoor)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if wanted.Err() != nil {
		return notAnswered(err)
	}
	return h.giveUp(ctx, id, execution, err)
}

// wantedGrace is how long the making of a sandbox may go on when its supervisor
// has ended, as it does at once after a cancel: containerd answers by then.
const wantedGrace = 5 * time.Second

// whileWanted gives a context that ends soon after the supervisor does: the
// supervisor bounds the set-up, while a containerd that hangs never answers.
func whileWanted(ctx context.Context, execution *supervisor.Handle) (wanted context.Context, done func()) {
	wanted, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = execution.Wait(wanted) // its end alone matters
		select {
		case <-wanted.Done():
		case <-time.After(wantedGrace):
			cancel()
		}
	}()
	return wanted, func() { cancel(); <-gone }
}

// notAnswered: the supervisor has given its verdict meanwhile, and whatever of
// the container there is or will be, End removes.
func notAnswered(err error) error {
	return fmt.Errorf("make sandbox: the execution ended before containerd answered: %w", err)
}

// giveUp asks the supervisor to end the execution, which it refuses if the
// sandbox came in all the same; only then is the container removed.
func (h *Host) giveUp(ctx context.Context, id string, execution *supervisor.Handle, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	begun, err := execution.Abort(ctx, "the sandbox could not be made: "+cause.Error())
	if begun || err != nil {
		return errors.Join(err, unless(begun, cause))
	}
	err = h.backend.End(ctx, id)
	if errors.Is(cause, supervisor.ErrNotAwaited) {
		return err // it was cancelled meanwhile
	}
	return errors.Join(fmt.Errorf("make sandbox: %w", cause), err)
}

func unless(cond bool, err error) error {
	if cond {
		return nil
	}
	return err
}

// Resume is Begin for an execution that an earlier daemon started and whose
// supervisor lives: if its sandbox was not made yet, that is done now. It never
// runs anything twice, as a supervisor lets one sandbox in.
func (h *Host) Resume(ctx context.Context, id string, execution *supervisor.Handle, p Policy) error {
	if h.backend == nil || !execution.Connects() || execution.Begun() {
		return nil
	}
	if err := execution.AwaitDoor(ctx); err != nil {
		if errors.Is(err, supervisor.ErrNotAwaited) {
			return nil
		}
		return err
	}
	wanted, done := whileWanted(ctx, execution)
	progress, err := h.backend.Begun(wanted, id)
	late := wanted.Err() != nil
	done()
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil && late:
		return notAnswered(err)
	case err != nil:
		return h.giveUp(ctx, id, execution, err)
	case progress == containerd.Stopped:
		return h.giveUp(ctx, id, execution, errors.New("its first process ended before it began"))
	case progress == containerd.Running:
		return nil
	}
	return h.Begin(ctx, id, execution, p)
}

// End removes what is left of an execution that has a verdict.
func (h *Host) End(ctx context.Context, id string) error {
	if h.backend == nil {
		return nil
	}
	return h.backend.End(ctx, id)
}

// Sweep removes the sandboxes of this host's state directory for which no
// execution is live, as a daemon that was killed leaves them.
func (h *Host) Sweep(ctx context.Context, live func(id string) bool) error {
	if h.backend == nil {
		return nil
	}
	return h.backend.Sweep(ctx, live)
}
