package diskquota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"skerry.internal/sandbox/sandboxtest"
)

const (
	testUID     = 54321
	testProject = 54321
)

// asAgent runs a script in dir as a user whom the quota binds: root is exempt.
func asAgent(t *testing.T, dir, script string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID, Gid: testUID}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestProjectQuota(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			root := sandboxtest.ProjectQuotaFS(t, kind)
			must(t, Enforced(root))
			dir := root + "/ws"
			must(t, os.MkdirAll(dir+"/tree/old", 0o755))
			must(t, os.Mkdir(dir+"/tmp", 0o755))
			write(t, dir+"/tree/old/f", 2<<20)
			must(t, os.Symlink("/etc/passwd", dir+"/tree/link"))
			must(t, os.Chown(dir+"/tree", testUID, testUID))
			must(t, SetProject(dir, testProject, Limits{Bytes: 8 << 20, Entries: 40}))
			must(t, SetProject(dir, testProject, Limits{Bytes: 8 << 20, Entries: 40})) // again, at a restart
			top := open(t, dir+"/tree")
			if o, full := Full(top); full {
				t.Fatalf("full at the start: %+v", o)
			}
			must(t, asAgent(t, dir+"/tree", "head -c 4M /dev/zero > new; sync new"))
			err := asAgent(t, dir+"/tree", "head -c 10M /dev/zero > more")
			if err == nil || !strings.Contains(err.Error(), "quota exceeded") && !strings.Contains(err.Error(), "No space left") {
				t.Fatalf("10 MiB into 2 MiB: %v", err)
			}
			if o, full := Full(top); !full || o.Limit != "workspace_bytes" || o.Most != 8<<20 {
				t.Errorf("what was there before does not count: %+v %v", o, full)
			}
			must(t, asAgent(t, dir+"/tree", "rm new more"))
			if err := asAgent(t, dir+"/tree", "for i in $(seq 60); do : > $i || exit 1; done"); err == nil {
				t.Error("60 files with a limit of 40")
			}
			if o, full := Full(top); !full || o.Limit != "workspace_entries" {
				t.Errorf("entries: %+v %v", o, full)
			}
			// The daemon moves files in from beside the tree, if there is room.
			must(t, asAgent(t, dir+"/tree", "rm 1 2 3"))
			write(t, dir+"/tmp/staged", 10)
			must(t, os.Rename(dir+"/tmp/staged", dir+"/tree/staged"))
		})
	}
}

func TestProjectQuotaIsNotEverywhere(t *testing.T) {
	if err := Enforced("/proc/self"); !errors.Is(err, ErrNoProjectQuota) {
		t.Errorf("got %v", err)
	}
	if _, full := Full(open(t, t.TempDir())); full {
		t.Error("full without a project")
	}
}
