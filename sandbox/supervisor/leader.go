package supervisor

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// startError is a leader that could not be executed.
type startError struct {
	errno syscall.Errno
	what  string
}

func (e *startError) Error() string { return e.what + ": " + e.errno.Error() }

// leaderPlan is everything that the forked child needs, laid out beforehand:
// between fork and exec it may neither allocate nor grow its stack.
type leaderPlan struct {
	control  uintptr
	failures uintptr // write end of the pipe that tells why exec failed
	// The interactive input: the descriptor, how many of the standard streams it
	// becomes, and whether it is a terminal.
	input    uintptr
	streams  uintptr
	terminal bool
	limits   []rlimitArg
	paths    []*byte
	argv     **byte
	envv     **byte
	message  [1]byte
	answer   [16]byte
	action   [64]byte // an all-zero struct sigaction: SIG_DFL
	noMask   uint64
	report   [2]uint32 // stage and errno
}

type rlimitArg struct {
	resource uintptr
	value    [2]uint64
}

// Stages at which the child may fail.
const (
	stageSetup = 1 + iota
	stageLimits
	stageHandshake
	stageExec
	stageInput
)

// startLeader forks the leader into a session of its own and returns when it
// executes argv or failed to. A fork of our own, not os/exec, because resource
// limits and the handshake with the shim have to happen in the child alone:
// init itself must never run into the limits of the code that it watches.
func startLeader(control int, argv []string, limits []rlimit, in leaderInput) (int, error) {
	plan, err := newLeaderPlan(control, argv, limits)
	if err != nil {
		return 0, err
	}
	plan.setInput(in)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return 0, &startError{err.(syscall.Errno), "pipe"} //nolint:errorlint // x/sys gives bare numbers
	}
	defer unix.Close(pipe[0])
	plan.failures = uintptr(pipe[1])
	pid, errno := fork(plan)
	runtime.KeepAlive(plan)
	unix.Close(pipe[1])
	if errno != 0 {
		return 0, &startError{errno, "fork"}
	}
	return pid, awaitExec(pipe[0], pid, argv[0])
}

func newLeaderPlan(control int, argv []string, limits []rlimit) (*leaderPlan, error) {
	plan := &leaderPlan{control: uintptr(control), message: [1]byte{msgReady}}
	for _, l := range limits {
		v := l.value
		var now syscall.Rlimit
		if err := syscall.Getrlimit(l.resource, &now); err == nil {
			v = min(v, now.Max) // no privilege to raise it, and no need
		}
		plan.limits = append(plan.limits, rlimitArg{uintptr(l.resource), [2]uint64{v, v}})
	}
	for _, path := range lookPath(argv[0]) {
		p, err := unix.BytePtrFromString(path)
		if err != nil {
			return nil, &startError{syscall.EINVAL, "program name"}
		}
		plan.paths = append(plan.paths, p)
	}
	args, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		return nil, &startError{syscall.EINVAL, "arguments"}
	}
	env, err := syscall.SlicePtrFromStrings(os.Environ())
	if err != nil {
		return nil, &startError{syscall.EINVAL, "environment"}
	}
	plan.argv, plan.envv = &args[0], &env[0]
	return plan, nil
}

func (p *leaderPlan) setInput(in leaderInput) {
	switch {
	case in.fd < 0:
	case in.terminal:
		p.input, p.streams, p.terminal = uintptr(in.fd), 3, true
	default:
		p.input, p.streams = uintptr(in.fd), 1
	}
}

// awaitExec reads the child's report; the end of the pipe without one means
// that exec succeeded and closed it.
func awaitExec(pipe, pid int, program string) error {
	var b [8]byte
	n, err := unix.Read(pipe, b[:])
	for err == unix.EINTR {
		n, err = unix.Read(pipe, b[:])
	}
	if n != len(b) {
		return nil
	}
	_, _ = syscall.Wait4(pid, nil, 0, nil)
	report := (*[2]uint32)(unsafe.Pointer(&b[0]))
	what := fmt.Sprintf("set up the process (step %d)", report[0])
	if report[0] == stageExec {
		what = "execute " + program
	}
	return &startError{syscall.Errno(report[1]), what}
}

// fork clones the calling thread with all signals blocked: no handler of the Go
// runtime may run in the child. As the function neither splits its stack nor,
// between the masks, can be preempted, it stays on one thread by itself.
//
//go:noinline
//go:norace
//go:nosplit
func fork(plan *leaderPlan) (int, syscall.Errno) {
	all, old := ^uint64(0), uint64(0)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 && errno == 0 {
		becomeLeader(plan)
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	return int(pid), errno
}

// becomeLeader runs in the child and never returns.
//
//go:noinline
//go:norace
//go:nosplit
//go:nocheckptr
func becomeLeader(p *leaderPlan) {
	_, _, errno := syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	if errno != 0 {
		giveUp(p, stageSetup, errno)
	}
	for sig := uintptr(1); sig <= 64; sig++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&p.action[0])), 0, 8, 0, 0)
	}
	if p.streams > 0 {
		if errno = takeTerminal(p); errno != 0 {
			giveUp(p, stageInput, errno)
		}
	}
	for i := range p.limits {
		l := &p.limits[i]
		_, _, errno = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, l.resource, uintptr(unsafe.Pointer(&l.value[0])), 0, 0, 0)
		if errno != 0 {
			giveUp(p, stageLimits, errno)
		}
	}
	_, _, errno = syscall.RawSyscall6(unix.SYS_SENDTO, p.control, uintptr(unsafe.Pointer(&p.message[0])), 1, unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		giveUp(p, stageHandshake, errno)
	}
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, p.control, uintptr(unsafe.Pointer(&p.answer[0])), 16, 0, 0, 0)
	if errno != 0 || n == 0 || p.answer[0] != msgGo {
		giveUp(p, stageHandshake, errno)
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&p.noMask)), 0, 8, 0, 0)
	giveUp(p, stageExec, execFirst(p))
}

// execFirst tries the candidates as a shell does: the first that exists, and a
// refusal is remembered over a mere absence.
//
//go:norace
//go:nosplit
//go:nocheckptr
func execFirst(p *leaderPlan) syscall.Errno {
	worst := syscall.ENOENT
	for i := range p.paths {
		_, _, errno := syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(p.paths[i])),
			uintptr(unsafe.Pointer(p.argv)), uintptr(unsafe.Pointer(p.envv)))
		switch errno {
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES:
			worst = errno
		default:
			return errno
		}
	}
	return worst
}

//go:norace
//go:nosplit
//go:nocheckptr
func giveUp(p *leaderPlan, stage uint32, errno syscall.Errno) {
	p.report[0], p.report[1] = stage, uint32(errno)
	syscall.RawSyscall(unix.SYS_WRITE, p.failures, uintptr(unsafe.Pointer(&p.report[0])), 8)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}
