package supervisor

import (
	"time"

	"golang.org/x/sys/unix"
)

// pump moves output from the pipes into the log until both are at their end.
// One loop serves both, so that frames stand in the order of arrival.
type pump struct {
	log  *logWriter
	out  int // read ends; the pump closes them
	err  int
	done chan struct{}
}

func newPump(log *logWriter, out, err int) *pump {
	return &pump{log: log, out: out, err: err, done: make(chan struct{})}
}

func (p *pump) run() {
	defer close(p.done)
	fds := []unix.PollFd{{Fd: int32(p.out), Events: unix.POLLIN}, {Fd: int32(p.err), Events: unix.POLLIN}}
	streams := []Stream{Stdout, Stderr}
	for open := len(fds); open > 0; {
		if _, err := unix.Poll(fds, -1); err != nil {
			continue // EINTR: nothing else can go wrong with valid arguments
		}
		for i := range fds {
			if fds[i].Revents != 0 && !p.forward(int(fds[i].Fd), streams[i]) {
				unix.Close(int(fds[i].Fd))
				fds[i].Fd = -1 // poll ignores it from now on
				open--
			}
		}
	}
}

// forward moves what one read gives; false at the end of the stream.
func (p *pump) forward(fd int, stream Stream) bool {
	n, err := unix.Read(fd, p.log.payload())
	if err == unix.EINTR || err == unix.EAGAIN {
		return true
	}
	if err != nil || n <= 0 {
		return false
	}
	p.log.commit(stream, n, time.Now())
	return true
}

// wait reports whether the pump reached the end of both streams within d.
func (p *pump) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}
