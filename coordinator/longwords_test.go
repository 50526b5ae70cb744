package coordinator

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// What an agent or a runner says is bounded before it gets into the replicated state.
func TestLongWordsStayOutOfTheState(t *testing.T) {
	long := strings.Repeat("z", 1<<20)
	_, err := newTransfer(&skerryv1.StartTransferRequest{Source: "ws_a", Target: "ws_b", SourceSnapshot: long,
		Mappings: []*skerryv1.TransferMapping{{Source: "a", Target: "b"}}})
	if err == nil || !strings.Contains(err.Error(), "sourceSnapshot") {
		t.Errorf("sourceSnapshot of 1 MiB: %v", err)
	}
	head := raftHead(&skerryv1.Workspace{Id: long, State: long, Detail: long, Head: &skerryv1.Snapshot{Digest: long, Commit: long, Parent: long}})
	if n := proto.Size(head); n > 4096 {
		t.Errorf("a head of %d bytes", n)
	}
	end := endOf(&skerryv1.TransferStatus{State: skerryv1.StateFailed, Route: long, Problem: &skerryv1.TransferProblem{Reason: long, Message: long}})
	if n := proto.Size(end); n > 4096 {
		t.Errorf("an end of %d bytes", n)
	}
}
