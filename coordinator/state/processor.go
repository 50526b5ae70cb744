package state

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// Entry is a committed command and its place in the log.
type Entry struct {
	Index   uint64
	Command *raftlogv1.Command
}

// Apply carries out committed commands in order and gives an answer for each.
// A refusal that every node decides alike is an answer. Anything else, such as
// an operation that this version does not know, panics: a node that went on
// would diverge from the others.
func (s *State) Apply(entries []Entry) []*raftlogv1.Answer {
	txn := s.db.Load().Txn(true)
	defer txn.Abort()
	var changes touched
	p := processor{Reader: Reader{txn: txn}, memory: s.memory, changes: &changes}
	answers := make([]*raftlogv1.Answer, len(entries))
	for i, entry := range entries {
		answers[i] = p.apply(entry)
	}
	txn.Commit()
	s.notify(changes)
	return answers
}

// processor applies commands within one write transaction.
type processor struct {
	Reader
	memory *memory
	// nil: nobody is told.
	changes *touched
}

func (p processor) apply(entry Entry) *raftlogv1.Answer {
	cmd := entry.Command
	if cmd.GetId() == "" {
		return refuse(problem.InvalidArgument, "id", "command has no id")
	}
	if answer := p.memory.answer(cmd.GetId()); answer != nil {
		return answer
	}
	answer := p.dispatch(cmd)
	p.memory.remember(entry, answer)
	return answer
}

func (p processor) dispatch(cmd *raftlogv1.Command) *raftlogv1.Answer {
	switch op := cmd.GetOp().(type) {
	case *raftlogv1.Command_InitCluster:
		return p.initCluster(op.InitCluster)
	case *raftlogv1.Command_RegisterRunner:
		return p.registerRunner(cmd, op.RegisterRunner)
	case *raftlogv1.Command_SetRunnerState:
		return p.setRunnerState(cmd, op.SetRunnerState)
	case *raftlogv1.Command_CreateToken:
		return p.createToken(cmd, op.CreateToken.GetToken())
	case *raftlogv1.Command_RevokeToken:
		return p.revokeToken(cmd, op.RevokeToken)
	case *raftlogv1.Command_AssignWorkspace:
		return p.assignWorkspace(cmd, op.AssignWorkspace)
	case *raftlogv1.Command_UpdateHeads:
		return p.updateHeads(op.UpdateHeads)
	case *raftlogv1.Command_PutMember:
		return p.putMember(cmd, op.PutMember.GetMember())
	case *raftlogv1.Command_RemoveMember:
		return p.removeMember(cmd, op.RemoveMember)
	case *raftlogv1.Command_RaiseVersion:
		return p.raiseVersion(op.RaiseVersion)
	case *raftlogv1.Command_InitAuthority:
		return p.initAuthority(cmd, op.InitAuthority)
	case *raftlogv1.Command_AdvanceAuthority:
		return p.advanceAuthority(cmd, op.AdvanceAuthority)
	case *raftlogv1.Command_CreateJoinToken:
		return p.createJoinToken(cmd, op.CreateJoinToken.GetToken())
	case *raftlogv1.Command_RevokeJoinToken:
		return p.revokeJoinToken(cmd, op.RevokeJoinToken)
	case *raftlogv1.Command_IssueCertificate:
		return p.issueCertificate(cmd, op.IssueCertificate)
	case *raftlogv1.Command_DenyMember:
		return p.denyMember(cmd, op.DenyMember)
	case *raftlogv1.Command_MintToken:
		return p.mintToken(cmd, op.MintToken)
	case *raftlogv1.Command_PruneTokens:
		return p.pruneTokens(op.PruneTokens)
	case *raftlogv1.Command_ArchiveAgent:
		return p.archiveAgent(cmd, op.ArchiveAgent)
	case *raftlogv1.Command_ScheduleRunner:
		return p.scheduleRunner(op.ScheduleRunner)
	case *raftlogv1.Command_RemoveRunner:
		return p.removeRunner(cmd, op.RemoveRunner)
	case *raftlogv1.Command_CreateTimer:
		return p.createTimer(cmd, op.CreateTimer.GetTimer())
	case *raftlogv1.Command_CancelTimer:
		return p.cancelTimer(op.CancelTimer)
	case *raftlogv1.Command_FireTimers:
		return p.fireTimers(cmd, op.FireTimers)
	case *raftlogv1.Command_RecordEnds:
		return p.recordEnds(cmd, op.RecordEnds)
	case *raftlogv1.Command_AckInbox:
		return p.ackInbox(op.AckInbox)
	default:
		return p.dispatchTransfer(cmd)
	}
}

// dispatchTransfer carries out what has to do with transfers and workspaces that move.
func (p processor) dispatchTransfer(cmd *raftlogv1.Command) *raftlogv1.Answer {
	switch op := cmd.GetOp().(type) {
	case *raftlogv1.Command_CreateTransfer:
		return p.createTransfer(cmd, op.CreateTransfer.GetTransfer())
	case *raftlogv1.Command_UpdateTransfer:
		return p.updateTransfer(cmd, op.UpdateTransfer)
	case *raftlogv1.Command_CancelTransfer:
		return p.cancelTransfer(cmd, op.CancelTransfer)
	case *raftlogv1.Command_AddGrantKey:
		return p.addGrantKey(cmd, op.AddGrantKey)
	case *raftlogv1.Command_SetReplication:
		return p.setReplication(op.SetReplication)
	case *raftlogv1.Command_SetReplica:
		return p.setReplica(cmd, op.SetReplica)
	case *raftlogv1.Command_ReassignWorkspace:
		return p.reassignWorkspace(cmd, op.ReassignWorkspace)
	case *raftlogv1.Command_EndRestore:
		return p.endRestore(op.EndRestore)
	case *raftlogv1.Command_UpdateBranches:
		return p.updateBranches(op.UpdateBranches)
	default:
		panic(fmt.Sprintf("state: command %s has an operation that this version does not know; install a newer one", cmd.GetId()))
	}
}

func (p processor) put(table string, record any) {
	p.changes.mark(table)
	if err := p.txn.Insert(table, record); err != nil {
		panic(fmt.Sprintf("state: insert into %s: %v", table, err))
	}
}

func (p processor) remove(table string, record any) {
	p.changes.mark(table)
	if err := p.txn.Delete(table, record); err != nil {
		panic(fmt.Sprintf("state: delete from %s: %v", table, err))
	}
}

func counted(n int) *raftlogv1.Answer {
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Counted{Counted: &raftlogv1.Counted{Changed: uint32(n)}}}
}

// cluster is a private copy of the header; it is never nil.
func (p processor) cluster() *raftlogv1.SnapshotHeader {
	if h := p.Cluster(); h != nil {
		return proto.CloneOf(h)
	}
	return &raftlogv1.SnapshotHeader{Version: Version, NextRunnerNumber: 1}
}

func (p processor) putCluster(h *raftlogv1.SnapshotHeader) {
	p.put(tableMeta, &metaRow{Key: metaKey, Header: h})
}

func refuse(reason, field, format string, args ...any) *raftlogv1.Answer {
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Failure{Failure: &raftlogv1.Failure{
		Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)}}}
}
