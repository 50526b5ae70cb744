package e2e

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

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

func TestWorkIsRefusedBeforeTheDiskIsFull(t *testing.T) {
	d := newDev(t, "SKERRY_RUNNERD_STORE_MIN_FREE=1000000GiB")
	c := d.admin()
	_, err := c.ex.RunShell(t.Context(), connect.NewRequest(&skerryv1.RunShellRequest{Command: "true"}))
	if p := problem.Of(err); p.GetReason() != problem.LimitExceeded || !strings.Contains(p.GetLimit(), "store.min_free") || !p.GetRetryable() {
		t.Fatalf("without room: %v", err)
	}
}
