package sandboxtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// RequireQuotaEnv set to 1 makes a missing project quota a failure. It is not
// part of RequireProbesEnv: a kernel either has the code or not, and the virtual
// machine's has.
const RequireQuotaEnv = "SKERRY_REQUIRE_PROJECT_QUOTA"

// ProjectQuotaFS mounts a fresh file system of the kind "ext4" or "xfs", of 400
// MiB, that enforces project quotas.
func ProjectQuotaFS(t testing.TB, kind string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quota") // every user must get through
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	mkfs := map[string][]string{
		"ext4": {"mkfs.ext4", "-qF", "-O", "quota,project", "-E", "quotatype=prjquota", image},
		"xfs":  {"mkfs.xfs", "-q", image},
	}[kind]
	err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(mount, 0o755))
	if err == nil {
		err = os.WriteFile(image, nil, 0o600)
	}
	if err == nil {
		err = os.Truncate(image, 400<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{mkfs, {"mount", "-o", "loop,prjquota", image, mount}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		if out, err := cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("no project quota on %s here (%s): %w: %s", kind, args[0], err, out)
			if os.Getenv(RequireQuotaEnv) == "1" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return mount
}
