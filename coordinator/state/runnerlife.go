package state

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// scheduleRunner sets what a runner may get. A report about a drain that is no
// longer under way changes nothing, nor does cordoning what is being drained.
func (p processor) scheduleRunner(op *raftlogv1.ScheduleRunner) *raftlogv1.Answer {
	runner := p.Runner(op.GetName())
	if runner == nil {
		return refuse(problem.NoRunner, "runner", "no runner %q", op.GetName())
	}
	now := runner.GetSchedule()
	draining := now == skerryv1.RunnerDraining || now == skerryv1.RunnerDrained
	switch op.GetSchedule() {
	case "", skerryv1.RunnerCordoned, skerryv1.RunnerDraining, skerryv1.RunnerDrained:
	default:
		return refuse(problem.InvalidArgument, "schedule", "unknown schedule %q", op.GetSchedule())
	}
	stale := op.GetDrainId() != "" && (now != skerryv1.RunnerDraining || runner.GetDrain().GetId() != op.GetDrainId())
	if stale || (op.GetSchedule() == skerryv1.RunnerCordoned && draining) {
		return &raftlogv1.Answer{Result: &raftlogv1.Answer_Runner{Runner: runner}}
	}
	runner = proto.CloneOf(runner)
	runner.Schedule, runner.ScheduleReason = op.GetSchedule(), op.GetReason()
	runner.Drain = proto.CloneOf(op.GetDrain())
	p.put(tableRunners, runner)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Runner{Runner: runner}}
}

// removeRunner forgets a runner and its tokens. Its workspaces stay as lost, so
// that nobody takes what a later runner of that name has for them.
func (p processor) removeRunner(cmd *raftlogv1.Command, op *raftlogv1.RemoveRunner) *raftlogv1.Answer {
	runner := p.Runner(op.GetName())
	if runner == nil {
		return refuse(problem.NoRunner, "runner", "no runner %q", op.GetName())
	}
	if refusal := p.checkRemoval(runner); refusal != nil && !op.GetForce() {
		return refusal
	}
	for _, ws := range p.WorkspacesOfRunner(runner.GetName()) {
		ws = proto.CloneOf(ws)
		ws.Lost = true
		p.put(tableWorkspaces, ws)
	}
	for _, token := range p.TokensOf(runner.GetName()) {
		if token.GetRole() == skerryv1.RoleRunner {
			p.revokeTree(token.GetId(), cmd.GetTime())
		}
	}
	p.remove(tableRunners, runner)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Runner{Runner: runner}}
}

func (p processor) checkRemoval(runner *raftlogv1.Runner) *raftlogv1.Answer {
	if runner.GetState() == skerryv1.RunnerUp && runner.GetSchedule() != skerryv1.RunnerDrained {
		return refuse(problem.RunnerInUse, "runner", "runner %q is up and not drained", runner.GetName())
	}
	const most = 10
	var only []string
	for _, ws := range p.WorkspacesOfRunner(runner.GetName()) {
		if !ws.GetLost() && ws.GetHead().GetSeq() > 0 && !p.replicated(ws) {
			only = append(only, ws.GetId()+" of "+ws.GetAgent())
		}
	}
	if len(only) == 0 {
		return nil
	}
	more := ""
	if len(only) > most {
		more = ", ..."
	}
	return refuse(problem.RunnerInUse, "runner", "the latest state of %d workspaces is on runner %q alone: %s%s", len(only), runner.GetName(),
		strings.Join(only[:min(len(only), most)], ", "), more)
}

// replicated reports whether a workspace's head is on another runner too.
func (p processor) replicated(ws *raftlogv1.Workspace) bool {
	return !Behind(ws) && ws.GetRestore() == nil
}
