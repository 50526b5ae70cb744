package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNeverStarted is Wait's answer for an execution whose command was never
// started and, by the void mark now in its directory, never will be.
var ErrNeverStarted = errors.New("execution never started")

// Handle is the daemon's hold on one execution. It owns nothing that needs
// closing, and any number of goroutines may use it.
type Handle struct {
	dir string
	end *shimEnd // nil if the shim isn't our child
}

// Dir is the execution's directory.
func (h *Handle) Dir() string { return h.dir }

// Wait returns the verdict once the execution has ended, or ctx's error. For an
// execution that never started it gives ErrNeverStarted; the reason, where
// the shim gave one, is part of the error.
//
// A daemon that has no descriptor left to look with goes on waiting: its own
// distress says nothing about the execution.
func (h *Handle) Wait(ctx context.Context) (Exit, error) {
	for {
		exit, err := h.wait(ctx)
		if !scarce(err) {
			return exit, err
		}
		if err := waitBlind(ctx); err != nil {
			return Exit{}, fmt.Errorf("wait for execution: %w", err)
		}
	}
}

func (h *Handle) wait(ctx context.Context) (Exit, error) {
	if h.end != nil {
		select {
		case <-h.end.gone:
		case <-ctx.Done():
			return Exit{}, fmt.Errorf("wait for execution: %w", context.Cause(ctx))
		}
		// Our shim is done: a verdict that exists now is durable.
		if exit, found, err := ReadExit(h.dir); found || err != nil {
			return exit, err
		}
	}
	exit, err := h.waitWithoutChild(ctx)
	if err != nil {
		return Exit{}, fmt.Errorf("wait for execution: %w", err)
	}
	return exit, nil
}

// waitWithoutChild goes by the lock alone.
func (h *Handle) waitWithoutChild(ctx context.Context) (Exit, error) {
	for {
		if err := awaitUnlock(ctx, h.dir); err != nil {
			return Exit{}, err
		}
		state, err := resolve(h.dir)
		switch {
		case err != nil:
			return Exit{}, err
		case state == StateRunning:
			continue // a shim that was only about to start
		case state == StateNeverStarted:
			return Exit{}, fmt.Errorf("%w%s", ErrNeverStarted, h.complaint())
		}
		exit, _, err := ReadExit(h.dir)
		return exit, err
	}
}

// awaitUnlock returns when no shim holds the lock. The lock's release is an
// inotify event because the shim holds it open for writing.
func awaitUnlock(ctx context.Context, dir string) error {
	w, err := newWatch(watchOn{dir, unix.IN_CLOSE_WRITE})
	if err != nil {
		return err
	}
	defer w.close()
	for {
		err := probeLock(dir)
		if !errors.Is(err, errLocked) {
			return err
		}
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// Cancel asks for the command's end: SIGTERM, the spec's grace, SIGKILL. It
// returns when the wish is durable and, if a shim listens, known to it; Wait
// tells when it is fulfilled. It may be repeated and comes too late without an
// error: an execution that has ended keeps its verdict.
func (h *Handle) Cancel(ctx context.Context, reason string) error {
	if _, done, err := ReadExit(h.dir); err != nil || done {
		return err
	}
	if _, err := h.wish(ctx, cancelFile, reason, askCancel); err != nil {
		return fmt.Errorf("cancel execution: %w", err)
	}
	return nil
}

// wish leaves a word in the directory, where the first one stands, and tells the
// shim to look. The answer is empty if none listens.
func (h *Handle) wish(ctx context.Context, file, reason, request string) (answer string, err error) {
	found, err := exists(h.dir, file)
	if err == nil && !found {
		err = writeFileDurably(h.dir, file, []byte(reason))
	}
	if err != nil {
		return "", err
	}
	b, err := h.ask(ctx, request)
	if err != nil && !shimAbsent(err) {
		return "", err
	}
	return string(b), nil
}

// Status asks the shim, or reads the verdict if there is one. An execution
// whose shim doesn't answer (it has not begun, or is ending) counts as running.
func (h *Handle) Status(ctx context.Context) (Status, error) {
	exit, done, err := ReadExit(h.dir)
	if err != nil {
		return Status{}, err
	}
	if done {
		return Status{State: stateOf(exit), Started: exit.Started, Log: exit.Log}, nil
	}
	if found, err := exists(h.dir, voidFile); err != nil || found {
		return Status{State: StateNeverStarted}, err
	}
	b, err := h.ask(ctx, askStatus)
	if shimAbsent(err) {
		return Status{State: StateRunning}, nil
	}
	if err != nil {
		return Status{}, fmt.Errorf("ask shim: %w", err)
	}
	return parseStatus(b)
}

func shimAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) ||
		cutOff(err)
}

// cutOff says that a shim was there and closed the connection: it ended, or its
// patience with a client that a busy host holds up did.
func cutOff(err error) bool {
	return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || errors.Is(err, errNoAnswer)
}

var errNoAnswer = errors.New("the shim ended without an answer")

// dialShim connects to the shim's socket, which is reached through the
// directory's descriptor, since its path may be too long for an address.
func (h *Handle) dialShim() (int, error) {
	d, err := os.Open(h.dir)
	if err != nil {
		return -1, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	addr := filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), sockFile)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: addr}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ask sends one request, which may be repeated, and reads the answer.
func (h *Handle) ask(ctx context.Context, request string) (b []byte, err error) {
	const tries = 4
	for range tries {
		if b, err = h.askOnce(ctx, request); !cutOff(err) {
			break
		}
	}
	return b, err
}

func (h *Handle) askOnce(ctx context.Context, request string) ([]byte, error) {
	fd, err := h.dialShim()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// A wake-up for ctx: shutting the socket down ends the blocking calls.
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	defer stop()
	b, err := exchange(fd, request)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return b, err
}

func exchange(fd int, request string) ([]byte, error) {
	if err := send(fd, []byte(request)); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = errNoAnswer
		}
		return buf[:max(n, 0)], err
	}
}

// complaint gives what the shim said, in parentheses.
func (h *Handle) complaint() string {
	if h.end == nil || len(h.end.complaints) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s)", bytes.TrimSpace(h.end.complaints))
}
