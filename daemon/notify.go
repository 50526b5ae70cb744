package daemon

import (
	"fmt"
	"net"
	"os"
)

// notifyEnv names systemd's socket for units of Type=notify, see sd_notify(3).
const notifyEnv = "NOTIFY_SOCKET"

// NotifyReady tells systemd, if it asked for that, that the daemon's start is
// over. The processes that the daemon starts do not learn of the socket.
func NotifyReady() error {
	name := os.Getenv(notifyEnv)
	if name == "" {
		return nil
	}
	if err := os.Unsetenv(notifyEnv); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	// Go takes a leading "@" for the abstract name space, as systemd means it.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("READY=1\n")); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}
