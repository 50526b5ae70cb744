package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"
)

// objectSteps are run one after another on a tree of many tiny files.
var objectSteps = []struct{ what, args string }{
	{"snapshot, first", "snapshot tiny"},
	{"snapshot, no change", "snapshot tiny"},
	{"verify", "verify"},
	{"gc --keep 1", "gc --keep 1"},
	{"rebuild", "rebuild"},
	{"restore", "restore cli:$PWD/tiny out.tiny"},
}

// runObjects measures a store of many tiny objects: seconds, the process's
// peak of resident memory, and what the store takes on the disk.
func (b *bench) runObjects(ctx context.Context) error {
	if err := b.generateTiny(b.path("tiny")); err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 1, ' ', 0)
	fmt.Fprintln(w, "| what\t| seconds\t| peak RSS, MiB\t| store, MiB\t| inodes\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|")
	for _, s := range objectSteps {
		if err := exec.CommandContext(ctx, "sync", "-f", b.dir).Run(); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec '"+b.runnerd+"' cas --store s "+s.args)
		cmd.Dir = b.dir
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", s.what, err, out)
		}
		took := time.Since(start).Seconds()
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return errors.New("no resource usage on this system")
		}
		bytes, inodes, err := diskUse(b.path("s"))
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: %.2f s\n", s.what, took)
		fmt.Fprintf(w, "| %s\t| %.2f\t| %d\t| %d\t| %d\t|\n", s.what, took, usage.Maxrss>>10, bytes>>20, inodes)
	}
	return w.Flush()
}

// diskUse sums up what a directory takes: blocks and inodes.
func diskUse(dir string) (bytes, inodes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += st.Blocks * 512
		}
		inodes++
		return nil
	})
	return bytes, inodes, err
}

// generateTiny fills dir with b.objects distinct files of 20 to 200 bytes, 500
// a directory.
func (b *bench) generateTiny(dir string) error {
	r := rand.New(rand.NewPCG(11, 11))
	for i := range b.objects {
		at := filepath.Join(dir, fmt.Sprintf("d%03d", i/50_000), fmt.Sprintf("e%02d", i/500%100))
		if i%500 == 0 {
			if err := os.MkdirAll(at, 0o755); err != nil {
				return err
			}
		}
		content := make([]byte, 20+r.IntN(181))
		copy(content, strconv.Itoa(i)+" ")
		words(r, content[min(len(content), len(strconv.Itoa(i))+1):])
		if err := os.WriteFile(filepath.Join(at, fmt.Sprintf("f%07d", i)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
