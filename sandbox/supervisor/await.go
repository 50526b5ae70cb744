package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotAwaited says that no supervisor waits for the sandbox: it ended, was
// told to, or has its sandbox already.
var ErrNotAwaited = errors.New("no supervisor waits for the sandbox")

// AwaitDoor returns when the shim waits for its sandbox to connect, so that its
// init may be started now.
func (h *Handle) AwaitDoor(ctx context.Context) error {
	w, err := newWatch(watchOn{filepath.Join(h.dir, ControlDir), unix.IN_MOVED_TO}, watchOn{h.dir, unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO})
	if err != nil {
		return fmt.Errorf("wait for supervisor: %w", err)
	}
	defer w.close()
	for {
		open, err := exists(filepath.Join(h.dir, ControlDir), ControlSocket)
		if open || err != nil {
			return err
		}
		if h.over() {
			return ErrNotAwaited
		}
		if err := w.wait(ctx); err != nil {
			return fmt.Errorf("wait for supervisor: %w", err)
		}
	}
}

// over: the shim has done its work, or knows who its init is.
func (h *Handle) over() bool {
	for _, name := range []string{exitFile, shimFile, voidFile} {
		if found, err := exists(h.dir, name); found || err != nil {
			return true
		}
	}
	if h.end == nil {
		return false
	}
	select {
	case <-h.end.gone:
		return true
	default:
		return false
	}
}

// Abort tells a shim whose sandbox has not connected yet that none will come:
// the execution ends as start_failed with the reason. It does nothing for an
// execution whose sandbox came in, and says so.
func (h *Handle) Abort(ctx context.Context, reason string) (begun bool, err error) {
	if _, done, err := ReadExit(h.dir); err != nil || done {
		return h.Begun(), err
	}
	answer, err := h.wish(ctx, abortFile, reason, askAbort)
	if err != nil {
		return false, fmt.Errorf("abort execution: %w", err)
	}
	return answer == saidBegun || h.Begun(), nil
}

// Begun tells whether the supervisor knows its sandbox's init: the command
// runs, is about to, or has ended.
func (h *Handle) Begun() bool {
	found, _ := exists(h.dir, shimFile)
	return found
}

// Connects tells whether the execution's sandbox is made by another than its
// supervisor.
func (h *Handle) Connects() bool {
	found, _ := exists(h.dir, ControlDir)
	return found
}

// checkAbort obeys the abort file, if there is one and it is not too late.
func (r *run) checkAbort() {
	if !r.spec.connects() || r.initFD >= 0 {
		return
	}
	if b, err := os.ReadFile(abortFile); err == nil {
		r.breakOff(strings.TrimSpace(string(b)))
	}
}
