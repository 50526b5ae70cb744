package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// scopePatience bounds all talk with systemd.
const scopePatience = 10 * time.Second

// systemdRuns tells whether systemd is the host's init.
func systemdRuns() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// delegated tells whether systemd left the group to its processes.
func delegated(dir string) bool {
	var b [1]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, b[:]); err == nil && n == 1 && b[0] == '1' {
			return true
		}
	}
	return false
}

// restartable tells whether systemd can start a unit anew though processes and
// groups are left in its group: it puts its process into a group that is divided
// only where that is a leaf (DelegateSubgroup=, since systemd 254). A scope is
// never started anew.
func restartable(own string) bool {
	return !strings.HasSuffix(own, ".service")
}

// joinScope moves this process into a fresh scope
// of systemd's that it may divide as it likes: the user's systemd for an
// ordinary user, the host's for root. The scope lasts as long as a process is in
// it. What a daemon started thus outlives it there, and the next daemon gets a
// scope of its own; the groups of the old one remain usable by their paths.
//
// For a service too: systemd knows its main process by number as well, and finds
// the service's group empty when it starts it anew.
func joinScope() error {
	ctx, cancel := context.WithTimeout(context.Background(), scopePatience)
	defer cancel()
	conn, err := connect(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd: %w", err)
	}
	defer conn.Close()
	name := fmt.Sprintf("skerry-%d-%d.scope", os.Getpid(), time.Now().UnixNano())
	properties := []systemd.Property{
		systemd.PropDescription("Skerry's executions, and the daemon that started them"),
		systemd.PropPids(uint32(os.Getpid())),
		{Name: "Delegate", Value: dbus.MakeVariant(true)},
		// The scope's end is the end of the last execution, not of a session.
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")},
	}
	done := make(chan string, 1)
	if _, err := conn.StartTransientUnitContext(ctx, name, "fail", properties, done); err != nil {
		return fmt.Errorf("ask systemd for a scope: %w", err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd's scope %s: %s", name, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for systemd's scope %s: %w", name, ctx.Err())
	}
}

func connect(ctx context.Context) (*systemd.Conn, error) {
	if os.Geteuid() != 0 {
		return systemd.NewConnection(func() (*dbus.Conn, error) { return dialUserBus(ctx) })
	}
	conn, err := systemd.NewSystemConnectionContext(ctx)
	if err != nil {
		return systemd.NewSystemdConnectionContext(ctx) // without a message bus
	}
	return conn, nil
}

// dialUserBus reaches the bus of the user's own systemd, which is there during a
// session, or always with lingering on. The library's way might start a bus.
func dialUserBus(ctx context.Context) (*dbus.Conn, error) {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = "/run/user/" + strconv.Itoa(os.Getuid())
	}
	path := filepath.Join(dir, "bus")
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("no systemd of this user (loginctl enable-linger): %w", err)
	}
	conn, err := dbus.Dial("unix:path="+path, dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	if err == nil {
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
