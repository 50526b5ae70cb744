package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// daemonDir is the leaf that the daemon moves into.
const daemonDir = "skerry-daemon"

// setupV2 takes from the unified hierarchy the controllers that version 1 lacks.
func (l *Layout) setupV2(mount, own string) {
	base := base(mount, own)
	offered, err := readWords(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		l.explain(wanted, fmt.Sprintf("the process's own control group can't be read: %v", err))
		return
	}
	var use []string
	for _, c := range wanted {
		switch {
		case l.V1[c] != "":
		case slices.Contains(offered, c):
			use = append(use, c)
		default:
			l.explain([]string{c}, fmt.Sprintf("%s does not have the controller: delegate it (systemd: Delegate=yes)", base))
		}
	}
	if len(use) == 0 {
		return
	}
	dir := filepath.Join(base, groupDir)
	if err := delegate(base, dir, use); err != nil {
		l.explain(use, err.Error())
		return
	}
	l.V2, l.V2Controllers = dir, use
}

// base is the group below which all is made.
func base(mount, own string) string {
	dir := filepath.Join(mount, own)
	if filepath.Base(own) == daemonDir { // this process, or the one that started it, moved here before
		return filepath.Dir(dir)
	}
	return dir
}

func (l *Layout) explain(controllers []string, why string) {
	for _, c := range controllers {
		if l.V1[c] == "" && l.Why[c] == "" {
			l.Why[c] = why
		}
	}
}

// delegate hands controllers down from base to dir and to dir's children.
func delegate(base, dir string, controllers []string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make control group: %w", err)
	}
	err := enable(base, controllers)
	if errors.Is(err, unix.EBUSY) {
		if err = moveAside(base); err == nil {
			err = enable(base, controllers)
		}
	}
	if err == nil {
		err = enable(dir, controllers)
	}
	if err != nil {
		_ = os.Remove(dir) // unless others use it
		return fmt.Errorf("hand down controllers %v from %s: %w", controllers, base, err)
	}
	return nil
}

func enable(dir string, controllers []string) error {
	value := "+" + strings.Join(controllers, " +")
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(value), 0)
}

// moveAside moves this process, which must be alone in base, to a leaf.
func moveAside(base string) error {
	pids, err := readWords(filepath.Join(base, "cgroup.procs"))
	if err != nil {
		return err
	}
	self := strconv.Itoa(os.Getpid())
	if !slices.Equal(pids, []string{self}) {
		return fmt.Errorf("other processes are in this group: give the daemon a group of its own (a systemd unit with Delegate=yes)")
	}
	leaf := filepath.Join(base, daemonDir)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(self), 0)
}

func readWords(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(b)), nil
}
