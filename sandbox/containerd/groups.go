package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoots has the hierarchies: of version 2, and each of version 1.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"}

// removeGroups removes runc's control groups of an execution, which stay when
// runc is interrupted in the making of a container, and kills what is in them.
func removeGroups(id string) error {
	var errs []error
	for _, root := range cgroupRoots {
		groups, err := filepath.Glob(filepath.Join(root, groupDir, id))
		errs = append(errs, err)
		for _, group := range groups {
			errs = append(errs, removeGroup(group))
		}
	}
	return errors.Join(errs...)
}

// removeGroup fails while the kernel has not done away with the processes yet:
// whoever wants the container removed tries again.
func removeGroup(group string) error {
	err := unix.Rmdir(group)
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(killGroup(group), unix.Rmdir(group))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("remove control group %s: %w", group, err)
}

func killGroup(group string) error {
	pids, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, field := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	return nil
}
