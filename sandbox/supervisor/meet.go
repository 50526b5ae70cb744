package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connectFlag stands in init's arguments where the descriptor stands otherwise.
const connectFlag = "--connect"

// meeting is what init has of the shim.
type meeting struct {
	control int
	argv    []string
	config  initConfig
	rights  []int // descriptors that came with the configuration
}

// meetShim gets init's configuration by the inherited control socket, or by one
// that it connects. Nothing is left that init's children could inherit.
func meetShim(args []string) (meeting, error) {
	if len(args) > 1 && args[0] == connectFlag {
		return meetByConnection(args[1:])
	}
	control, argv, err := parseInitArgs(args)
	if err != nil {
		return meeting{}, err
	}
	if err := sealInit(control); err != nil {
		return meeting{}, err
	}
	ignoreSignals()
	buf := make([]byte, maxControlMsg)
	n, err := unix.Read(control, buf)
	if err != nil {
		return meeting{}, fmt.Errorf("read control: %w", err)
	}
	config, err := parseInitConfig(buf[:n])
	return meeting{control: control, argv: argv, config: config}, err
}

// meetByConnection expects PATH -- PROGRAM ARGS...
func meetByConnection(args []string) (meeting, error) {
	if len(args) < 3 || args[1] != "--" {
		return meeting{}, errors.New("usage: init --connect SOCKET -- PROGRAM ARGS")
	}
	// A runtime may have left descriptors of the host open (runc did before
	// 1.1.12): they are closed before anything else happens.
	if err := closeInherited(); err != nil {
		return meeting{}, err
	}
	control, err := connectShim(args[0])
	if err != nil {
		return meeting{}, err
	}
	if err := sealInit(control); err != nil {
		return meeting{}, err
	}
	ignoreSignals()
	m, err := receiveConfig(control)
	m.control, m.argv = control, args[2:]
	if err != nil {
		return m, err
	}
	return m, m.takeStdio()
}

// closeInherited closes all but standard streams and what the Go runtime made
// for itself, which are anonymous inodes.
func closeInherited() error {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	names, err := d.Readdirnames(-1)
	own := int(d.Fd())
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < 3 || fd == own {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + name); err != nil || strings.HasPrefix(to, "anon_inode:[event") {
			continue
		}
		_ = unix.Close(fd)
	}
	return nil
}

// connectShim finds the shim or fails: there is one, which listens, before the
// sandbox is made, and it goes away only when the sandbox is not wanted any more.
func connectShim(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("connect to supervisor: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to supervisor: %w", err)
	}
	return fd, nil
}

// maxRights is standard streams and files.
const maxRights = 8

func receiveConfig(control int) (m meeting, err error) {
	buf, oob := make([]byte, maxControlMsg), make([]byte, unix.CmsgSpace(4*maxRights))
	var n, oobn int
	for {
		n, oobn, _, _, err = unix.Recvmsg(control, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return m, fmt.Errorf("read control: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range msgs {
		if fds, rerr := unix.ParseUnixRights(&msgs[i]); rerr == nil {
			m.rights = append(m.rights, fds...)
		}
	}
	if err != nil {
		return m, fmt.Errorf("read control: %w", err)
	}
	m.config, err = parseInitConfig(buf[:n])
	if err == nil && len(m.rights) != 3+len(m.config.files) {
		err = fmt.Errorf("init config: %d descriptors came, not %d", len(m.rights), 3+len(m.config.files))
	}
	return m, err
}

// takeStdio makes the first three descriptors init's own streams, which the
// command inherits.
func (m *meeting) takeStdio() error {
	for to, from := range m.rights[:3] {
		if err := unix.Dup3(from, to, 0); err != nil {
			return fmt.Errorf("take standard streams: %w", err)
		}
		unix.Close(from)
	}
	return nil
}

// settle puts init, and with it the command, where the files say. It comes after
// the hello, so that a failure is reported as one of the start.
func (m *meeting) settle() error {
	for i, name := range m.config.files {
		f := os.NewFile(uintptr(m.rights[3+i]), name)
		b, err := io.ReadAll(f)
		f.Close()
		if err == nil && name == PlaceFile {
			err = takePlace(strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"))
		}
		if err == nil && name == FilterFile {
			err = loadFilter(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func takePlace(place []string) error {
	if err := unix.Chdir(place[0]); err != nil {
		return &startError{err.(unix.Errno), "change to directory " + place[0]} //nolint:errorlint // x/sys gives bare numbers
	}
	os.Clearenv()
	for _, pair := range place[1:] {
		name, value, _ := strings.Cut(pair, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment variable %s: %w", name, err)
		}
	}
	return nil
}

// filterInstruction is the size of a struct sock_filter.
const filterInstruction = 8

// loadFilter filters every thread of init, and so what it starts. It needs the
// no_new_privs flag, which the sandbox has.
func loadFilter(program []byte) error {
	if len(program) == 0 || len(program)%filterInstruction != 0 {
		return errors.New("load system call filter: not a program")
	}
	prog := unix.SockFprog{Len: uint16(len(program) / filterInstruction), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return &startError{errno, "load the system call filter"}
	}
	return nil
}
