package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// find gives the agent's workspace with this id.
func (m *mover) find(t testing.TB, id string) *skerryv1.Workspace {
	t.Helper()
	res, err := m.ws.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range res.Msg.Workspaces {
		if w.Id == id {
			return w
		}
	}
	t.Fatalf("no workspace %s: %v", id, res.Msg.Workspaces)
	return nil
}

func (a *apart) replicated(m *mover, id string) *skerryv1.Workspace {
	a.t.Helper()
	var w *skerryv1.Workspace
	a.eventually("the head is replicated", func() bool {
		w = m.find(a.t, id)
		return w.GetHead().GetSeq() > 0 && w.GetReplication().GetSeq() == w.GetHead().GetSeq() && w.GetReplication().GetDigest() == w.GetHead().GetDigest()
	})
	return w
}

func (a *apart) reassign(id, to string, accept bool) (*skerryv1.ReassignWorkspaceResponse, error) {
	res, err := a.ca.ws.ReassignWorkspace(a.t.Context(), connect.NewRequest(&skerryv1.ReassignWorkspaceRequest{Workspace: id, To: to, AcceptLoss: accept}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (m *mover) cat(t testing.TB, sel *skerryv1.WorkspaceSelector, path string) string {
	t.Helper()
	res, err := m.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Workspace: sel, Path: path}))
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return res.Msg.Text
}

// I6, F47: a runner that is partitioned away goes on with what it runs; its
// workspace moves; when it returns nothing of it moves the workspace, and nothing is lost.
func TestI6PartitionedRunnerCannotCommitAfterTheMove(t *testing.T) {
	a := newApart(t, "replication: {policy: on_commit}\n", "node1", "node2", "node3")
	m := a.mover("alice")
	wantState(t, m.on(t, "node1", "mkdir d; echo base > d/f; echo base > both"), "completed", "exited")
	id := m.workspace(t, "node1")
	w := a.replicated(m, id)
	if w.Replication.Runner == "node1" || w.Replication.Runner == "" {
		t.Fatalf("replica is on %q", w.Replication.Runner)
	}
	// Two executions: one ends while nobody sees the runner, one begins then.
	first := m.start(t, "echo partitioned > both; echo new > only-there; sleep 6; echo end >> only-there", &skerryv1.RunOptions{Runner: "node1"})
	second := m.start(t, "echo started > second; sleep 300", &skerryv1.RunOptions{Runner: "node1"})
	a.eventually("the first runs", func() bool { return m.get(t, first.Id).State == "running" })
	node1 := a.nodes["node1"].cmd.Process
	if err := node1.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node1.Signal(syscall.SIGCONT) }()
	a.eventually("node1 is down", func() bool {
		list, err := a.ca.run.ListRunners(t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{}))
		return err == nil && list.Msg.Runners[0].Name == "node1" && list.Msg.Runners[0].State == "down"
	})
	moved, err := a.reassign(id, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if moved.Workspace.Epoch != 2 || moved.Workspace.Runner != w.Replication.Runner || moved.Branch.State != "away" {
		t.Fatalf("moved %v", moved)
	}
	a.eventually("the workspace is restored", func() bool { return m.find(t, id).State == "ready" })
	e := m.sh(t, "cat d/f both; echo moved > both; test ! -e only-there")
	wantState(t, e, "completed", "exited")
	if e.Runner != w.Replication.Runner || e.Stdout.Text != "base\nbase\n" || e.Snapshot.GetSeq() != w.Head.Seq+2 {
		t.Fatalf("after the move: on %s %q %v, head was %v", e.Runner, e.Stdout.Text, e.Snapshot, w.Head)
	}
	if err := node1.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.up("node1")
	got := m.wait(t, second.Id)
	if got.State != "cancelled" || !strings.Contains(got.GetVerdict().GetDetail(), "fenced") {
		t.Errorf("second: %v", got)
	}
	wantState(t, m.wait(t, first.Id), "completed", "exited")
	listed := map[string]bool{}
	list, err := m.ex.ListExecutions(t.Context(), connect.NewRequest(&skerryv1.ListExecutionsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list.Msg.Executions {
		listed[x.Id] = true
	}
	if !listed[first.Id] || !listed[e.Id] {
		t.Errorf("listed are %v", listed)
	}
	var branch *skerryv1.Branch
	a.eventually("the branch is kept", func() bool {
		res, err := m.ws.ListBranches(t.Context(), connect.NewRequest(&skerryv1.ListBranchesRequest{}))
		if err != nil || len(res.Msg.Branches) != 1 {
			return false
		}
		branch = res.Msg.Branches[0]
		return branch.State == "kept" && branch.GetHead().GetSeq() >= w.Head.Seq+1 && branch.GetHead().GetDigest() == got.GetSnapshot().GetDigest()
	})
	at := &skerryv1.WorkspaceSelector{Branch: branch.Id}
	if text := m.cat(t, at, "only-there") + m.cat(t, at, "both"); text != "new\nend\npartitioned\n" {
		t.Errorf("branch has %q", text)
	}
	if text := m.cat(t, &skerryv1.WorkspaceSelector{Id: id}, "both"); text != "moved\n" {
		t.Errorf("the workspace has %q", text)
	}
	now := m.find(t, id)
	if now.Epoch != 2 || now.Runner != w.Replication.Runner || now.Head.Seq != e.Snapshot.Seq {
		t.Errorf("workspace %v", now)
	}
	// A branch takes no writes, and gives its files by a transfer.
	_, err = m.files.WriteFile(t.Context(), connect.NewRequest(&skerryv1.WriteFileRequest{Workspace: at, Path: "x", Content: &skerryv1.WriteFileRequest_Text{Text: "x"}}))
	if problem.Of(err).GetReason() != problem.Fenced {
		t.Errorf("write to a branch: %v", err)
	}
	_, err = m.files.DeleteFile(t.Context(), connect.NewRequest(&skerryv1.DeleteFileRequest{Workspace: at, Path: "both"}))
	if problem.Of(err).GetReason() != problem.Fenced {
		t.Errorf("delete from a branch: %v", err)
	}
	tr := m.transfer(t, &skerryv1.StartTransferRequest{Source: id, SourceBranch: branch.Id, Target: id}, "only-there:back")
	if end, _ := m.ended(t, tr.Id); end.State != "completed" {
		t.Errorf("transfer from the branch: %v", end)
	}
	if text := m.cat(t, &skerryv1.WorkspaceSelector{Id: id}, "back"); text != "new\nend\n" {
		t.Errorf("back has %q", text)
	}
	// Over a restart of the old runner too; and it cannot get the workspace back.
	a.nodes["node1"].kill()
	a.nodes["node1"].start()
	a.up("node1")
	a.eventually("the branch is read", func() bool {
		res, err := m.files.ReadFile(t.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Workspace: at, Path: "both"}))
		return err == nil && res.Msg.Text == "partitioned\n"
	})
	if _, err := a.reassign(id, "node1", true); problem.Of(err).GetReason() != problem.AlreadyExists {
		t.Errorf("back onto its branch: %v", err)
	}
}

func TestReassignSaysWhatWouldBeMissing(t *testing.T) {
	a := newApart(t, "", "node1", "node2")
	m := a.mover("alice")
	wantState(t, m.on(t, "node1", "echo 1 > f"), "completed", "exited")
	id := m.workspace(t, "node1")
	_, err := m.ws.SetReplication(t.Context(), connect.NewRequest(&skerryv1.SetReplicationRequest{Workspace: id, Policy: "interval", IntervalS: 3600}))
	if err != nil {
		t.Fatal(err)
	}
	w := a.replicated(m, id)
	wantState(t, m.on(t, "node1", "echo 2 > f"), "completed", "exited")
	a.eventually("the coordinator knows", func() bool {
		res, err := m.tr.ListTransferWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListTransferWorkspacesRequest{}))
		return err == nil && res.Msg.Workspaces[0].Seq == w.Head.Seq+1
	})
	a.nodes["node1"].kill()
	a.eventually("node1 is down", func() bool {
		list, err := a.ca.run.ListRunners(t.Context(), connect.NewRequest(&skerryv1.ListRunnersRequest{}))
		return err == nil && list.Msg.Runners[0].State == "down"
	})
	if _, err := m.ws.ReassignWorkspace(t.Context(), connect.NewRequest(&skerryv1.ReassignWorkspaceRequest{Workspace: id})); problem.Of(err).GetReason() != problem.PermissionDenied {
		t.Errorf("an agent moves workspaces: %v", err)
	}
	if _, err := a.reassign(id, "", false); problem.Of(err).GetReason() != problem.ReplicaBehind || !strings.Contains(err.Error(), "commits 2 to 2") {
		t.Errorf("a lossy move: %v", err)
	}
	if _, err := a.reassign(id, "", true); err != nil {
		t.Fatal(err)
	}
	a.eventually("the workspace is restored", func() bool { return m.find(t, id).State == "ready" })
	if text := m.cat(t, &skerryv1.WorkspaceSelector{Id: id}, "f"); text != "1\n" {
		t.Errorf("f is %q", text)
	}
	a.nodes["node1"].start()
	a.up("node1")
	var branch string
	a.eventually("the branch is kept", func() bool {
		res, err := m.ws.ListBranches(t.Context(), connect.NewRequest(&skerryv1.ListBranchesRequest{Workspace: id}))
		if err == nil && len(res.Msg.Branches) == 1 && res.Msg.Branches[0].State == "kept" {
			branch = res.Msg.Branches[0].Id
		}
		return branch != ""
	})
	if text := m.cat(t, &skerryv1.WorkspaceSelector{Branch: branch}, "f"); text != "2\n" {
		t.Errorf("the branch has %q", text)
	}
}

// A move while the old runner is there takes its last commits along.
func TestReassignOfALiveRunner(t *testing.T) {
	a := newApart(t, "", "node1", "node2")
	m := a.mover("alice")
	wantState(t, m.on(t, "node1", "echo 1 > f; mkdir -p a/b; ln -s f l; head -c 3000000 /dev/urandom > big; sha256sum big > sum"), "completed", "exited")
	id := m.workspace(t, "node1")
	running := m.start(t, "sleep 300", &skerryv1.RunOptions{Runner: "node1"})
	a.eventually("it runs", func() bool { return m.get(t, running.Id).State == "running" })
	var err error
	a.eventually("the move", func() bool { // the head is told a moment after the end
		_, err = a.reassign(id, "node2", false)
		return err == nil
	})
	if got := m.wait(t, running.Id); got.State != "cancelled" || !strings.Contains(got.GetVerdict().GetDetail(), "fenced") {
		t.Errorf("running: %v", got)
	}
	a.eventually("the workspace is restored", func() bool { return m.find(t, id).State == "ready" })
	start := time.Now()
	e := m.sh(t, "cat f l && sha256sum --quiet -c sum && ls -d a/b")
	wantState(t, e, "completed", "exited")
	if e.Runner != "node2" || e.Stdout.Text != "1\n1\na/b\n" || time.Since(start) > 30*time.Second {
		t.Errorf("on %s: %q", e.Runner, e.Stdout.Text)
	}
}
