package coordinator

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// A transfer whose source was removed before it was prepared ends, and none begins.
func TestTransferFromARemovedRunnerEnds(t *testing.T) {
	k := start(t)
	stop := k.run(newNamed("a"))
	k.runner("b")
	admin, ann := k.as(k.token("admin", "root")), k.as(k.token("agent", "ann"))
	source := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("a", ""))).GetExecution().GetWorkspace()
	target := must[skerryv1.RunShellResponse](t)(ann.executions.RunShell(t.Context(), shellOn("b", ""))).GetExecution().GetWorkspace()
	stop()
	k.until("a away", func() bool { return k.links.get("a") == nil })
	id := ids.New(ids.Transfer, 2, time.Now()).String()
	if _, err := k.node.apply(t.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_CreateTransfer{CreateTransfer: &raftlogv1.CreateTransfer{
		Transfer: &raftlogv1.Transfer{Id: id, Agent: "ann", Source: source, SourceRunner: "a", SourceEpoch: 1, Target: target, TargetRunner: "b", TargetEpoch: 1,
			Snapshot: "sha256:1", Mappings: []*raftlogv1.Mapping{{Source: "x", Target: "y"}}}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.runners.RemoveRunner(t.Context(), connect.NewRequest(&skerryv1.RemoveRunnerRequest{Runner: "a", Force: true})); err != nil {
		t.Fatal(err)
	}
	k.until("end of the transfer", func() bool { return k.state.Read().Transfer(id).GetState() == skerryv1.StateFailed })
	if got := k.state.Read().Transfer(id).GetReason(); got != problem.WorkspaceLost {
		t.Errorf("failed for %s", got)
	}
	k.run(newNamed("a")) // the name comes again, what was lost does not
	transfers := rpc.NewTransferServiceClient(bearer{k.h2, k.token("agent", "ann")}, k.url)
	for name, ends := range map[string][2]string{"from": {source, target}, "to": {target, source}} {
		_, err := transfers.StartTransfer(t.Context(), connect.NewRequest(&skerryv1.StartTransferRequest{Source: ends[0], Target: ends[1],
			SourceSnapshot: "sha256:1", Mappings: []*skerryv1.TransferMapping{{Source: "x", Target: "y"}}}))
		if problem.Of(err).GetReason() != problem.WorkspaceLost {
			t.Errorf("%s the lost workspace: %v", name, err)
		}
	}
}
