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

	"golang.org/x/sys/unix"
)

// Forward makes init listen on a port of the sandbox's loopback and join each
// connection to a unix socket: the only way out of a sandbox whose network name
// space has no interface. Init moves bytes and looks at none of them.
type Forward struct {
	// Port on 127.0.0.1 inside the sandbox.
	Port int `json:"port"`
	// Socket is a path inside the sandbox.
	Socket string `json:"socket"`
}

func (f *Forward) validate() error {
	if f == nil {
		return nil
	}
	if f.Port < 1 || f.Port > 65535 {
		return fmt.Errorf("%w: forward port %d is not in 1..65535", ErrSpec, f.Port)
	}
	if !filepath.IsAbs(f.Socket) || strings.ContainsAny(f.Socket, "\n\x00") || len(f.Socket) > maxSocketPath {
		return fmt.Errorf("%w: forward socket %q is not an absolute path of at most %d bytes", ErrSpec, f.Socket, maxSocketPath)
	}
	return nil
}

const (
	maxSocketPath = 100 // the kernel takes 107
	// forwardLimit bounds the connections that are open at once; more wait in
	// the listener's queue. Each costs some 50 KiB of the sandbox's memory.
	forwardLimit  = 320
	forwardQueue  = 128
	forwardBuffer = 16 << 10
	// gatewayPatience is how long a connection waits for a gateway that is not
	// there: its daemon restarts.
	gatewayPatience = 10 * time.Second
	gatewayPoll     = 50 * time.Millisecond
	lingerTime      = time.Second
)

// gatewayGone is what a client hears when the gateway stays away.
const gatewayGone = "HTTP/1.1 503 Skerry egress gateway is not running\r\nContent-Type: text/plain\r\nRetry-After: 10\r\nConnection: close\r\n\r\n" +
	"The runner's egress gateway does not answer: its daemon is restarting. Try again in some seconds.\n"

// encode gives "PORT:SOCKET".
func (f *Forward) encode() string { return strconv.Itoa(f.Port) + ":" + f.Socket }

func parseForward(s string) (*Forward, error) {
	port, socket, _ := strings.Cut(s, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	f := &Forward{Port: n, Socket: socket}
	return f, f.validate()
}

// forwarder serves one Forward in init. It uses no package net, which would
// make every shim larger and slower to start; the runtime's poller works for
// sockets in files as well.
type forwarder struct {
	socket   string
	listener *os.File
	slots    chan struct{}
}

// listenForward must come before the leader, so that the port is there when the
// first instruction of the command runs.
func listenForward(f *Forward) (*forwarder, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: f.Port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, forwardQueue)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("forwarder: listen on 127.0.0.1:%d: %w", f.Port, err)
	}
	return &forwarder{socket: f.Socket, listener: os.NewFile(uintptr(fd), "forward"), slots: make(chan struct{}, forwardLimit)}, nil
}

// run serves until init ends.
func (f *forwarder) run() {
	raw, err := f.listener.SyscallConn()
	if err != nil {
		return
	}
	for {
		f.slots <- struct{}{}
		fd, err := accept(raw)
		if err != nil {
			<-f.slots
			time.Sleep(gatewayPoll) // out of descriptors or memory: later there may be some
			continue
		}
		go func() {
			defer func() { <-f.slots }()
			f.serve(os.NewFile(uintptr(fd), "client"))
		}()
	}
}

func accept(raw syscall.RawConn) (fd int, err error) {
	wait := raw.Read(func(listener uintptr) bool {
		for {
			fd, _, err = unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err != unix.EINTR && err != unix.ECONNABORTED {
				return err != unix.EAGAIN
			}
		}
	})
	return fd, errors.Join(wait, err)
}

func (f *forwarder) serve(client *os.File) {
	defer client.Close()
	gateway, err := f.dial()
	if err != nil {
		_, _ = client.WriteString(gatewayGone)
		return
	}
	defer gateway.Close()
	up := make(chan struct{})
	go func() {
		defer close(up)
		pipe(gateway, client)
	}()
	pipe(client, gateway)
	// The gateway has said all. Closing now, with the client still sending, would
	// reset its connection and lose what it has not read yet.
	_ = client.SetReadDeadline(time.Now().Add(lingerTime))
	<-up
}

// dial waits for a gateway that is away for a moment.
func (f *forwarder) dial() (*os.File, error) {
	for deadline := time.Now().Add(gatewayPatience); ; time.Sleep(gatewayPoll) {
		fd, err := connectUnix(f.socket)
		if err == nil {
			return os.NewFile(uintptr(fd), "gateway"), nil
		}
		// EAGAIN: the gateway's queue is full.
		absent := errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAGAIN)
		if !absent || time.Now().After(deadline) {
			return nil, err
		}
	}
}

// connectUnix does not wait: a unix socket connects at once or not at all.
func connectUnix(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// pipe moves bytes until from ends, and tells to so. What to does not take any
// more is read all the same for a moment, see serve.
func pipe(to, from *os.File) {
	buf := make([]byte, forwardBuffer)
	for taken := true; ; {
		n, err := from.Read(buf)
		if n > 0 && taken {
			if _, werr := to.Write(buf[:n]); werr != nil {
				taken = false
				_ = from.SetReadDeadline(time.Now().Add(lingerTime))
			}
		}
		if err != nil {
			break
		}
	}
	endWriting(to)
}

func endWriting(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}
