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
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("look for strays: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("look for strays: %w", err)
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
		if err := id.killAndWait(); err != nil {
			return err
		}
	}
	return nil
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
