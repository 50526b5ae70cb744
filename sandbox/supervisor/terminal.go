package supervisor

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// leaderInput is init's end of an interactive leader's input, -1 without one.
// The shim's end of it is made here too and sent over the control socket: init
// alone is inside, where the terminal has to be made, and a pipe made outside
// would stay open in the host command, so that its end could not be seen.
type leaderInput struct {
	fd       int
	terminal bool
}

var noInput = leaderInput{fd: -1}

// encode gives "stream" or "terminal:ROWS:COLS" for init's configuration.
func (i *Input) encode() string {
	if i.Terminal == nil {
		return "stream"
	}
	return fmt.Sprintf("terminal:%d:%d", i.Terminal.Rows, i.Terminal.Cols)
}

func parseInput(s string) (*Input, error) {
	size, isTerminal := strings.CutPrefix(s, "terminal:")
	if !isTerminal {
		if s != "stream" {
			return nil, fmt.Errorf("unknown input %q", s)
		}
		return &Input{}, nil
	}
	var w WindowSize
	if _, err := fmt.Sscanf(size, "%d:%d", &w.Rows, &w.Cols); err != nil {
		return nil, err
	}
	return &Input{Terminal: &w}, w.validate()
}

// openInput must come before the leader, whom the shim lets go only when it has
// its end.
func openInput(control int, i *Input) (leaderInput, error) {
	if i == nil {
		return noInput, nil
	}
	ours, theirs, err := makeInput(i)
	if err != nil {
		return noInput, inputError(err)
	}
	defer unix.Close(theirs)
	if err := sendFile(control, []byte{msgStdin}, theirs); err != nil {
		unix.Close(ours)
		return noInput, err
	}
	return leaderInput{ours, i.Terminal != nil}, nil
}

func inputError(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	return &startError{errno, "open the interactive input"}
}

// makeInput gives the command's end and the shim's, of which only the latter
// does not block.
func makeInput(i *Input) (ours, theirs int, err error) {
	if i.Terminal != nil {
		return openTerminal(*i.Terminal)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	if err := unix.SetNonblock(p[1], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return -1, -1, err
	}
	return p[0], p[1], nil
}

// openTerminal makes a terminal of the sandbox's own devpts. The command's side
// is opened by the other one, not by a path.
func openTerminal(w WindowSize) (ours, theirs int, err error) {
	theirs, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, -1, err
	}
	ours = -1
	if err = unix.IoctlSetPointerInt(theirs, unix.TIOCSPTLCK, 0); err == nil {
		ours, err = openPeer(theirs)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(ours, unix.TIOCSWINSZ, &unix.Winsize{Row: w.Rows, Col: w.Cols})
	}
	if err == nil {
		err = speakUTF8(ours)
	}
	if err != nil {
		unix.Close(theirs)
		if ours >= 0 {
			unix.Close(ours)
		}
		return -1, -1, err
	}
	return ours, theirs, nil
}

func openPeer(master int) (int, error) {
	fd, _, errno := syscall.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// speakUTF8 makes erasing remove whole characters.
func speakUTF8(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag |= unix.IUTF8
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

// leaderHasIt is called when the leader runs. The end of a pipe goes, so that
// the shim sees when the command closes its own. A terminal's side stays open:
// without it, a command that closes its streams for a moment would look like
// the end of the output.
func (l leaderInput) leaderHasIt() {
	if l.fd >= 0 && !l.terminal {
		unix.Close(l.fd)
	}
}

// sendFile sends a message with a descriptor.
func sendFile(fd int, msg []byte, file int) error {
	for {
		err := unix.Sendmsg(fd, msg, unix.UnixRights(file), nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("write control: %w", err)
		}
		return nil
	}
}

// takeTerminal makes fd the standard streams and the controlling terminal. It
// runs in the forked child, see becomeLeader.
//
//go:norace
//go:nosplit
//go:nocheckptr
func takeTerminal(p *leaderPlan) syscall.Errno {
	if p.terminal {
		if _, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, p.input, unix.TIOCSCTTY, 0); errno != 0 {
			return errno
		}
	}
	for fd := uintptr(0); fd < p.streams; fd++ {
		if _, _, errno := syscall.RawSyscall(unix.SYS_DUP3, p.input, fd, 0); errno != 0 {
			return errno
		}
	}
	return 0
}
