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
	w, err := newWatch(watchOn{filepath.Join(h.dir, ControlDir), unix.IN_MOVED_TO}, watchOn{h.dir, unix.IN_CLOSE_WRITE})
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
// execution that has begun.
func (h *Handle) Abort(ctx context.Context, reason string) error {
	if _, done, err := ReadExit(h.dir); err != nil || done {
		return err
	}
	if err := h.wish(ctx, abortFile, reason, askAbort); err != nil {
		return fmt.Errorf("abort execution: %w", err)
	}
	return nil
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
