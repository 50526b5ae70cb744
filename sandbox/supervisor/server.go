package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The shim's socket: SOCK_SEQPACKET, one request and one answer a connection.
// inputwire.go has the requests of interactive executions.
const (
	askStatus = "status"
	askCancel = "cancel"
	askAbort  = "abort"
	saidOK    = "ok"
	saidBegun = "begun"
)

// server answers the daemon. The socket lies in the execution's directory,
// which only the daemon's user can enter.
type server struct {
	fd   int
	name string
	buf  []byte // as large as a request can be, once input is taken
}

// listen binds name, relative to the current directory: a socket's path is
// limited to 108 bytes.
func listen(name string) (*server, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("shim socket: %w", err)
	}
	_ = unix.Unlink(name)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("shim socket: %w", err)
	}
	return &server{fd: fd, name: name}, nil
}

// serve handles the connections that wait. A client that says nothing is cut
// off after a moment: it must not keep the shim from its other duties. A busy
// host can make a canceller that slow; its wish is in its file by then.
func (s *server) serve(r *run) {
	for {
		conn, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		patience := unix.Timeval{Usec: 100_000}
		_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
		buf := s.buffer(r)
		if n, err := unix.Read(conn, buf); err == nil && n > 0 {
			reply := r.react(conn, buf[:n])
			if reply == nil {
				continue // it comes later, and conn is closed then
			}
			_ = send(conn, reply)
		} else {
			r.checkCancel()
		}
		unix.Close(conn)
	}
}

func (s *server) buffer(r *run) []byte {
	if s.buf == nil {
		size := 64
		if r.input != nil {
			size = maxInputRequest
		}
		s.buf = make([]byte, size)
	}
	return s.buf
}

// react gives the answer to a request, or nil for one that has to wait.
func (r *run) react(conn int, request []byte) []byte {
	switch {
	case bytes.HasPrefix(request, []byte(askInput)):
		return r.takeInput(conn, request)
	case bytes.HasPrefix(request, []byte(askResize)):
		w, ok := parseResize(request)
		if !ok {
			return connectReply{Refusal: refusedMalformed}.encode()
		}
		return connectReply{Refusal: r.input.resize(w)}.encode()
	case bytes.HasPrefix(request, []byte(askConnect)):
		if refusal := r.connect(conn, request); refusal != "" {
			return connectReply{Refusal: refusal}.encode()
		}
		return nil
	}
	return r.answer(string(request))
}

func (r *run) takeInput(conn int, request []byte) []byte {
	if r.input == nil {
		return inputAnswer{Refusal: refusedNotInteractive}.encode()
	}
	q, ok := parseInputRequest(request)
	if !ok {
		return inputAnswer{Refusal: refusedMalformed}.encode()
	}
	r.input.flush()
	a := r.input.accept(q)
	waits := r.input.full() && a.Refusal == "" && !a.Closed && a.Written == 0 && len(q.data) > 0
	if waits && r.input.park(conn) {
		return nil
	}
	r.input.flush()
	a.Closed = r.input.isClosed()
	return a.encode()
}

func (r *run) answer(request string) []byte {
	switch request {
	case askStatus:
		b, err := json.Marshal(r.status())
		if err != nil {
			return []byte(err.Error())
		}
		return b
	case askCancel:
		r.checkCancel()
		return []byte(saidOK)
	case askAbort:
		if r.checkAbort(); r.initFD >= 0 {
			return []byte(saidBegun)
		}
		return []byte(saidOK)
	}
	return []byte("unknown request")
}

func (r *run) status() Status {
	s := Status{State: StateRunning, ShimPID: os.Getpid(), LeaderPID: r.leader, Log: r.log.snapshot()}
	if r.leader != 0 {
		s.Started = r.started
	}
	s.Stopping = r.out.cause
	if r.input != nil {
		s.InputBytes = r.input.total
	}
	s.Awaiting = r.door.open()
	return s
}

func (s *server) close() {
	unix.Close(s.fd)
	_ = unix.Unlink(s.name)
}
