package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procID names a process beyond pid reuse: together with the boot id, a pid and
// its start time are unique.
type procID struct {
	PID int `json:"pid"`
	// StartTicks is field 22 of /proc/PID/stat: clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
}

// shimIdentity is shim.json. Init is pid 1 of the sandbox as the host sees it.
// The file is written before the command may start, so whoever finds it can
// tell for certain whether anything of the sandbox is still alive.
type shimIdentity struct {
	BootID string `json:"bootId"`
	Shim   procID `json:"shim"`
	Init   procID `json:"init"`
}

func readIdentity(dir string) (shimIdentity, bool, error) {
	var id shimIdentity
	b, err := os.ReadFile(filepath.Join(dir, shimFile))
	if errors.Is(err, fs.ErrNotExist) {
		return id, false, nil
	}
	if err != nil {
		return id, false, fmt.Errorf("read identity: %w", err)
	}
	if err := json.Unmarshal(b, &id); err != nil {
		return id, false, fmt.Errorf("read identity of %s: %w", dir, err)
	}
	return id, true, nil
}

func (id shimIdentity) publish(to *pendingFile) error {
	b, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	if err := to.publish(b); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// identify reads who pid is right now, and its parent.
func identify(pid int) (procID, int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procID{}, 0, fmt.Errorf("identify process: %w", err)
	}
	// The command name, in parentheses, may itself hold spaces and parentheses.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return procID{}, 0, fmt.Errorf("identify process %d: short stat line", pid)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return procID{}, 0, fmt.Errorf("identify process %d: %w", pid, err)
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return procID{}, 0, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return procID{PID: pid, StartTicks: start}, parent, nil
}

// open gives a pidfd, or false when the process is gone.
func (p procID) open() (int, bool, error) {
	if p.PID == 0 {
		return -1, false, nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, false, nil
	}
	if err != nil {
		return -1, false, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	now, _, err := identify(p.PID)
	if err != nil || now != p {
		unix.Close(fd)
		return -1, false, nil //nolint:nilerr // it is gone: somebody else has its number
	}
	return fd, true, nil
}

// killAndWait ends the process and returns when it is gone. For pid 1 of a
// namespace that means that everything in the namespace is gone too: the kernel
// reports its end only after it has killed and reaped the rest.
func (p procID) killAndWait() error {
	fd, alive, err := p.open()
	if err != nil || !alive {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return waitReadable(fd)
}

func waitReadable(fd int) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
	}
}
