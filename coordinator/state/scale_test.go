package state

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/ids"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// largeSnapshot has n workspaces of n/100 agents on as many runners, 100 at least.
func largeSnapshot(t testing.TB, n int) []byte {
	t.Helper()
	var out bytes.Buffer
	put := func(r *raftlogv1.SnapshotRecord) {
		if _, err := protodelim.MarshalTo(&out, r); err != nil {
			t.Fatal(err)
		}
	}
	many := max(1, n/100)
	runners := max(many, 100)
	now := timestamppb.Now()
	put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Header{Header: &raftlogv1.SnapshotHeader{Version: Version, ClusterId: "cl_x", NextRunnerNumber: uint32(runners + 1)}}})
	for i := range runners {
		put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Runner{Runner: &raftlogv1.Runner{Name: fmt.Sprintf("runner-%05d", i), Number: uint32(i + 1), State: skerryv1.RunnerUp, Changed: now}}})
	}
	for i := range many {
		put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Agent{Agent: &raftlogv1.Agent{Name: fmt.Sprintf("agent-%05d", i), Created: now}}})
	}
	for i := range n {
		id := ids.New(ids.Workspace, uint32(i%runners+1), now.AsTime()).String()
		digest := fmt.Sprintf("sha256:%064x", i)
		put(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Workspace{Workspace: &raftlogv1.Workspace{Id: id, Agent: fmt.Sprintf("agent-%05d", i%many),
			Runner: fmt.Sprintf("runner-%05d", (i/many*7+i%many)%runners), Epoch: 1, Created: now,
			Head: &raftlogv1.Head{WorkspaceId: id, Epoch: 1, Seq: 1, Digest: digest, Commit: digest, State: skerryv1.WorkspaceReady}}}})
	}
	return out.Bytes()
}

// BenchmarkRestore is what a follower or a start needs for each workspace.
func BenchmarkRestore(b *testing.B) {
	const workspaces = 200_000
	data := largeSnapshot(b, workspaces)
	b.ReportAllocs()
	for b.Loop() {
		if err := NewReplicating(false).Restore(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/workspaces, "ns/workspace")
}

func TestUnreplicatedHasOnlyWhatIsToBeReplicated(t *testing.T) {
	data := largeSnapshot(t, 300)
	for _, byDefault := range []bool{true, false} {
		s := NewReplicating(byDefault)
		if err := s.Restore(bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		ws := s.Read().WorkspacesOfAgent("agent-00001")
		for i, policy := range []string{skerryv1.ReplicateNone, skerryv1.ReplicateOnCommit} {
			s.Apply([]Entry{{Index: uint64(i + 1), Command: &raftlogv1.Command{Id: policy, Op: &raftlogv1.Command_SetReplication{
				SetReplication: &raftlogv1.SetReplication{Workspace: ws[i].GetId(), Policy: policy}}}}})
		}
		want := map[string]int{"": 298, skerryv1.ReplicateNone: 0, skerryv1.ReplicateOnCommit: 1}
		if !byDefault {
			want[""] = 0
		}
		for policy, n := range want {
			if got := len(s.Read().Unreplicated(policy, "", 1000)); got != n {
				t.Errorf("by default %t, policy %q: %d workspaces, want %d", byDefault, policy, got, n)
			}
		}
	}
}
