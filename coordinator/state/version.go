package state

import (
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
)

// HighestCommand is the highest command version that this program can apply.
const HighestCommand = 2

// CommandVersion is the version of the cluster from which on a command may be
// put into the log. Operations of the cluster itself are of version 1, since
// whoever is a member of one knows them: they are needed to raise the version.
func CommandVersion(cmd *raftlogv1.Command) uint32 {
	switch cmd.GetOp().(type) {
	case *raftlogv1.Command_InitCluster, *raftlogv1.Command_RegisterRunner, *raftlogv1.Command_SetRunnerState,
		*raftlogv1.Command_CreateToken, *raftlogv1.Command_RevokeToken, *raftlogv1.Command_AssignWorkspace,
		*raftlogv1.Command_UpdateHeads,
		*raftlogv1.Command_PutMember, *raftlogv1.Command_RemoveMember, *raftlogv1.Command_RaiseVersion:
		return 1
	default:
		return HighestCommand
	}
}

// ActiveVersion is the highest version of commands that all voters can apply.
func (r Reader) ActiveVersion() uint32 { return max(1, r.Cluster().GetCommandVersion()) }

func (p processor) raiseVersion(op *raftlogv1.RaiseVersion) *raftlogv1.Answer {
	header := p.cluster()
	if op.GetVersion() == 0 {
		return refuse(problem.InvalidArgument, "version", "version is 0")
	}
	if op.GetVersion() > max(1, header.GetCommandVersion()) {
		header.CommandVersion = op.GetVersion()
		p.putCluster(header)
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Cluster{Cluster: header}}
}
