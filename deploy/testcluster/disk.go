package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// diskSize of a coordinator's own file system, in bytes.
const diskSize = 512 << 20

func (n *node) image() string { return filepath.Join(n.Dir, "disk.img") }

// makeDisk gives n a file system of its own for its data, so that it can be
// stalled without the others'.
func (n *node) makeDisk() error {
	if mounted(n.dataDir()) {
		return nil
	}
	if err := os.MkdirAll(n.dataDir(), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(n.image()); errors.Is(err, os.ErrNotExist) {
		f, err := os.OpenFile(n.image(), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(diskSize), f.Close(), run("mkfs.ext4", "-q", n.image())); err != nil {
			return err
		}
	}
	return run("mount", "-o", "loop", n.image(), n.dataDir())
}

// stall lets nothing be written to n's disk until unstall: writers wait.
func (n *node) stall() error {
	if !mounted(n.dataDir()) {
		return errors.New("it has no disk of its own: up with --disks")
	}
	return run("fsfreeze", "--freeze", n.dataDir())
}

func (n *node) unstall() error { return run("fsfreeze", "--unfreeze", n.dataDir()) }

func (n *node) removeDisk() error {
	if !mounted(n.dataDir()) {
		return nil
	}
	// Threads of a process that was just killed may hold it for a moment yet.
	return await(context.Background(), "the disk of "+n.Name+" to be let go", func() error { return syscall.Unmount(n.dataDir(), 0) })
}

func mounted(dir string) bool {
	text, err := os.ReadFile("/proc/self/mounts")
	return err == nil && strings.Contains(string(text), " "+dir+" ")
}
