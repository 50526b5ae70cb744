package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups are the control groups of one execution. The shim creates them, moves
// the leader in before it executes anything, and removes them at the end.
type cgroups []CgroupDir

// create makes the directories and writes their limits.
func (g cgroups) create() error {
	for _, dir := range g {
		if err := os.Mkdir(dir.Path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create cgroup: %w", err)
		}
		for _, s := range dir.Settings {
			err := writeCgroup(dir.Path, s.File, s.Value)
			if err != nil && !(s.Optional && errors.Is(err, fs.ErrNotExist)) {
				return fmt.Errorf("limit cgroup: %w", err)
			}
		}
	}
	return nil
}

// writeCgroup never creates a file: a missing one means a missing controller.
func writeCgroup(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// warm moves the host command into the directory above the first group, which
// has no limits. The first move after a pause waits for an RCU grace period,
// some 10 ms; this one can do so while bubblewrap is busy, and the leader's then
// is quick. On version 2 the directory above can't hold processes.
func (g cgroups) warm(pid int) {
	for _, dir := range g {
		if !dir.V2 {
			_ = writeCgroup(filepath.Dir(dir.Path), "cgroup.procs", strconv.Itoa(pid))
			return
		}
	}
}

// enter moves one process, with a single thread, into all groups.
func (g cgroups) enter(pid int) error {
	for _, dir := range g {
		if err := writeCgroup(dir.Path, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	return nil
}

// oomKills counts processes that the kernel killed for memory.
func (g cgroups) oomKills() int64 {
	for _, dir := range g {
		file := "memory.oom_control"
		if dir.V2 {
			file = "memory.events"
		}
		if n, ok := cgroupKey(dir.Path, file, "oom_kill"); ok {
			return n
		}
	}
	return 0
}

// peakMemory in bytes; 0 if no group tells.
func (g cgroups) peakMemory() int64 {
	for _, dir := range g {
		file := "memory.max_usage_in_bytes"
		if dir.V2 {
			file = "memory.peak" // since Linux 5.19
		}
		b, err := os.ReadFile(filepath.Join(dir.Path, file))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil {
			return n
		}
	}
	return 0
}

func cgroupKey(dir, file, key string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == key {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// kill is the second line behind the end of the pid namespace: whatever is
// still in the groups is killed.
func (g cgroups) kill() {
	for _, dir := range g {
		if dir.V2 && writeCgroup(dir.Path, "cgroup.kill", "1") == nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir.Path, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, f := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// remove deletes the groups. A group is busy while the kernel still takes a
// dead process apart, for which no event exists: hence the bounded retries.
func (g cgroups) remove() error {
	var errs []error
	for _, dir := range g {
		errs = append(errs, removeCgroup(dir.Path))
	}
	return errors.Join(errs...)
}

func removeCgroup(path string) error {
	for attempt := 0; ; attempt++ {
		err := unix.Rmdir(path)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY || attempt == 200 {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
		cgroups{{Path: path}}.kill()
		time.Sleep(time.Duration(min(attempt, 10)) * time.Millisecond)
	}
}
