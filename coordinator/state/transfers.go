package state

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Bounds of what is kept of transfers (I10).
const (
	MaxActiveTransfers    = 100   // of one agent
	MaxAllActiveTransfers = 10000 // of all
	KeptTransfers         = 1000  // ended ones of one agent; older ones are forgotten
	// MaxMappingBytes bounds the paths of one transfer together.
	MaxMappingBytes = 32 << 10
)

const (
	indexOwner = "owner" // by agent and id
	indexOpen  = "open"  // those that have not ended for good, by runner of the target
	indexKey   = "key"   // by agent and idempotency key
)

func transferTable() *memdb.TableSchema {
	type transfer = raftlogv1.Transfer
	return table(tableTransfers, byID((*transfer).GetId),
		byText(indexOwner, true, 2, func(t *transfer) []string { return []string{t.GetAgent(), t.GetId()} }),
		some(byText(indexOpen, true, 2, func(t *transfer) []string {
			if settled(t.GetState()) {
				return []string{""}
			}
			return []string{t.GetTargetRunner(), t.GetId()}
		})),
		some(byText(indexKey, false, 2, func(t *transfer) []string { return []string{t.GetAgent(), t.GetIdempotencyKey()} })))
}

// settled: nothing changes the transfer any more. An unknown one may yet
// resolve to the truth.
func settled(state string) bool {
	return skerryv1.TransferEnded(state) && state != skerryv1.StateUnknown
}

func (s *Snapshot) writeTransfers(out *recordWriter) {
	each(s.txn, tableTransfers, indexID, func(v *raftlogv1.Transfer) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Transfer{Transfer: v}})
	})
	each(s.txn, tableBranches, indexID, func(v *raftlogv1.Branch) {
		out.write(&raftlogv1.SnapshotRecord{Record: &raftlogv1.SnapshotRecord_Branch{Branch: v}})
	})
}

// Transfer finds a transfer by id.
func (r Reader) Transfer(id string) *raftlogv1.Transfer {
	v, _ := first[raftlogv1.Transfer](r.txn, tableTransfers, indexID, id)
	return v
}

// TransferByKey finds the transfer that an agent started with an idempotency key.
func (r Reader) TransferByKey(agent, key string) *raftlogv1.Transfer {
	v, _ := first[raftlogv1.Transfer](r.txn, tableTransfers, indexKey, agent, key)
	return v
}

// TransfersOfAgent lists an agent's transfers, oldest first.
func (r Reader) TransfersOfAgent(agent string) []*raftlogv1.Transfer {
	it, err := r.txn.LowerBound(tableTransfers, indexOwner, agent, "")
	if err != nil {
		panic("state: " + err.Error())
	}
	var out []*raftlogv1.Transfer
	for raw := it.Next(); raw != nil; raw = it.Next() {
		t := raw.(*raftlogv1.Transfer)
		if t.GetAgent() != agent {
			break
		}
		out = append(out, t)
	}
	return out
}

// OpenTransfers lists the transfers that have not ended, and those whose
// outcome is unknown.
func (r Reader) OpenTransfers() []*raftlogv1.Transfer {
	return all[raftlogv1.Transfer](r.txn, tableTransfers, indexOpen)
}

// GrantKeys are the keys that sign grants, the one in use first.
func (r Reader) GrantKeys() []*raftlogv1.GrantKey { return r.Cluster().GetGrantKeys() }

func transferAnswer(t *raftlogv1.Transfer) *raftlogv1.Answer {
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Transfer{Transfer: t}}
}

// createTransfer records a transfer, or gives the one that came with the same key.
func (p processor) createTransfer(cmd *raftlogv1.Command, t *raftlogv1.Transfer) *raftlogv1.Answer {
	if t.GetId() == "" || t.GetAgent() == "" || t.GetTargetRunner() == "" {
		return refuse(problem.InvalidArgument, "transfer", "id, agent or runner is empty")
	}
	if key := t.GetIdempotencyKey(); key != "" {
		if known := p.TransferByKey(t.GetAgent(), key); known != nil {
			if !bytes.Equal(known.GetRequestHash(), t.GetRequestHash()) {
				return refuse(problem.IdempotencyMismatch, "idempotencyKey", "this key came first with another request")
			}
			return transferAnswer(known)
		}
	}
	if p.Transfer(t.GetId()) != nil {
		return refuse(problem.AlreadyExists, "id", "transfer %q exists", t.GetId())
	}
	if refusal := p.transferRoom(t.GetAgent()); refusal != nil {
		return refusal
	}
	t = proto.CloneOf(t)
	t.State, t.Created, t.Started, t.Ended, t.CancelRequested = skerryv1.StateQueued, cmd.GetTime(), nil, nil, false
	p.put(tableTransfers, t)
	return transferAnswer(t)
}

func (p processor) transferRoom(agent string) *raftlogv1.Answer {
	if n := len(p.OpenTransfers()); n >= MaxAllActiveTransfers {
		return refuse(problem.LimitExceeded, "", "%d transfers of all agents have not ended", n)
	}
	active := 0
	for _, t := range p.TransfersOfAgent(agent) {
		if !skerryv1.TransferEnded(t.GetState()) {
			active++
		}
	}
	if active >= MaxActiveTransfers {
		return refuse(problem.LimitExceeded, "", "%d transfers of the agent have not ended", active)
	}
	return nil
}

// updateTransfer takes over what changed. What has ended for good stays as it is.
func (p processor) updateTransfer(cmd *raftlogv1.Command, op *raftlogv1.UpdateTransfer) *raftlogv1.Answer {
	t := p.Transfer(op.GetId())
	if t == nil {
		return refuse(problem.NotFound, "transferId", "no transfer %q", op.GetId())
	}
	if settled(t.GetState()) {
		return transferAnswer(t)
	}
	t = proto.CloneOf(t)
	if op.GetSnapshot() != "" {
		t.Snapshot = op.GetSnapshot()
	}
	if op.GetCounts() != nil {
		t.Counts, t.Bytes, t.BytesCompleted = op.GetCounts(), op.GetBytes(), op.GetBytesCompleted()
	}
	if op.GetRoute() != "" {
		t.Route = op.GetRoute()
	}
	t.Reason, t.Message = op.GetReason(), op.GetMessage()
	p.moveTransfer(cmd, t, op.GetState())
	return transferAnswer(t)
}

// moveTransfer changes the state, stamps the times and stores t, which is a private copy.
func (p processor) moveTransfer(cmd *raftlogv1.Command, t *raftlogv1.Transfer, state string) {
	switch {
	case state == "" || state == t.GetState():
	case state == skerryv1.StateRunning:
		if !skerryv1.TransferEnded(t.GetState()) {
			t.State, t.Started = state, cmd.GetTime()
		}
	case skerryv1.TransferEnded(state):
		t.State, t.Ended = state, cmd.GetTime()
		p.deliver(t.GetAgent(), &raftlogv1.InboxEntry{Kind: EntryTransferEnd, Id: t.GetId(), Time: cmd.GetTime(), Text: endText(t)})
	}
	p.put(tableTransfers, t)
	if skerryv1.TransferEnded(t.GetState()) {
		p.pruneTransfers(t.GetAgent())
	}
}

// endText is what the agent's inbox has of an end.
func endText(t *raftlogv1.Transfer) string {
	c := t.GetCounts()
	text := fmt.Sprintf("transfer %s %s: %d completed, %d failed, %d cancelled", t.GetId(), t.GetState(), c.GetCompleted(), c.GetFailed(), c.GetCancelled())
	if c.GetUnknown() > 0 {
		text += fmt.Sprintf(", %d unknown", c.GetUnknown())
	}
	return text
}

// pruneTransfers forgets the oldest of too many ended transfers.
func (p processor) pruneTransfers(agent string) {
	var ended []*raftlogv1.Transfer
	for _, t := range p.TransfersOfAgent(agent) {
		if skerryv1.TransferEnded(t.GetState()) {
			ended = append(ended, t)
		}
	}
	for _, t := range ended[:max(0, len(ended)-KeptTransfers)] {
		p.remove(tableTransfers, t)
	}
}

// cancelTransfer ends a transfer that has not begun; of another it notes the
// wish, which its target carries out.
func (p processor) cancelTransfer(cmd *raftlogv1.Command, op *raftlogv1.CancelTransfer) *raftlogv1.Answer {
	t := p.Transfer(op.GetId())
	if t == nil {
		return refuse(problem.NotFound, "transferId", "no transfer %q", op.GetId())
	}
	if skerryv1.TransferEnded(t.GetState()) || t.GetCancelRequested() {
		return transferAnswer(t)
	}
	t = proto.CloneOf(t)
	t.CancelRequested = true
	state := ""
	if t.GetState() == skerryv1.StateQueued {
		state, t.Counts = skerryv1.StateCancelled, &raftlogv1.Counts{Cancelled: uint64(len(t.GetMappings()))}
	}
	p.moveTransfer(cmd, t, state)
	return transferAnswer(t)
}

// keptGrantKeys is how many keys are valid at once.
const keptGrantKeys = 3

func (p processor) addGrantKey(cmd *raftlogv1.Command, op *raftlogv1.AddGrantKey) *raftlogv1.Answer {
	header := p.cluster()
	if len(op.GetKey().GetSeed()) == 0 || len(op.GetKey().GetPublic()) == 0 {
		return refuse(problem.InvalidArgument, "key", "is empty")
	}
	if !op.GetFirst() || len(header.GetGrantKeys()) == 0 {
		key := proto.CloneOf(op.GetKey())
		key.Created = cmd.GetTime()
		header.GrantKeys = append([]*raftlogv1.GrantKey{key}, header.GetGrantKeys()...)
		header.GrantKeys = header.GrantKeys[:min(len(header.GrantKeys), keptGrantKeys)]
		p.putCluster(header)
	}
	// Seeds have no place among the remembered answers.
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Heads{Heads: &raftlogv1.HeadsUpdated{Changed: 1}}}
}
