package supervisor

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Input makes an execution interactive: its standard input is written while it
// runs, by WriteInput, instead of being a file or /dev/null.
type Input struct {
	// Terminal, if set, gives the command a terminal of this size for all three
	// standard streams, whose output is then one stream, Stdout. Otherwise its
	// standard input is a pipe.
	Terminal *WindowSize `json:"terminal,omitempty"`
}

// WindowSize of a terminal, in characters.
type WindowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// MaxWindow bounds rows and columns.
const MaxWindow = 1000

func (w WindowSize) validate() error {
	if w.Rows < 1 || w.Rows > MaxWindow || w.Cols < 1 || w.Cols > MaxWindow {
		return fmt.Errorf("%w: a terminal of %d rows and %d columns; both must be 1..%d", ErrSpec, w.Rows, w.Cols, MaxWindow)
	}
	return nil
}

func (s *Spec) validateInput() error {
	switch {
	case s.Input == nil:
		return nil
	case s.Stdin != "":
		return fmt.Errorf("%w: stdin and input exclude each other", ErrSpec)
	case s.Input.Terminal != nil:
		return s.Input.Terminal.validate()
	}
	return nil
}

const (
	// MaxInputChunk bounds the data of one request to the shim.
	MaxInputChunk = 32 << 10
	// inputBuffer bounds what the shim holds of input that was not taken yet.
	inputBuffer = 64 << 10
	// inputPatience is how long a request that finds the buffer full may wait.
	inputPatience = 10 * time.Second
	maxParked     = 16
	maxWriters    = 16
	// terminalPoll is how often a full terminal is tried again: the kernel does
	// not tell of all room that comes about in one.
	terminalPoll = 200 * time.Millisecond
)

// input is the shim's side of an interactive command's standard input. Bytes
// are counted from the first; each is taken once, however often a client that
// got no answer repeats itself (I3).
type input struct {
	terminal bool
	hangUp   func() // ends a terminal's session

	fd      int    // -1 until init has sent it, and when it is closed
	pending []byte // taken, not yet written
	total   uint64 // bytes taken
	ending  bool   // no more will come; fd is closed when pending is written
	closed  bool
	writers []writerRun // the latest last
	parked  []parked
}

// writerRun is the last unbroken run of bytes that one writer wrote. It tells a
// repetition from what another writer wrote meanwhile.
type writerRun struct {
	name       string
	start, end uint64
}

// parked is a connection whose answer has to wait.
type parked struct {
	conn  int
	until time.Time
}

func newInput(spec *Input, hangUp func()) *input {
	if spec == nil {
		return nil
	}
	return &input{terminal: spec.Terminal != nil, hangUp: hangUp, fd: -1, pending: make([]byte, 0, inputBuffer)}
}

// accept takes what a request brings and there is room for.
func (in *input) accept(q inputRequest) inputAnswer {
	if q.offset > in.total {
		return inputAnswer{Accepted: in.total, Closed: in.isClosed(), Refusal: refusedGap}
	}
	run := in.runOf(q.writer)
	written := 0
	if run != nil && q.offset >= run.start && q.offset <= run.end {
		written = min(int(run.end-q.offset), len(q.data)) // a repetition
	}
	switch at := q.offset + uint64(written); {
	case in.isClosed():
	case at == in.total:
		n := min(len(q.data)-written, inputBuffer-len(in.pending))
		in.take(q.writer, q.data[written:written+n])
		written += n
		in.ending = q.close && written == len(q.data)
	case written == 0 && (len(q.data) > 0 || q.close):
		return inputAnswer{Accepted: in.total, Refusal: refusedConflict}
	}
	return inputAnswer{Accepted: in.total, Written: written, Closed: in.isClosed()}
}

func (in *input) take(writer string, data []byte) {
	if len(data) == 0 {
		return
	}
	run := writerRun{name: writer, start: in.total}
	if old := in.runOf(writer); old != nil {
		if old.end == in.total {
			run.start = old.start
		}
		in.writers = slices.DeleteFunc(in.writers, func(w writerRun) bool { return w.name == writer })
	} else if len(in.writers) == maxWriters {
		in.writers = slices.Delete(in.writers, 0, 1)
	}
	in.pending = append(in.pending, data...)
	in.total += uint64(len(data))
	run.end = in.total
	in.writers = append(in.writers, run)
}

func (in *input) runOf(writer string) *writerRun {
	for i := range in.writers {
		if in.writers[i].name == writer {
			return &in.writers[i]
		}
	}
	return nil
}

func (in *input) isClosed() bool { return in.closed || in.ending }

func (in *input) full() bool { return len(in.pending) == inputBuffer }

// opened begins to write to fd, which is in's from now on.
func (in *input) opened(fd int) {
	in.fd = fd
	in.flush()
}

// flush writes what the command's side takes now.
func (in *input) flush() {
	for in.fd >= 0 && len(in.pending) > 0 {
		n, err := unix.Write(in.fd, in.pending)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN, err == nil && n == 0:
			in.release()
			return
		case err != nil:
			in.shut() // EPIPE: nobody can read it any more
			return
		default:
			in.pending = in.pending[:copy(in.pending, in.pending[n:])]
		}
	}
	if in.ending && len(in.pending) == 0 && in.fd >= 0 {
		in.finish()
	}
	in.release()
}

// finish ends the input after its last byte: a pipe is closed, the session of a
// terminal is hung up, since closing that would lose the rest of its output.
func (in *input) finish() {
	if in.terminal && !in.closed {
		in.hangUp()
	}
	in.shut()
}

// shut ends the input now. A terminal stays open for its output.
func (in *input) shut() {
	in.closed, in.pending = true, nil
	if !in.terminal && in.fd >= 0 {
		unix.Close(in.fd)
		in.fd = -1
	}
	in.release()
}

// park keeps a connection until there is room.
func (in *input) park(conn int) bool {
	if len(in.parked) == maxParked {
		return false
	}
	in.parked = append(in.parked, parked{conn, time.Now().Add(inputPatience)})
	return true
}

// release answers those who waited, when there is room for much of what they
// bring or none will ever come.
func (in *input) release() {
	if !in.isClosed() && len(in.pending) > inputBuffer/2 {
		return
	}
	in.answerParked(func(parked) bool { return true })
}

func (in *input) answerParked(due func(parked) bool) {
	in.parked = slices.DeleteFunc(in.parked, func(p parked) bool {
		if !due(p) {
			return false
		}
		_ = send(p.conn, inputAnswer{Accepted: in.total, Closed: in.isClosed()}.encode())
		unix.Close(p.conn)
		return true
	})
}

// pollFd is what the main loop waits for.
func (in *input) pollFd() unix.PollFd {
	none := unix.PollFd{Fd: -1}
	switch {
	case in == nil || in.fd < 0 || in.closed:
		return none
	case len(in.pending) > 0:
		return unix.PollFd{Fd: int32(in.fd), Events: unix.POLLOUT}
	case in.terminal: // its hang-up would wake the loop for ever
		return none
	}
	return unix.PollFd{Fd: int32(in.fd)} // an error: nobody reads any more
}

// polled handles what the main loop saw.
func (in *input) polled(events int16) {
	switch {
	case in == nil || in.closed:
	case len(in.pending) > 0 && (events != 0 || in.terminal):
		in.flush()
	case events&unix.POLLERR != 0:
		in.shut()
	}
}

// expire answers those who have waited long enough.
func (in *input) expire(now time.Time) {
	if in != nil {
		in.answerParked(func(p parked) bool { return !now.Before(p.until) })
	}
}

// wakeAt is when the main loop must look again; zero: when something happens.
func (in *input) wakeAt() (at time.Time) {
	if in == nil {
		return at
	}
	if len(in.parked) > 0 {
		at = in.parked[0].until
	}
	if in.terminal && in.fd >= 0 && len(in.pending) > 0 && !in.closed {
		at = earliest(at, time.Now().Add(terminalPoll))
	}
	return at
}

// earliest of two times, of which zero ones don't count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// resize sets the window's size, of which the kernel tells the foreground
// processes (SIGWINCH).
func (in *input) resize(w WindowSize) string {
	switch {
	case in == nil || !in.terminal:
		return refusedNoTerminal
	case in.fd < 0:
		return refusedNotRunning
	}
	err := unix.IoctlSetWinsize(in.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: w.Rows, Col: w.Cols})
	if err != nil {
		return err.Error()
	}
	return ""
}
