package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Init is pid 1 of the sandbox: "runnerd-shim init CONTROL_FD -- ARGV...", or
// with "--connect SOCKET" in place of the descriptor. It starts ARGV, reaps every
// orphan (F04), tells the shim how the leader ended and exits, whereby the kernel
// kills whatever is left in the namespace.
//
// The leader and its children are hostile. They share init's uid, but not its
// control socket: it is closed on exec, init is not dumpable (no ptrace, no
// /proc/1/fd), and pidfd_getfd is denied by seccomp. Should they get init
// killed all the same, the shim sees an end without a report, which is never a
// success. Init returns only when it could not do its work.
func Init(args []string) error {
	m, err := meetShim(args)
	if err != nil {
		return err
	}
	control, argv, config := m.control, m.argv, m.config
	if err := send(control, []byte{msgHello}); err != nil {
		return err
	}
	err = m.settle()
	if err == nil {
		err = receiveSecrets(control, config.secrets)
	}
	if err != nil {
		return errors.Join(err, send(control, asStartFailure(err).encode()))
	}
	if config.forward != nil {
		f, err := listenForward(config.forward)
		if err != nil {
			return errors.Join(err, send(control, asStartFailure(err).encode()))
		}
		go f.run()
	}
	input, err := openInput(control, config.input)
	if err != nil {
		return errors.Join(err, send(control, asStartFailure(err).encode()))
	}
	leader, err := startLeader(control, argv, config.limits, input)
	if err != nil {
		return errors.Join(err, send(control, asStartFailure(err).encode()))
	}
	input.leaderHasIt()
	go obeyControl(control)
	return reap(control, leader, config.drain)
}

func parseInitArgs(args []string) (control int, argv []string, err error) {
	if len(args) < 3 || args[1] != "--" {
		return 0, nil, errors.New("usage: init CONTROL_FD -- PROGRAM ARGS...")
	}
	control, err = strconv.Atoi(args[0])
	if err != nil || control < 3 {
		return 0, nil, fmt.Errorf("control descriptor %q: want a number above 2", args[0])
	}
	return control, args[2:], nil
}

// sealInit keeps everything that init holds from its children.
func sealInit(control int) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	err := unix.CloseRange(3, uint(control)-1, unix.CLOSE_RANGE_CLOEXEC)
	if control == 3 {
		err = nil
	}
	if err == nil {
		err = unix.CloseRange(uint(control), 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // before Linux 5.11
		err = closeOnExecAll()
	}
	if err != nil {
		return fmt.Errorf("close descriptors on exec: %w", err)
	}
	return nil
}

func closeOnExecAll() error {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	for fd := 3; fd < int(min(lim.Cur, 65536)); fd++ {
		unix.CloseOnExec(fd)
	}
	return nil
}

// ignoreSignals takes away the handlers of the Go runtime. The kernel shields
// pid 1 from every signal of its own namespace that has no handler, whereas the
// runtime's would end the process. It also spares os/signal's start, which costs
// more than all the rest of init.
func ignoreSignals() {
	var action [64]byte // an all-zero struct sigaction: SIG_DFL
	for sig := uintptr(1); sig <= 64; sig++ {
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action[0])), 0, 8, 0, 0)
	}
}

// obeyControl ends when the shim does, and init with it.
func obeyControl(control int) {
	buf := make([]byte, 16)
	for {
		n, err := unix.Read(control, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			os.Exit(1)
		}
		switch buf[0] {
		case msgTerm:
			signalAll(unix.SIGTERM)
		case msgKill:
			endRest()
		case msgHangUp:
			signalAll(unix.SIGHUP)
		case msgConnect:
			if q, ok := parseConnectRequest(buf[:n]); ok {
				go answerConnect(control, q)
			}
		}
	}
}

// signalAll reaches everything but init itself; a stopped process must see it
// too.
func signalAll(sig unix.Signal) {
	_ = unix.Kill(-1, sig)
	_ = unix.Kill(-1, unix.SIGCONT)
}

// reap collects children until none is left or, once the leader has ended, the
// drain time is over. What all of them used is its last message.
func reap(control, leader int, drain time.Duration) error {
	var sum Usage
	for {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WALL, &usage)
		if err == syscall.EINTR {
			continue
		}
		if err != nil { // ECHILD: the namespace is empty
			if err := send(control, sum.encode()); err != nil {
				return err
			}
			os.Exit(0)
		}
		sum.add(&usage)
		if pid != leader || !(status.Exited() || status.Signaled()) {
			continue
		}
		if err := send(control, leaderEnd{status, usage.Maxrss << 10}.encode()); err != nil {
			return err
		}
		time.AfterFunc(drain, endRest)
	}
}

// endRest kills all but init, which then reaps and counts them; the kernel would
// drop what they used if init ended first. No process escapes a fork during the
// call. Only one that hangs in the kernel outlives the patience.
func endRest() {
	_ = unix.Kill(-1, unix.SIGKILL)
	time.AfterFunc(killPatience/2, func() { os.Exit(0) })
}

func send(fd int, msg []byte) error {
	for {
		err := unix.Sendto(fd, msg, unix.MSG_NOSIGNAL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("write control: %w", err)
		}
		return nil
	}
}

// lookPath gives what execve should try for program, in order.
func lookPath(program string) []string {
	if strings.Contains(program, "/") {
		return []string{program}
	}
	var paths []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir != "" {
			paths = append(paths, filepath.Join(dir, program))
		}
	}
	return paths
}

func asStartFailure(err error) startFailure {
	var f *startError
	if errors.As(err, &f) {
		return startFailure{f.errno, f.what}
	}
	return startFailure{syscall.EIO, err.Error()}
}
