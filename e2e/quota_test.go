package e2e

import (
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestWorkspaceQuota(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_LIMITS_WORKSPACE_BYTES=1MiB")
	c := d.admin()
	e := c.sh(t, "head -c 2000000 /dev/zero > big; exit 0")
	if e.State != skerryv1.StateFailed || e.Verdict.Kind != skerryv1.VerdictQuotaExceeded || e.Verdict.Limit != "workspace_bytes" || e.Verdict.GetExitCode() != 0 {
		t.Fatalf("over the quota: %s %v", e.State, e.Verdict)
	}
	if e.Snapshot.GetBytes() != 2000000 {
		t.Fatalf("what the command left is not committed: %v", e.Snapshot)
	}
	_, err := c.files.WriteFile(t.Context(), connect.NewRequest(&skerryv1.WriteFileRequest{Path: "more", Content: &skerryv1.WriteFileRequest_Text{Text: "x"}}))
	if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), "limits.workspace_bytes") {
		t.Fatalf("a write over the quota: %v", err)
	}
	if e := c.sh(t, "rm big"); e.State != skerryv1.StateCompleted {
		t.Fatalf("making room: %v", e.Verdict)
	}
	if _, err := c.files.WriteFile(t.Context(), connect.NewRequest(&skerryv1.WriteFileRequest{Path: "more", Content: &skerryv1.WriteFileRequest_Text{Text: "x"}})); err != nil {
		t.Fatal(err)
	}
}

// A command that fills the disk is stopped long before its time limit, and what
// it left is committed.
func TestWorkspaceQuotaWhileACommandRuns(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_LIMITS_WORKSPACE_BYTES=20MiB")
	c := d.admin()
	e := c.sh(t, "while :; do head -c 1M /dev/zero >> big; sleep 0.02; done")
	if e.State != skerryv1.StateFailed || e.Verdict.Kind != skerryv1.VerdictQuotaExceeded || e.Verdict.Limit != "workspace_bytes" || e.Verdict.Signal != "SIGTERM" {
		t.Fatalf("a disk bomb: %s %v", e.State, e.Verdict)
	}
	if n := e.Snapshot.GetBytes(); n < 20<<20 {
		t.Fatalf("what the command left is not committed: %d bytes", n)
	}
	if e.Usage.GetUserCpuUs()+e.Usage.GetSystemCpuUs() == 0 {
		t.Errorf("usage %v", e.Usage)
	}
	if e := c.sh(t, "rm big"); e.State != skerryv1.StateCompleted {
		t.Fatalf("making room: %v", e.Verdict)
	}
}

func TestWorkIsRefusedBeforeTheDiskIsFull(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_STORE_MIN_FREE=1000000GiB")
	c := d.admin()
	_, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true"}))
	if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), "store.min_free") || !p.GetRetryable() {
		t.Fatalf("without room: %v", err)
	}
}

// A command fills the disk with what only lies in its workspace: it cannot be
// committed, and nothing else may run there. Its agent makes room by itself.
func TestAFullDiskIsMendedByItsAgent(t *testing.T) {
	small, err := os.MkdirTemp("", "small-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(small) })
	if err := unix.Mount("small", small, "tmpfs", 0, "size=300m,mode=755"); err != nil {
		if os.Getenv("SKERRY_REQUIRE_PROBES") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip("no small disk without root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	t.Setenv("TMPDIR", small)
	d := newDev(t, "SKERRY_RUNNERD_STORE_MIN_FREE=1MiB")
	c := d.admin()
	c.sh(t, "echo kept > kept")
	ex := c.start(t, "head -c 1G /dev/urandom > huge || true", nil)
	d.eventually("a commit that fails", func() bool { return strings.Contains(c.get(t, ex.Id).Problem, "the runner's disk is full") })
	_, err = c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "rm huge"}))
	if p := problem.Of(err); p.GetReason() != problem.WorkspaceNeedsRepair && p.GetReason() != problem.LimitExceeded {
		t.Fatalf("a command in a workspace that needs repair: %v", err)
	}
	if _, err := c.files.DeleteFile(t.Context(), connect.NewRequest(&skerryv1.DeleteFileRequest{Path: "huge"})); err != nil {
		t.Fatalf("make room: %v", err)
	}
	if _, err := c.ws.RepairWorkspace(t.Context(), connect.NewRequest(&skerryv1.RepairWorkspaceRequest{})); err != nil {
		t.Fatalf("repair: %v", err)
	}
	if e := c.wait(t, ex.Id); e.State != skerryv1.StateCompleted {
		t.Fatalf("the command that filled the disk: %s %v", e.State, e.Verdict)
	}
	if e := c.sh(t, "cat kept; ls"); e.Stdout.Text != "kept\nkept\n" {
		t.Fatalf("afterwards: %q %q", e.Stdout.Text, e.Stderr.Text)
	}
}
