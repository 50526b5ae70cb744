package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// session joins this program's standard streams to an interactive execution.
// The output is its log, followed by byte cursor; the input goes by offset, so
// that neither loses or doubles a byte when daemons restart in between.
type session struct {
	app     *app
	clients *clients
	id      string
	// offset of the next byte of input, and the name under which it is written.
	offset uint64
	writer string
	// terminal: the execution has one. keys, if any, leave it.
	terminal bool
	input    bool
	keys     []byte
	// redraw makes a full-screen program paint again.
	redraw bool

	restore func() // the local terminal, from any goroutine
}

var (
	errDetached    = errors.New("detached")
	errInterrupted = errors.New("interrupted")
)

const (
	maxInput = 256 << 10
	// leaveTime is how long detaching waits for what was typed before.
	leaveTime = 2 * time.Second
)

func newSession(a *app, c *clients, e *skerryv1.Execution) *session {
	return &session{app: a, clients: c, id: e.Id, offset: e.InputAccepted, writer: rand.Text(), terminal: e.Terminal, restore: func() {}}
}

// run goes on until the execution ends or the user leaves. Whatever happens, the
// local terminal is as before when it returns.
func (s *session) run(ctx context.Context, cursor uint64) (*skerryv1.Execution, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	raw := s.terminal && isTerminal(s.app.stdin)
	if raw {
		restore, err := rawMode(s.app.stdin)
		if err != nil {
			return nil, err
		}
		s.restore = restore
		defer s.restore()
		stop := s.leaveOnSignals(cancel)
		defer stop()
	} else {
		s.keys = nil // only a raw terminal gives single keys
	}
	switch {
	case s.input:
		s.start(func() { s.forwardInput(ctx, cancel) })
	case raw:
		s.start(func() { s.onlyLook(cancel) })
	}
	if s.terminal && s.input {
		s.start(func() { s.forwardSize(ctx) })
	}
	e, err := s.app.follow(ctx, s.clients, s.id, cursor, "")
	s.restore()
	return e, s.ending(ctx, err)
}

// start runs f, whose panic must not leave the terminal raw.
func (s *session) start(f func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.restore()
				panic(p)
			}
		}()
		f()
	}()
}

// leaveOnSignals adds to the signals that end the program in order.
func (s *session) leaveOnSignals(cancel context.CancelCauseFunc) (stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP, syscall.SIGQUIT)
	// A broken output is an error to see, not an end that leaves the terminal raw.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	done := make(chan struct{})
	s.start(func() {
		select {
		case <-ch:
			cancel(errInterrupted)
		case <-done:
		}
	})
	return func() { signal.Stop(ch); signal.Stop(broken); close(done) }
}

// ending words how following ended.
func (s *session) ending(ctx context.Context, err error) error {
	again := "skerry exec attach " + s.id
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case errors.Is(cause, errDetached):
		return errDetached
	case errors.Is(cause, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errInterrupted):
		return fmt.Errorf("execution %s goes on, but it has not got all of its input: %w", s.id, cause)
	case cause != nil:
		return fmt.Errorf("interrupted; execution %s goes on; attach again with: %s", s.id, again)
	}
	return fmt.Errorf("execution %s goes on, but following it failed; attach again with: %s: %w", s.id, again, err)
}

// forwardInput reads standard input and writes it to the execution, apart from
// each other: keys that leave work while a command does not read.
func (s *session) forwardInput(ctx context.Context, cancel context.CancelCauseFunc) {
	chunks := make(chan []byte, 16)
	written := make(chan struct{})
	var failure error
	s.start(func() {
		defer close(written)
		failure = s.writeAll(ctx, chunks)
	})
	leaves := s.readAll(written, chunks)
	close(chunks)
	if leaves {
		select {
		case <-written:
		case <-time.After(leaveTime):
		}
		cancel(errDetached)
		return
	}
	<-written
	if !isTerminal(s.app.stdin) {
		_ = s.app.stdin.Close() // who writes to it must not wait for ever
	}
	switch {
	case failure == nil || ctx.Err() != nil:
	case s.terminal:
		s.note("input is no longer sent: %s", oneLine(message(failure)))
	default: // the command would wait for the rest for ever
		cancel(fmt.Errorf("input: %w", failure))
	}
}

// onlyLook passes no key on; ctrl-c leaves too.
func (s *session) onlyLook(cancel context.CancelCauseFunc) {
	const interrupt = 3
	keys := detacher{keys: s.keys}
	buf := make([]byte, 256)
	for {
		n, err := s.app.stdin.Read(buf)
		if _, leave := keys.scan(buf[:n]); leave || bytes.IndexByte(buf[:n], interrupt) >= 0 {
			cancel(errDetached)
			return
		}
		if err != nil {
			return
		}
	}
}

// note tells something beside the output, on a line of its own.
func (s *session) note(format string, args ...any) {
	_, _ = fmt.Fprintf(s.app.stderr, "\r\nskerry: "+format+"\r\n", args...)
}

// readAll reads until the end of the input, the keys that leave, or gone.
func (s *session) readAll(gone <-chan struct{}, chunks chan<- []byte) (leaves bool) {
	keys := detacher{keys: s.keys}
	for {
		buf := make([]byte, 32<<10)
		n, err := s.app.stdin.Read(buf)
		data, leave := keys.scan(buf[:n])
		if len(data) > 0 {
			select {
			case chunks <- data:
			case <-gone:
				return false
			}
		}
		if leave {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// writeAll writes what comes; the end of a pipe's input is its end there too.
func (s *session) writeAll(ctx context.Context, chunks <-chan []byte) error {
	for data := range chunks {
		if closed, err := s.write(ctx, data, false); err != nil || closed {
			return err
		}
	}
	if s.terminal {
		return nil
	}
	_, err := s.write(ctx, nil, true)
	return err
}

// write goes on until all of data is the execution's or it takes no more.
func (s *session) write(ctx context.Context, data []byte, end bool) (closed bool, err error) {
	seen := time.Now()
	for len(data) > 0 || end {
		n := min(len(data), maxInput)
		res, err := s.clients.executions.WriteInput(ctx, connect.NewRequest(&skerryv1.WriteInputRequest{ExecutionId: s.id, Offset: s.offset,
			Data: data[:n], Close: end && n == len(data), Writer: s.writer}))
		switch at, corrected := rightOffset(err); {
		case err == nil:
			s.offset, data, seen = res.Msg.Accepted, data[res.Msg.Written:], time.Now()
			if res.Msg.Closed {
				return true, nil
			}
		case corrected: // somebody else is attached and typed first
			s.offset, seen = at, time.Now()
		case ctx.Err() != nil:
			return false, ctx.Err()
		case !mayResume(err) || time.Since(seen) > resumeFor:
			return false, err
		default:
			if err := rest(ctx, resumePause); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// rightOffset reads where input goes on from an error that says so.
func rightOffset(err error) (uint64, bool) {
	p := problem.Of(err)
	if p.GetField() != "offset" || p.GetExpected() == "" {
		return 0, false
	}
	at, perr := strconv.ParseUint(p.Expected, 10, 64)
	return at, perr == nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// forwardSize tells the execution of each new size of the window.
func (s *session) forwardSize(ctx context.Context) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	defer signal.Stop(ch)
	if rows, cols, ok := s.app.windowSize(); ok && s.redraw {
		_ = s.resize(ctx, otherThan(rows), cols)
		_ = s.resize(ctx, rows, cols)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ch:
		}
		for lost := time.Now(); time.Since(lost) < resumeFor; {
			rows, cols, ok := s.app.windowSize()
			if !ok {
				break
			}
			if err := s.resize(ctx, rows, cols); err == nil || !mayResume(err) {
				break
			}
			if rest(ctx, resumePause) != nil {
				return
			}
		}
	}
}

// otherThan gives a size that differs: only a change tells programs.
func otherThan(rows uint32) uint32 {
	if rows > 1 {
		return rows - 1
	}
	return rows + 1
}

func (s *session) resize(ctx context.Context, rows, cols uint32) error {
	_, err := s.clients.executions.ResizeTerminal(ctx, connect.NewRequest(&skerryv1.ResizeTerminalRequest{ExecutionId: s.id, Rows: rows, Cols: cols}))
	return err
}
