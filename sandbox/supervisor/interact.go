package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What a running execution may answer to input, to a new size and to a request
// for a connection.
var (
	ErrNotInteractive = errors.New("the execution takes no input")
	ErrNoTerminal     = errors.New("the execution has no terminal")
	ErrNotRunning     = errors.New("the execution does not run")
	ErrBusy           = errors.New("too many attempts to connect at once")
	// ErrGatewayPort: the port is the sandbox's own way out (Spec.Forward), which is
	// for its command alone.
	ErrGatewayPort = errors.New("the port is the sandbox's proxy")
)

// InputOffsetError refuses input that does not follow what was taken before:
// bytes are missing, or somebody else wrote meanwhile.
type InputOffsetError struct {
	// Accepted is the offset at which the input goes on.
	Accepted uint64
	// Gap tells missing bytes from a conflict of two writers.
	Gap bool
}

// Error implements error.
func (e *InputOffsetError) Error() string {
	if e.Gap {
		return fmt.Sprintf("input before this offset is missing; it goes on at %d", e.Accepted)
	}
	return fmt.Sprintf("another writer was first; the input goes on at %d", e.Accepted)
}

// InputChunk is input for an interactive execution.
type InputChunk struct {
	// Writer names who writes, in at most MaxWriter bytes: the same offset again
	// from the same writer is a repetition, from another one a conflict.
	Writer string
	// Offset of the first byte of Data: how many bytes were accepted before.
	Offset uint64
	// Data of at most MaxInputChunk bytes.
	Data []byte
	// Close says that nothing follows Data. It hangs up a terminal.
	Close bool
}

// InputState is the state of the input after a chunk.
type InputState struct {
	// Accepted counts all bytes, of all writers.
	Accepted uint64
	// Written is how many of the chunk's bytes are among them, from the first.
	// Fewer than all: go on with the rest, at offset Accepted.
	Written int
	// Closed: no more input is taken, because it was closed, the command closed
	// its side or has ended.
	Closed bool
}

// lookAgain is the pause before a shim that doesn't listen is asked again.
const lookAgain = 20 * time.Millisecond

// WriteInput hands over a chunk. It waits some seconds for room when a command
// does not read, and answers with what it could hand over. To repeat a chunk, at
// the same offset, is harmless; it is what to do after any other error.
func (h *Handle) WriteInput(ctx context.Context, c InputChunk) (InputState, error) {
	request := string(inputRequest{c.Writer, c.Offset, c.Data, c.Close}.encode())
	var a inputAnswer
	exit, err := h.askRunning(ctx, request, &a)
	switch {
	case err != nil:
		return InputState{}, fmt.Errorf("write input: %w", err)
	case exit != nil:
		return InputState{Accepted: exit.InputBytes, Closed: true}, nil
	case a.Refusal == refusedGap || a.Refusal == refusedConflict:
		return InputState{}, &InputOffsetError{Accepted: a.Accepted, Gap: a.Refusal == refusedGap}
	}
	return InputState{a.Accepted, a.Written, a.Closed}, refusal(a.Refusal)
}

// Resize sets the size of the execution's terminal.
func (h *Handle) Resize(ctx context.Context, w WindowSize) error {
	if err := w.validate(); err != nil {
		return err
	}
	var a connectReply
	exit, err := h.askRunning(ctx, string(w.request()), &a)
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	if exit != nil {
		return ErrNotRunning
	}
	return refusal(a.Refusal)
}

// askRunning puts a request to a shim, waiting for one that is about to start
// or to end. It gives the verdict instead when the execution has ended.
func (h *Handle) askRunning(ctx context.Context, request string, answer any) (*Exit, error) {
	for {
		b, err := h.ask(ctx, request)
		if err == nil {
			return nil, json.Unmarshal(b, answer)
		}
		if !shimAbsent(err) {
			return nil, err
		}
		exit, done, err := ReadExit(h.dir)
		if err != nil {
			return nil, err
		}
		if done {
			return &exit, nil
		}
		if err := pause(ctx, lookAgain); err != nil {
			return nil, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func refusal(text string) error {
	switch text {
	case "":
		return nil
	case refusedNotInteractive:
		return ErrNotInteractive
	case refusedNoTerminal:
		return ErrNoTerminal
	case refusedNotRunning:
		return ErrNotRunning
	case refusedBusy:
		return ErrBusy
	case refusedGateway:
		return ErrGatewayPort
	}
	return fmt.Errorf("the shim refused: %s", text)
}

// Connect gives a connection to a port of the sandbox's loopback, on which
// whatever listens there may say anything. Where nothing listens the error is
// ECONNREFUSED. The caller closes it.
func (h *Handle) Connect(ctx context.Context, port uint16) (*os.File, error) {
	const tries = 4
	var f *os.File
	var err error
	for range tries {
		if f, err = h.connect(ctx, port); !cutOff(err) {
			break
		}
	}
	if err = whileEnding(err); err != nil {
		return nil, fmt.Errorf("connect to port %d of the sandbox: %w", port, err)
	}
	return f, nil
}

func (h *Handle) connect(ctx context.Context, port uint16) (*os.File, error) {
	fd, err := h.dialShim()
	if shimAbsent(err) {
		return nil, errNoShim
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) })
	defer stop()
	if err := send(fd, []byte(askConnect+strconv.Itoa(int(port)))); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, got, err := recvFile(fd, buf)
	if ctx.Err() != nil {
		if got >= 0 {
			unix.Close(got)
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return takeConnection(buf[:n], got)
}

// whileEnding words the error of a shim that isn't there: none yet, or no more.
func whileEnding(err error) error {
	if errors.Is(err, fs.ErrNotExist) || cutOff(err) || errors.Is(err, errNoShim) {
		return ErrNotRunning
	}
	return err
}

// errNoShim tells a refused connection to the shim from one to the port.
var errNoShim = errors.New("no shim listens")

func takeConnection(msg []byte, fd int) (*os.File, error) {
	var a connectReply
	err := json.Unmarshal(msg, &a)
	if err == nil {
		err = refusal(a.Refusal)
	}
	if err == nil && a.Errno != 0 {
		err = syscall.Errno(a.Errno)
	}
	if err == nil && fd < 0 {
		err = errNoAnswer
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), "forward"), nil
}

// recvFile reads a message and the descriptor with it; -1: there is none.
func recvFile(fd int, buf []byte) (n, file int, err error) {
	oob := make([]byte, unix.CmsgSpace(4)*2)
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, -1, err
		}
		file = firstFile(oob[:oobn])
		if n == 0 {
			err = errNoAnswer
		}
		return n, file, err
	}
}

// firstFile gives the first descriptor among control messages and closes the
// others.
func firstFile(oob []byte) int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	file := -1
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if file < 0 {
				file = fd
				continue
			}
			unix.Close(fd)
		}
	}
	return file
}
