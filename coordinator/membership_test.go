package coordinator

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"skerry.internal/config"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func (f *fleet) remove(name string) error {
	f.t.Helper()
	var err error
	f.until("an answer of the leader", func() bool {
		_, err = f.leader().clusterAPI().RemoveMember(f.t.Context(), connect.NewRequest(&skerryv1.RemoveMemberRequest{Name: name}))
		return problem.Of(err).GetReason() != problem.NotLeader
	})
	return err
}

func (f *fleet) status() *skerryv1.GetClusterStatusResponse {
	f.t.Helper()
	n := f.running()[len(f.running())-1]
	return must[skerryv1.GetClusterStatusResponse](f.t)(n.clusterAPI().GetClusterStatus(f.t.Context(), connect.NewRequest(&skerryv1.GetClusterStatusRequest{})))
}

func TestMembersJoinLeaveAndComeBack(t *testing.T) {
	f := startFleet(t, 3)
	status := f.status()
	if status.GetFailureTolerance() != 1 || !status.GetHealthy() || len(status.GetMembers()) != 3 || status.GetLeader() != f.leader().name {
		t.Errorf("status %v", status)
	}
	for _, m := range status.GetMembers() {
		if !m.GetHealthy() || m.GetVersion() != "test" || m.GetCommandVersion() != 2 || (m.GetRole() == memberLeader) != (m.GetName() == status.GetLeader()) {
			t.Errorf("member %v", m)
		}
	}
	// A member leaves, notices, and stops.
	gone := f.followers()[0]
	if err := f.remove(gone.name); err != nil {
		t.Fatal(err)
	}
	gone.end()
	if !errors.Is(gone.ended, ErrRemoved) {
		t.Errorf("the removed one ended with %v", gone.ended)
	}
	f.awaitVoters(2)
	if err := f.remove("nobody"); problem.Of(err).GetReason() != problem.NotFound {
		t.Errorf("remove nobody: %v", err)
	}
	// With its old data it is not let in again.
	gone.start()
	f.until("the removed one stops", func() bool {
		select {
		case <-gone.removed:
			return true
		default:
			return len(f.leader().node.servers()) != 2
		}
	})
	gone.end()
	// With an empty directory and a token of its name it is, at another address.
	again := f.join(gone.name)
	f.awaitVoters(3)
	if again.cfg.Cluster.Listen == gone.cfg.Cluster.Listen {
		t.Error("it has the address that it had")
	}
	f.mustToken("agent", "ann")
}

func TestRemovingTheLeaderHandsOver(t *testing.T) {
	f := startFleet(t, 3)
	old := f.leader()
	if err := f.remove(old.name); err != nil {
		t.Fatal(err)
	}
	old.end()
	f.awaitVoters(2)
	f.mustToken("agent", "ann")
}

// A coordinator that is denied has no part in the cluster within seconds, over
// connections that were open before too; its removal is what follows.
func TestDeniedMemberIsCutOff(t *testing.T) {
	f := startFleet(t, 3)
	denied := f.followers()[0].name
	if _, err := f.joins().DenyMember(t.Context(), connect.NewRequest(&skerryv1.DenyMemberRequest{Role: pki.RoleCoordinator, Name: denied})); err != nil {
		t.Fatal(err)
	}
	var last uint64
	f.until("the denied one falls behind", func() bool {
		f.mustToken("agent", fmt.Sprint("a", last))
		behind := f.node(denied).node.raft.LastIndex() == last
		last = f.node(denied).node.raft.LastIndex()
		return behind
	})
	if err := f.remove(denied); err != nil {
		t.Fatal(err)
	}
	f.until("two voters", func() bool { return len(f.leader().node.servers()) == 2 })
}

// A runner whose link lasts is told where the coordinators are now.
func TestRunnersAreToldOfNewCoordinators(t *testing.T) {
	f := startFleet(t, 3)
	r := f.runner("r1", f.leader().cfg.Advertise)
	f.join("n4")
	f.awaitVoters(4)
	f.until("the runner is told of four", func() bool { return len(r.Coordinators()) == 4 || r.Attached() > 1 })
	if err := f.remove(f.followers()[0].name); err != nil {
		t.Fatal(err)
	}
	f.until("the runner is told of three", func() bool { return len(r.Coordinators()) == 3 || r.Attached() > 1 })
}

func TestRemovalKeepsAMajority(t *testing.T) {
	f := startFleet(t, 3)
	dead := f.followers()[0]
	dead.kill()
	alive := f.followers()[0]
	f.until("the dead one is known to be dead", func() bool { return f.status().GetFailureTolerance() == 0 })
	if err := f.remove(alive.name); problem.Of(err).GetReason() != problem.QuorumAtRisk {
		t.Errorf("removing one of the two that live: %v", err)
	}
	if err := f.remove(dead.name); err != nil {
		t.Errorf("removing the dead one: %v", err)
	}
	f.awaitVoters(2)
	// What was removed while it was away learns of it when it comes back.
	dead.start()
	f.until("it stops", func() bool {
		select {
		case <-dead.removed:
			return true
		default:
			return false
		}
	})
	dead.end()
	if err := f.remove(f.followers()[0].name); err != nil {
		t.Errorf("down to one: %v", err)
	}
	last := f.leader()
	if err := f.remove(last.name); problem.Of(err).GetReason() != problem.QuorumAtRisk {
		t.Errorf("removing the last: %v", err)
	}
}

// A coordinator that comes back at another address is found there.
func TestMemberMovesToAnotherAddress(t *testing.T) {
	f := startFleet(t, 3)
	moved := f.followers()[0]
	moved.stop()
	f.mu.Lock()
	moved.cfg.Listen, moved.cfg.Cluster.Listen = freeAddress(t), freeAddress(t)
	moved.cfg.Advertise = "https://" + moved.cfg.Listen
	f.names[moved.cfg.Listen], f.names[moved.cfg.Cluster.Listen] = moved.name, moved.name
	f.mu.Unlock()
	moved.start()
	f.until("it is configured at its new address", func() bool {
		s, found := f.leader().node.server(raft.ServerID(moved.name))
		return found && string(s.Address) == moved.cfg.Cluster.Listen && s.Suffrage == raft.Voter
	})
	f.until("it has caught up", func() bool {
		return moved.Ready() && moved.node.raft.AppliedIndex() >= f.leader().node.raft.CommitIndex()
	})
}

// A lone coordinator's data directory becomes a member's.
func TestLoneBecomesACluster(t *testing.T) {
	cfg := testConfig(t.TempDir())
	k := startWith(t, cfg)
	secret := k.token("admin", "root")
	id := k.ClusterID()
	k.stop()

	f := newFleet(t)
	f.admin = secret
	first := f.add("coordinator-1", func(c *Config) { c.DataDir = cfg.DataDir })
	first.start()
	f.until("it leads", first.leads)
	if first.ClusterID() != id {
		t.Errorf("cluster %s became %s", id, first.ClusterID())
	}
	if s, _ := first.node.server("coordinator-1"); string(s.Address) != first.cfg.Cluster.Listen {
		t.Errorf("configured at %s", s.Address)
	}
	f.join("c2")
	f.awaitVoters(2)
	if err := f.node("c2").list(t.Context(), secret); err != nil {
		t.Errorf("a token of before through the second: %v", err)
	}
	// And the other way it is refused, with the reason.
	first.stop()
	_, err := New(t.Context(), cfg, Deps{Logger: testLogger(t)})
	if err == nil || !strings.Contains(err.Error(), "set cluster.listen") {
		t.Errorf("as a lone one: %v", err)
	}
}

// F45: a follower that was away for longer than the log reaches back catches up
// by a snapshot, and the log's file does not grow without bound.
func TestF45FollowerCatchesUpBySnapshot(t *testing.T) {
	f := startFleetWith(t, 3, func(cfg *Config) {
		// No election comes between: what is tested is how far the log reaches.
		cfg.Raft.HeartbeatTimeout, cfg.Raft.ElectionTimeout = config.Duration(2*time.Second), config.Duration(2*time.Second)
		cfg.Raft.StallTimeout = config.Duration(10 * time.Second)
		cfg.Raft.TrailingLogs, cfg.Raft.SnapshotThreshold = 32, 64
		cfg.Raft.SnapshotInterval = config.Duration(20 * time.Millisecond)
	})
	away := f.followers()[0]
	away.stop()
	leader := f.leader()
	fill := func(n int) {
		t.Helper()
		var work sync.WaitGroup
		defer work.Wait()
		slots := make(chan bool, 32)
		for i := range n {
			slots <- true
			work.Go(func() {
				defer func() { <-slots }()
				cmd := &raftlogv1.Command{Op: &raftlogv1.Command_RegisterRunner{RegisterRunner: &raftlogv1.RegisterRunner{
					Name: fmt.Sprintf("r%d", i%50), Version: strings.Repeat("v", 2000) + fmt.Sprint(i)}}}
				if _, err := leader.node.apply(t.Context(), cmd); err != nil {
					t.Error(err)
				}
			})
		}
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(leader.cfg.DataDir, raftLogFile))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	fill(300)
	last := away.node.raft.LastIndex()
	f.until("the log no longer reaches back", func() bool {
		first, err := leader.node.store.FirstIndex()
		return err == nil && first > last+1
	})
	const entries, entry, most = 3000, 2000, 4 << 20
	before := size()
	fill(entries)
	if after := size(); after > most {
		t.Errorf("raft.db has %d bytes after entries of %d in all; want at most %d", after, entries*entry, most)
	}
	t.Logf("raft.db: %d bytes after 300 entries, %d after %d more of %d bytes", before, size(), entries, entry)
	away.start()
	var want, got bytes.Buffer
	f.until("it has caught up", func() bool {
		want.Reset()
		got.Reset()
		leader.writeRunners(&want)
		away.writeRunners(&got)
		return want.String() == got.String()
	})
	f.mustToken("agent", "ann")
}

func (n *node) writeRunners(out io.Writer) {
	for _, r := range n.state.Read().Runners() {
		fmt.Fprintln(out, r.GetName(), r.GetNumber(), r.GetVersion())
	}
}

// A member that does not know the newest commands holds the cluster back to what
// it knows, until it is upgraded.
func TestOldMemberHoldsTheVersionBack(t *testing.T) {
	f := newFleet(t)
	lone := f.add("c1", func(cfg *Config) { cfg.Cluster.Bootstrap = true })
	lone.command.Store(3) // a program of the future, whose cluster
	lone.start()
	f.until("c1 leads", lone.leads)
	secret, err := os.ReadFile(filepath.Join(lone.cfg.DataDir, AdminTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	f.admin = strings.TrimSpace(string(secret))
	if got := lone.state.Read().ActiveVersion(); got != 3 {
		t.Errorf("alone it is at %d", got)
	}
	// One of today cannot enter it.
	late := f.join("c2")
	err = late.announce(t.Context())
	if p := problem.Of(err); p.GetReason() != problem.UpgradePending {
		t.Errorf("an old program announces itself: %v", err)
	}
}

func TestVersionRisesWithTheLastMember(t *testing.T) {
	f := startFleet(t, 1)
	leader := f.leader()
	old := f.add("c2", func(cfg *Config) { cfg.Cluster.Join, cfg.Cluster.JoinTokenFile = f.endpoints(), f.joinTokenFile("c2") })
	old.start()
	f.awaitVoters(2)
	future := &raftlogv1.Command{}
	leader.node.checksAs(t, future, 2, "")
	// The leader's program is upgraded first: nothing new may pass yet.
	leader.command.Store(3)
	f.until("the leader says so", func() bool { return leader.state.Read().Member(leader.name).GetCommandVersion() == 3 })
	if got := leader.state.Read().ActiveVersion(); got != 2 {
		t.Errorf("at %d with an old voter", got)
	}
	old.command.Store(3)
	f.until("the version rises everywhere", func() bool {
		return leader.state.Read().ActiveVersion() == 3 && old.state.Read().ActiveVersion() == 3
	})
}

// checksAs looks at whether a command that needs version 2 may pass.
func (n *raftNode) checksAs(t *testing.T, cmd *raftlogv1.Command, active uint32, reason string) {
	t.Helper()
	if got := n.state.Read().ActiveVersion(); got != active {
		t.Errorf("version %d, want %d", got, active)
	}
	if got := problem.Of(n.checkVersion(cmd)).GetReason(); got != reason {
		t.Errorf("refused with %q, want %q", got, reason)
	}
}

// unpack gives the data directory of the version before this one.
func unpack(t *testing.T) string {
	t.Helper()
	file, err := os.Open("testdata/datadir-v1.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for in := tar.NewReader(zipped); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(path, 0o700)
		} else {
			var data []byte
			if data, err = io.ReadAll(in); err == nil {
				err = os.WriteFile(path, data, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The upgrade: state that the version before this one wrote opens, and new
// commands pass at once where there is only one coordinator.
func TestDataOfVersion1Opens(t *testing.T) {
	k := startWith(t, testConfig(unpack(t)))
	view := k.state.Read()
	if view.Agent("alice").GetProject() != "genomics" || view.WorkspaceOf("alice", "local") == nil || view.WorkspaceOf("dev", "local") == nil {
		t.Error("agents or workspaces are missing")
	}
	var subjects []string
	for _, token := range view.Tokens() {
		subjects = append(subjects, token.GetSubject())
	}
	if got := strings.Join(subjects, " "); !strings.Contains(got, "local") || !strings.Contains(got, "node17") || !strings.Contains(got, "bob") {
		t.Errorf("tokens of %s", got)
	}
	k.node.checksAs(t, &raftlogv1.Command{}, 2, "")
	k.token("agent", "new")
}
