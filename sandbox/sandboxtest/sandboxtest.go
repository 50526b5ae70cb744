// Package sandboxtest helps tests that run real sandboxes: it builds the shim,
// probes what the machine can do, and repeats tests as an ordinary user.
package sandboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// RequireProbesEnv set to 1 turns a skip for a missing ability into a failure.
const RequireProbesEnv = "SKERRY_REQUIRE_PROBES"

// shimEnv names a shim that is built already.
const shimEnv = "SKERRY_TEST_SHIM"

// Main builds runnerd-shim, stores its path in shim and runs the tests.
func Main(m *testing.M, shim *string) (code int, err error) {
	if path := os.Getenv(shimEnv); path != "" {
		*shim = path
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, err
	}
	if *shim, err = Build(dir); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// Build builds runnerd-shim, as it is shipped, into dir; or takes the one in the
// directory SKERRY_BIN, for machines that cannot build.
func Build(dir string) (string, error) {
	path := filepath.Join(dir, "runnerd-shim")
	if bin := os.Getenv("SKERRY_BIN"); bin != "" {
		return filepath.Abs(filepath.Join(bin, "runnerd-shim"))
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "skerry.internal/cmd/runnerd-shim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build shim: %w: %s", err, out)
	}
	return path, nil
}

// RequireBwrap skips, or fails if probes are required, where bubblewrap can't
// make a sandbox.
func RequireBwrap(t testing.TB) {
	t.Helper()
	Require(t, probeBwrap())
}

// Require skips, or fails if probes are required, for a missing ability.
func Require(t testing.TB, missing error) {
	t.Helper()
	if missing == nil {
		return
	}
	if os.Getenv(RequireProbesEnv) == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}

var probeBwrap = sync.OnceValue(func() error {
	out, err := exec.Command("bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--unshare-user", "--as-pid-1", "--proc", "/proc", "true").CombinedOutput()
	if err != nil {
		return fmt.Errorf("bubblewrap can't make a sandbox here: %w: %s", err, out)
	}
	return nil
})
