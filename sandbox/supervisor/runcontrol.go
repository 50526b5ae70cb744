package supervisor

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// readControl handles all waiting messages; false when nobody is left to send.
func (r *run) readControl() bool {
	buf := make([]byte, maxControlMsg)
	for {
		n, pid, file, err := recvControl(r.child.control, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return true
		}
		if err != nil || n == 0 {
			return false
		}
		if r.handle(buf[:n], pid, file); file >= 0 {
			unix.Close(file)
		}
	}
}

// handle acts on one message; the descriptor with it stays the caller's.
func (r *run) handle(msg []byte, pid, file int) {
	switch msg[0] {
	case msgStdin:
		if pid == r.identity.Init.PID && file >= 0 {
			r.gotInput(file)
		}
	case msgConnected:
		if pid == r.identity.Init.PID {
			r.connected(msg, file)
		}
	case msgHello:
		r.hello(pid)
	case msgReady:
		r.ready(pid)
	case msgFail:
		if f, ok := parseStartFailure(msg); ok && pid == r.identity.Init.PID {
			r.out.failure = &f
		}
	case msgUsage:
		if u, ok := parseUsage(msg); ok && pid == r.identity.Init.PID {
			r.out.usage = &u
		}
	case msgEnd:
		if end, ok := parseLeaderEnd(msg); ok && pid == r.identity.Init.PID {
			r.out.end = &end
			r.ended = time.Now()
			r.deadline = time.Time{} // init bounds what is left by the drain time
			r.endInput()
			if r.out.cause == "" {
				r.killAt = r.ended.Add(r.spec.Drain + r.spec.Grace) // should init fail to
			}
		}
	}
}

// hello learns who init is. It is a child of bwrap, and not reaped while bwrap
// lives, so its pid can't have been reused.
func (r *run) hello(pid int) {
	id, parent, err := identify(pid)
	ours := parent == r.child.pid
	if r.spec.connects() {
		ours = pid == r.child.pid // admitted, and held by a pidfd
	}
	if err != nil || !ours || r.identity.Init.PID != 0 {
		r.breakOff(fmt.Sprintf("init reported itself as process %d, which isn't the sandbox's", pid))
		return
	}
	r.identity.Init = id
	if r.initFD < 0 {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			r.initFD = fd
		}
	}
	r.reaper.setInit(r.initFD)
	if r.out.broken != "" {
		return // killed already
	}
	// From here on the streams carry the command's output, not bwrap's. Where
	// they are a terminal, that comes from init; see gotInput.
	if r.input == nil || !r.input.terminal {
		r.startPump(r.child.out)
	}
}

// startPump begins to keep the output, of which out is the first stream.
func (r *run) startPump(out int) {
	if out != r.child.out {
		unix.Close(r.child.out)
	}
	r.pump = newPump(r.log, out, r.child.err)
	r.child.out, r.child.err = -1, -1
	go r.pump.run()
}

// gotInput takes a copy of the descriptor that init sent: the write end of a
// pipe, or the shim's side of a terminal, which carries the output as well.
func (r *run) gotInput(file int) {
	if r.input == nil || r.input.fd >= 0 || r.out.broken != "" {
		return
	}
	fd, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil && r.input.terminal {
		var out int
		if out, err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			r.startPump(out)
		}
	}
	if err != nil {
		r.breakOff("take over the input: " + err.Error())
		return
	}
	r.input.opened(fd)
}

// endInput: the command has ended and reads no more.
func (r *run) endInput() {
	if r.input != nil {
		r.input.shut()
	}
}

// ready puts the waiting leader into its control groups, makes the sandbox
// findable after a crash, and lets the leader go.
func (r *run) ready(pid int) {
	if r.leader != 0 || r.out.cause != "" || r.out.broken != "" {
		return
	}
	if r.input != nil && r.input.fd < 0 {
		r.breakOff("init gave no input for an interactive command")
		return
	}
	err := r.cgroups.enter(pid)
	if err := setAffinity(pid, r.spec.CPUs); err != nil {
		r.notes = append(r.notes, err.Error())
	}
	if err == nil {
		err = r.identity.publish(r.shimFile)
	}
	if err == nil {
		r.started = time.Now()
		err = send(r.child.control, []byte{msgGo})
	}
	if err != nil {
		r.breakOff(err.Error())
		return
	}
	r.leader = pid
	if r.hungUp {
		r.hangUp()
	}
	if r.quota != nil {
		r.quota.next = r.started.Add(quotaInterval)
		r.quota.watcher.HeldBy(r.identity.Init.PID)
	}
	r.deadline = time.Time{}
	if r.spec.Timeout > 0 {
		r.deadline = r.started.Add(r.spec.Timeout)
	}
}
