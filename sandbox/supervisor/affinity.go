package supervisor

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// setAffinity gives the waiting leader, and so all that it starts, the spec's
// processors. The kernel never allows more than the daemon's cpuset. It is a
// truth told to the code, not a limit: code may choose others within the
// cpuset, and its quota holds there as well.
func setAffinity(pid int, cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		return fmt.Errorf("the command saw all processors of the host, not those of its limit: %w", err)
	}
	return nil
}

// CPUSet gives the processors of the execution in dir, from its spec; nil when
// it has no spec any more, or none.
func CPUSet(dir string) []int {
	spec, err := readSpec(filepath.Join(dir, specFile))
	if err != nil {
		return nil
	}
	return spec.CPUs
}
