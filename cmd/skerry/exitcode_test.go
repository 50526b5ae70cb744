package main

import (
	"testing"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// A command that ended by itself and left its workspace over a quota keeps its
// own exit code, unless that says that all is well.
func TestExitCodeOverQuota(t *testing.T) {
	for own, want := range map[int32]int{0: 1, 3: 3, 255: 255} {
		code, note := exitCode(&skerryv1.Execution{State: skerryv1.StateFailed,
			Verdict: &skerryv1.Verdict{Kind: skerryv1.VerdictQuotaExceeded, ExitCode: &own, Limit: "workspace_bytes"}})
		if code != want || note == "" {
			t.Errorf("a command that ended with %d gives %d, want %d", own, code, want)
		}
	}
}
