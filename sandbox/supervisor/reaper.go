package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper waits for the host command and, should that be killed, for what the
// shim then inherits as a subreaper. Its event fires when no child is left:
// since init is only reaped after its whole namespace is dead, that is the
// proof that nothing of the sandbox lives.
type reaper struct {
	event int // eventfd, readable when all are gone

	mu     sync.Mutex
	host   int // 0 once reaped: its pid may then be reused
	initFD int // pidfd of init, -1 while unknown
	status syscall.WaitStatus
	sum    Usage
}

func newReaper() (*reaper, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("reaper: %w", err)
	}
	return &reaper{event: event, initFD: -1}, nil
}

// start watches over the host command, which must be a child already.
func (r *reaper) start(host int) {
	r.host = host
	go r.run()
}

func (r *reaper) run() {
	for r.waitOne() {
	}
	_, _ = unix.Write(r.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// waitOne reaps a child, first looking without reaping: the host command's pid
// must stay its own until nobody may signal it any more.
func (r *reaper) waitOne() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return false // ECHILD
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	var usage syscall.Rusage
	pid, err := syscall.Wait4(-1, &status, syscall.WALL|syscall.WNOHANG, &usage)
	if err != nil || pid <= 0 {
		return err == syscall.EINTR || err == nil
	}
	r.sum.add(&usage)
	if pid == r.host {
		r.host, r.status = 0, status
		// bwrap is gone: init must not live on, whatever ended bwrap.
		killChildren()
	}
	return true
}

func (r *reaper) setInit(fd int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.initFD = fd
}

// kill ends init, and with it the namespace, or bwrap where init is not known.
// bwrap's end takes init with it (--die-with-parent).
func (r *reaper) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.killInit() && r.host != 0 {
		_ = unix.Kill(r.host, unix.SIGKILL)
	}
}

func (r *reaper) killInit() bool {
	return r.initFD >= 0 && unix.PidfdSendSignal(r.initFD, unix.SIGKILL, nil, 0) == nil
}

// killChildren kills what the shim has inherited. bwrap asks for its own child's
// death together with its own only late in the set-up: killed before, it leaves
// a child that waits for it for ever. Nobody else reaps children here, so their
// pids can't be reused meanwhile.
func killChildren() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for pid := range bytes.FieldsSeq(b) {
			if n, err := strconv.Atoi(string(pid)); err == nil {
				_ = unix.Kill(n, unix.SIGKILL)
			}
		}
	}
}

func (r *reaper) usage() Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sum
}

func (r *reaper) hostStatus() syscall.WaitStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}
