package coordinator

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/config"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// save gives the snapshot that a node hands out.
func (n *node) save(t *testing.T) (*skerryv1.SnapshotInfo, []byte) {
	t.Helper()
	stream, err := n.clusterAPI().SaveSnapshot(t.Context(), connect.NewRequest(&skerryv1.SaveSnapshotRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var info *skerryv1.SnapshotInfo
	var data []byte
	for stream.Receive() {
		if i := stream.Msg().GetInfo(); i != nil {
			info = i
		}
		data = append(data, stream.Msg().GetData()...)
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	return info, data
}

func (n *node) restoreFrom(t *testing.T, info *skerryv1.SnapshotInfo, data []byte, force bool) error {
	t.Helper()
	stream := n.clusterAPI().RestoreSnapshot(t.Context())
	start := &skerryv1.RestoreStart{Info: info, Force: force}
	_ = stream.Send(&skerryv1.RestoreSnapshotRequest{Part: &skerryv1.RestoreSnapshotRequest_Start{Start: start}})
	for piece := range slices.Chunk(data, 1000) {
		if stream.Send(&skerryv1.RestoreSnapshotRequest{Part: &skerryv1.RestoreSnapshotRequest_Data{Data: piece}}) != nil {
			break // the answer says why
		}
	}
	_, err := stream.CloseAndReceive()
	return err
}

// mustRestore does what an operator does whose call met an election: it looks
// again and repeats it. A restore may be repeated at will.
func (n *node) mustRestore(t *testing.T, info *skerryv1.SnapshotInfo, data []byte, force bool) {
	t.Helper()
	n.fleet.until("the snapshot is restored", func() bool {
		err := n.restoreFrom(t, info, data, force)
		reason := problem.Of(err).GetReason()
		if err != nil && reason != problem.NotLeader && reason != problem.OutcomeUnknown {
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestSnapshotsAreSavedAndRestored(t *testing.T) {
	// The leader's disk and processor are busy while it restores; no election is wanted.
	f := startFleetWith(t, 3, func(cfg *Config) {
		cfg.Raft.HeartbeatTimeout, cfg.Raft.ElectionTimeout = config.Duration(time.Second), config.Duration(time.Second)
	})
	f.runner("r1", f.endpoints()...)
	kept := f.mustToken("agent", "ann")
	follower := f.followers()[0]
	info, data := follower.save(t)
	sum := sha256.Sum256(data)
	if info.GetClusterId() != follower.ClusterID() || info.GetSize() != uint64(len(data)) || !bytes.Equal(info.GetSha256(), sum[:]) {
		t.Errorf("info %v for %d bytes", info, len(data))
	}
	if again, _ := follower.save(t); again.GetIndex() < info.GetIndex() {
		t.Errorf("saved again at %d, before %d", again.GetIndex(), info.GetIndex())
	}
	later := f.mustToken("agent", "bob")
	// Who came since stays a member, and knows the others.
	f.join("c4")
	f.awaitVoters(4)

	changed := bytes.Clone(data)
	changed[len(changed)/2]++
	other := &skerryv1.SnapshotInfo{ClusterId: "cl_other", Size: info.GetSize(), Sha256: info.GetSha256()}
	whole := sha256.Sum256([]byte("nonsense"))
	for _, tt := range []struct {
		name   string
		info   *skerryv1.SnapshotInfo
		data   []byte
		reason string
	}{
		{"a changed byte", info, changed, problem.SnapshotDamaged},
		{"cut short", info, data[:len(data)-1], problem.SnapshotDamaged},
		{"too long", info, append(bytes.Clone(data), 0), problem.SnapshotDamaged},
		{"of another cluster", other, data, problem.InvalidArgument},
		{"no snapshot", &skerryv1.SnapshotInfo{ClusterId: info.GetClusterId(), Size: 8, Sha256: whole[:]}, []byte("nonsense"), problem.SnapshotDamaged},
		{"no header", nil, data, problem.InvalidArgument},
	} {
		if got := problem.Of(follower.restoreFrom(t, tt.info, tt.data, false)).GetReason(); got != tt.reason {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.reason)
		}
	}
	if err := follower.list(t.Context(), later); err != nil {
		t.Fatalf("a refused snapshot changed something: %v", err)
	}
	follower.mustRestore(t, info, data, false)
	for _, n := range f.running() {
		f.until(n.name+" has the restored state", func() bool {
			return n.list(t.Context(), kept) == nil && problem.Of(n.list(t.Context(), later)).GetReason() == problem.Unauthenticated
		})
	}
	f.awaitVoters(4)
	f.awaitRunner("r1")
	f.leader().kill()
	f.mustToken("agent", "after")
	f.leader().mustRestore(t, other, data, true)
	if got := f.leader().ClusterID(); got != info.GetClusterId() {
		t.Errorf("the cluster is %s now", got)
	}
}
