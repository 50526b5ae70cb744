package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// markEnv is set in the environment of the host command, never inside of the
// sandbox, to the execution's directory.
const markEnv = "SKERRY_EXECUTION_DIR"

func mark(dir string) string { return markEnv + "=" + dir }

// killStrays ends what a shim that was killed during the set-up may have left:
// bubblewrap asks for its child's death together with its own only late, and a
// child that lost it before waits for ever. No command runs in such a sandbox,
// but it holds mounts. It returns when they are gone.
func killStrays(dir string) error {
	_, err := EndAbandoned(dir)
	return err
}

// EndAbandoned ends a sandbox whose execution's directory was removed while it
// ran, and tells whether there was one: such an execution did start.
func EndAbandoned(dir string) (found bool, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return false, fmt.Errorf("look for strays: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, fmt.Errorf("look for strays: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !hasMark(pid, dir) {
			continue
		}
		id, _, err := identify(pid)
		if err != nil || !hasMark(pid, dir) {
			continue // gone meanwhile
		}
		found = true
		// Its child, the sandbox's init, dies with it, but a little later.
		for _, p := range append(childrenOf(pid), id) {
			if err := p.killAndWait(); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// childrenOf a process with one thread, as bubblewrap is.
func childrenOf(pid int) (all []procID) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	for field := range bytes.FieldsSeq(b) {
		n, err := strconv.Atoi(string(field))
		if err != nil {
			continue
		}
		if id, parent, err := identify(n); err == nil && parent == pid {
			all = append(all, id)
		}
	}
	return all
}

func hasMark(pid int, dir string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for pair := range bytes.SplitSeq(env, []byte{0}) {
		if string(pair) == mark(dir) {
			return true
		}
	}
	return false
}
