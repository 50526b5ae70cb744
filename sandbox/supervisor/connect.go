package supervisor

import (
	"encoding/binary"
	"errors"
	"os"
	"reflect"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Ports of the sandbox's loopback are reached by way of init, which is inside
// its network name space: it connects and hands the connection out.
//
//	shim -> init  'C' id(u32) port(u16)
//	init -> shim  'K' id(u32) errno(u32), with the socket if errno is 0
const (
	// connectLimit bounds one attempt to connect; a listener on loopback whose
	// queue isn't full takes microseconds.
	connectLimit = 3 * time.Second
	// maxConnects bounds the attempts at once.
	maxConnects = 64
)

type connectRequest struct {
	id   uint32
	port uint16
}

func (q connectRequest) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{msgConnect}, q.id)
	return binary.LittleEndian.AppendUint16(b, q.port)
}

func parseConnectRequest(b []byte) (q connectRequest, ok bool) {
	if len(b) != 7 {
		return q, false
	}
	return connectRequest{binary.LittleEndian.Uint32(b[1:]), binary.LittleEndian.Uint16(b[5:])}, true
}

type connectAnswer struct {
	id    uint32
	errno syscall.Errno
}

func (a connectAnswer) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{msgConnected}, a.id)
	return binary.LittleEndian.AppendUint32(b, uint32(a.errno))
}

func parseConnectAnswer(b []byte) (a connectAnswer, ok bool) {
	if len(b) != 9 {
		return a, false
	}
	return connectAnswer{binary.LittleEndian.Uint32(b[1:]), syscall.Errno(binary.LittleEndian.Uint32(b[5:]))}, true
}

// answerConnect does in init what the shim asks for, without holding up
// anything else there.
func answerConnect(control int, q connectRequest) {
	f, err := dialLoopback(q.port)
	if err == nil {
		defer f.Close()
		raw, rerr := f.SyscallConn()
		if err = rerr; err == nil {
			sent := raw.Control(func(fd uintptr) { err = sendFile(control, connectAnswer{id: q.id}.encode(), int(fd)) })
			err = errors.Join(err, sent)
		}
	}
	if err == nil {
		return
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = unix.EIO
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		errno = unix.ETIMEDOUT
	}
	_ = send(control, connectAnswer{q.id, errno}.encode())
}

// dialLoopback tries both loopback addresses and gives the first one's error.
func dialLoopback(port uint16) (*os.File, error) {
	f, err := dial(unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		return f, nil
	}
	six := &unix.SockaddrInet6{Port: int(port)}
	six.Addr[15] = 1
	if f, err6 := dial(unix.AF_INET6, six); err6 == nil {
		return f, nil
	}
	return nil, err
}

func dial(family int, to unix.Sockaddr) (*os.File, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, to)
	f := os.NewFile(uintptr(fd), "forward")
	if errors.Is(err, unix.EINPROGRESS) {
		err = awaitConnected(f)
	}
	if err == nil && reachedItself(f) {
		err = unix.ECONNREFUSED
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// reachedItself: where nothing listens on a port that the kernel gives to clients
// as well, a socket can be given that very port and connect to itself.
func reachedItself(f *os.File) (itself bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		here, err := unix.Getsockname(int(fd))
		if err != nil {
			return
		}
		there, err := unix.Getpeername(int(fd))
		itself = err == nil && reflect.DeepEqual(here, there)
	})
	return itself
}

func awaitConnected(f *os.File) error {
	if err := f.SetWriteDeadline(time.Now().Add(connectLimit)); err != nil {
		return err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, perr := unix.Poll(ready, 0); perr != nil || n == 0 {
			return false
		}
		code, serr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case serr != nil:
			result = serr
		case code != 0:
			result = syscall.Errno(code)
		}
		return true
	})
	return errors.Join(err, result)
}
