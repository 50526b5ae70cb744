package coordinator

import (
	"testing"

	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// A copy that came too late must not take away what a moved workspace is
// restored from.
func TestSupersededReplica(t *testing.T) {
	late := &raftlogv1.Replica{Runner: "r3", Epoch: 1, Seq: 7}
	tests := []struct {
		name string
		now  *raftlogv1.Workspace
		want bool
	}{
		{"recorded", &raftlogv1.Workspace{Runner: "r1", Epoch: 1, Replica: late}, true},
		{"a later one is known there", &raftlogv1.Workspace{Runner: "r1", Epoch: 1, Replica: &raftlogv1.Replica{Runner: "r3", Epoch: 1, Seq: 8}}, true},
		{"moved to the old one", &raftlogv1.Workspace{Runner: "r2", Epoch: 2, Restore: &raftlogv1.Replica{Runner: "r2", Epoch: 1}}, false},
		{"moved elsewhere, from the old one", &raftlogv1.Workspace{Runner: "r4", Epoch: 2, Restore: &raftlogv1.Replica{Runner: "r2", Epoch: 1},
			Replica: &raftlogv1.Replica{Runner: "r2", Epoch: 1}}, false},
		{"a later one is known at the old one", &raftlogv1.Workspace{Runner: "r1", Epoch: 1, Replica: &raftlogv1.Replica{Runner: "r2", Epoch: 1, Seq: 8}}, false},
	}
	for _, tt := range tests {
		if got := superseded(tt.now, "r2", late); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
