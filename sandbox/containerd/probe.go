package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// connectTimeout bounds the wait for a containerd that doesn't answer.
const connectTimeout = 10 * time.Second

// ErrUnavailable is the class of an *UnavailableError.
var ErrUnavailable = errors.New("containerd is not available")

// UnavailableError says why no sandbox can be made, and what to do.
type UnavailableError struct {
	Why    string
	Remedy string
	Err    error // may be nil
}

func (e *UnavailableError) Error() string {
	return ErrUnavailable.Error() + ": " + e.Why + " (" + e.Remedy + ")"
}

// Unwrap implements the errors package's convention.
func (e *UnavailableError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrUnavailable}
	}
	return []error{ErrUnavailable, e.Err}
}

// unavailable turns an error whose cause is containerd's installation into an
// UnavailableError, and leaves others as they are.
func unavailable(err error) error {
	var known *UnavailableError
	if err == nil || errors.As(err, &known) {
		return err
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "runc") && strings.Contains(text, "executable file not found"):
		return &UnavailableError{"it finds no runc", "install the package runc, 1.1 or newer", err}
	case strings.Contains(text, "containerd-shim") && (strings.Contains(text, "not found") || strings.Contains(text, "no such file") || strings.Contains(text, "not installed")),
		strings.Contains(text, "invalid runtime name"):
		return &UnavailableError{"it has no such runtime: " + text, "use the default of sandbox.containerd.runtime, " + DefaultRuntime, err}
	case errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || strings.Contains(text, "code = Unavailable"):
		return &UnavailableError{"it does not answer: " + text, "look whether it runs (systemctl status containerd)", err}
	}
	return err
}

// Check finds out whether containerd can be used at all: the socket, the right
// to use it, its version. daemonUID is the daemon's own uid.
func (b *Backend) Check(ctx context.Context, daemonUID int) (version string, err error) {
	if daemonUID != 0 {
		return "", &UnavailableError{"the daemon is not root, so it can give the container's root no other user than its own",
			"run the daemon as root (it runs no agent's code as root), or use bubblewrap", nil}
	}
	if err := checkSocket(ctx, b.config.Address, b.config.serverUID); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(b.within(ctx), connectTimeout)
	defer cancel()
	v, err := b.client.Version(ctx)
	if err != nil {
		return "", &UnavailableError{"it does not tell its version: " + err.Error(), "look whether " + b.config.Address + " is containerd's socket", err}
	}
	if !recent(v.Version) {
		return v.Version, &UnavailableError{"its version is " + v.Version, "install containerd 1.6 or newer", nil}
	}
	return v.Version, nil
}

func checkSocket(ctx context.Context, address string, server uint32) error {
	remedy := "install and start containerd, or set sandbox.containerd.address"
	info, err := os.Stat(address)
	if err == nil && info.Mode()&fs.ModeSocket == 0 {
		return &UnavailableError{address + " is not a socket", remedy, nil}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &UnavailableError{"there is no socket " + address, remedy, err}
	}
	if err == nil {
		var conn net.Conn
		if conn, err = dialSocket(ctx, address, server); err == nil {
			return conn.Close()
		}
	}
	var known *UnavailableError
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, fs.ErrPermission) {
		return &UnavailableError{"no permission for the socket " + address, "run the daemon as root", err}
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return &UnavailableError{"nobody listens at " + address, "start containerd (systemctl start containerd)", err}
	}
	return &UnavailableError{fmt.Sprintf("the socket can't be used: %v", err), remedy, err}
}

// dialSocket connects to a server of that user alone, checked at each connection:
// what answers there chooses what the daemon, as root, mounts and writes.
func dialSocket(ctx context.Context, address string, server uint32) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	uid, err := peerUID(conn)
	if err == nil && uid != server {
		err = &UnavailableError{fmt.Sprintf("the socket %s is served by user %d, not by %d", address, uid, server),
			"set sandbox.containerd.address to the socket of a containerd that runs as root", nil}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func peerUID(conn net.Conn) (uint32, error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("who serves the socket: %w", err)
	}
	return cred.Uid, nil
}

// recent: 1.6 or newer, of versions such as "1.6.20~ds1" and "v2.0.0".
func recent(version string) bool {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(strings.TrimRight(parts[1], "abcdefghijklmnopqrstuvwxyz-+~"))
	return err == nil && (major > 1 || major == 1 && minor >= 6)
}
