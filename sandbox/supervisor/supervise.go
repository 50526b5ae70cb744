package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRefused says that the execution already ran, or was declared void.
var ErrRefused = errors.New("execution refused")

// Supervise is the shim: it runs the execution in dir to its end. It must be
// called on the process's main goroutine. A second shim for the same directory
// returns at once, without an error, so that starting twice is harmless. For dir
// "-" the shim is a warm one, see Launcher.
func Supervise(dir string) error {
	runtime.LockOSThread() // bwrap's life hangs on this thread's
	if dir == warmDir {
		var err error
		if dir, err = awaitDir(); dir == "" || err != nil {
			return err
		}
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.Chdir(dir) // names stay short: a socket's may have 108 bytes
	}
	if err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	lock, err := lockForShim(".")
	if errors.Is(err, errLocked) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("supervise %s: %w", dir, err)
	}
	defer lock.Close()
	if err := refuseIfDone("."); err != nil {
		return fmt.Errorf("supervise %s: %w", dir, err)
	}
	if err := newRun().supervise(dir); err != nil {
		return fmt.Errorf("supervise %s: %w", dir, err)
	}
	lock.Close()
	// The end of standard error tells the daemon that there is a verdict, a
	// little earlier than the end of the process does.
	unix.Close(unix.Stderr)
	return nil
}

// refuseIfDone keeps an execution from being run twice (I3).
func refuseIfDone(dir string) error {
	for _, name := range []string{voidFile, exitFile, shimFile} {
		found, err := exists(dir, name)
		if err != nil {
			return err
		}
		if found {
			return fmt.Errorf("%w: %s exists", ErrRefused, name)
		}
	}
	return nil
}

// run is one execution as its shim sees it. All fields belong to the main
// goroutine.
type run struct {
	spec    Spec
	cgroups cgroups
	log     *logWriter
	pump    *pump
	server  *server
	quota   *quotaWatch // nil: none
	child   launched
	door    *door // of a sandbox that connects, else nil
	reaper  *reaper
	input   *input // nil unless it is interactive

	connects connects

	out      outcome
	identity shimIdentity
	shimFile *pendingFile
	exitFile *pendingFile
	initFD   int // pidfd, -1 while unknown
	leader   int // host pid of the command, 0 before it is ready
	started  time.Time
	ended    time.Time
	deadline time.Time // of the command, or of the set-up before it
	killAt   time.Time // set once SIGTERM was sent
	killed   bool
	notes    []string // for the verdict's detail
	gentle   bool     // init was asked to kill all, see kill
	hungUp   bool     // the terminal was, before the command ran
}

// setupLimit bounds what comes before the command: a sandbox that can't be set
// up in this time (a hung network file system) never will be.
const setupLimit = 60 * time.Second

// exitReserve is more than a verdict needs, details included.
const exitReserve = 8 << 10

func newRun() *run { return &run{initFD: -1} }

func (r *run) supervise(dir string) error {
	r.started = time.Now()
	r.deadline = r.started.Add(setupLimit)
	spec, err := readSpec(specFile)
	if err != nil {
		return r.finish(err.Error())
	}
	r.spec, r.cgroups = spec, spec.Cgroups
	r.input = newInput(spec.Input, r.hangUp)
	if r.reaper, err = newReaper(); err != nil {
		return r.finish(err.Error())
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return r.finish("become subreaper: " + err.Error())
	}
	if r.spec.connects() {
		return r.superviseGuest()
	}
	if r.child, err = launch(dir, &r.spec); err != nil {
		return r.finish(err.Error())
	}
	r.reaper.start(r.child.pid)
	go r.cgroups.warm(r.child.pid)
	// bwrap takes milliseconds to build the sandbox, in which no command runs
	// before this process says so: time for all the rest.
	if err := r.prepare(); err != nil {
		r.breakOff(err.Error())
	}
	r.loop()
	return r.finish("")
}

// prepare gets ready what the command's start needs.
func (r *run) prepare() (err error) {
	if err := os.Mkdir(logDir, 0o700); err != nil && !os.IsExist(err) {
		return fmt.Errorf("make log directory: %w", err)
	}
	r.log = newLogWriter(logDir, r.spec.Log)
	if r.shimFile, err = newPendingFile(".", shimFile); err != nil {
		return err
	}
	if r.exitFile, err = newPendingFile(".", exitFile); err != nil {
		return err
	}
	// A command that fills the disk must not lose its own verdict thereby (I2).
	if err := r.exitFile.reserve(exitReserve); err != nil {
		return err
	}
	if r.identity.BootID, err = bootID(); err != nil {
		return err
	}
	if r.identity.Shim, _, err = identify(os.Getpid()); err != nil {
		return err
	}
	if err := r.cgroups.create(); err != nil {
		return err
	}
	if r.quota, err = openQuota(r.spec.Quota); err != nil {
		return err
	}
	if r.server, err = listen(sockFile); err != nil {
		return err
	}
	// Whoever cancelled before the socket was there has left a file.
	r.checkCancel()
	r.checkAbort()
	return nil
}

// What the loop waits for, by the place in its list.
const (
	pollEnd     = iota // of the sandbox
	pollControl        // init's messages
	pollServer         // the daemon's requests
	pollDoor           // an init that connects
	pollQuota          // an end of a walk
	pollInput          // room for input
	pollCount
)

// loop serves everything that happens until no process of the sandbox is left.
func (r *run) loop() {
	fds := r.pollList()
	for !r.deserted() {
		fds[pollInput] = r.input.pollFd()
		_, err := unix.Ppoll(fds, r.untilNextDeadline(), nil)
		if err != nil && err != unix.EINTR {
			r.breakOff("poll: " + err.Error())
		}
		// The leader's report first: an end of its own outranks a time-out.
		if fds[pollControl].Revents != 0 && !r.readControl() {
			fds[pollControl].Fd = -1
		}
		if fds[pollServer].Revents != 0 {
			r.server.serve(r)
		}
		r.input.polled(fds[pollInput].Revents)
		if fds[pollDoor].Revents != 0 && r.door.open() {
			if r.admit(); !r.door.open() {
				fds[pollEnd].Fd, fds[pollControl].Fd, fds[pollDoor].Fd = int32(r.initFD), int32(r.child.control), -1
			}
			continue
		}
		if fds[pollEnd].Revents != 0 {
			r.readControl()
			return
		}
		now := time.Now()
		r.checkQuota(now, fds[pollQuota].Revents != 0)
		r.checkDeadlines(now)
	}
}

func (r *run) pollList() []unix.PollFd {
	fds := make([]unix.PollFd, pollCount)
	for i := range fds {
		fds[i] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
	}
	fds[pollEnd].Fd, fds[pollControl].Fd = int32(r.reaper.event), int32(r.child.control)
	if r.server != nil {
		fds[pollServer].Fd = int32(r.server.fd)
	}
	if r.door.open() {
		fds[pollDoor].Fd = int32(r.door.fd)
	}
	if r.quota != nil {
		fds[pollQuota].Fd = int32(r.quota.event)
	}
	return fds
}

func (r *run) untilNextDeadline() *unix.Timespec {
	next := r.deadline
	if !r.killAt.IsZero() {
		next = r.killAt
	}
	if r.killed {
		next = time.Time{}
	} else {
		next = earliest(next, r.quotaAt())
	}
	next = earliest(earliest(next, r.input.wakeAt()), r.connects.wakeAt())
	if next.IsZero() {
		return nil
	}
	ts := unix.NsecToTimespec(max(time.Until(next), 0).Nanoseconds())
	return &ts
}

func (r *run) checkDeadlines(now time.Time) {
	r.input.expire(now)
	r.connects.expire(now)
	switch {
	case r.killed:
	case !r.killAt.IsZero():
		if !now.Before(r.killAt) {
			r.kill()
		}
	case r.deadline.IsZero() || now.Before(r.deadline):
	case r.leader == 0:
		r.breakOff(fmt.Sprintf("the sandbox could not be set up within %s", setupLimit))
	default:
		r.stop(KindTimedOut, timeoutReason(r.spec.Timeout))
	}
}

// breakOff gives up on a sandbox that can't be set up.
func (r *run) breakOff(why string) {
	if r.out.broken == "" {
		r.out.broken = why
	}
	r.kill()
}

// stop asks the command to end and sets the time of its kill. Only the first
// cause counts, and none after the leader's own end.
func (r *run) stop(cause Kind, reason string) {
	if r.out.cause != "" || r.out.end != nil {
		return
	}
	r.out.cause, r.out.reason = cause, reason
	if r.leader == 0 || send(r.child.control, []byte{msgTerm}) != nil {
		r.kill()
		return
	}
	if r.input != nil && r.input.terminal {
		r.hangUp() // interactive shells ignore SIGTERM
	}
	r.killAt = time.Now().Add(r.spec.Grace)
}

// hangUp ends a terminal's session, which has to begin before: until the leader
// runs, it would take the message to init for its own.
func (r *run) hangUp() {
	if r.leader == 0 {
		r.hungUp = true
		return
	}
	_ = send(r.child.control, []byte{msgHangUp})
}

// killPatience is how long init may take to kill the rest and to reap it.
const killPatience = 2 * time.Second

// kill ends the whole namespace: by init, which first counts what its processes
// used, and, should that fail, at once.
func (r *run) kill() {
	if r.leader != 0 && !r.gentle && send(r.child.control, []byte{msgKill}) == nil {
		r.gentle = true
		r.killAt = time.Now().Add(killPatience)
		return
	}
	r.killed = true
	r.door.close()
	r.reaper.kill()
}

// checkCancel obeys the cancel file, if there is one.
func (r *run) checkCancel() {
	b, err := os.ReadFile(cancelFile)
	if err != nil {
		return
	}
	reason := strings.TrimSpace(string(b))
	if reason == "" {
		reason = "cancelled"
	}
	r.stop(KindCancelled, reason)
}
