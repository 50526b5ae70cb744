package state

import (
	"maps"

	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// DefaultProject is the project of an agent whose first token names none.
const DefaultProject = "default"

// initCluster names the cluster once; later attempts get the first name.
func (p processor) initCluster(op *raftlogv1.InitCluster) *raftlogv1.Answer {
	header := p.cluster()
	if header.GetClusterId() == "" {
		if op.GetClusterId() == "" {
			return refuse(problem.InvalidArgument, "clusterId", "cluster id is empty")
		}
		header.ClusterId = op.GetClusterId()
		p.putCluster(header)
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Cluster{Cluster: header}}
}

// registerRunner gives a new name its number, and stores what is told of a
// known one. A command that tells nothing but the name leaves a known one alone.
func (p processor) registerRunner(cmd *raftlogv1.Command, op *raftlogv1.RegisterRunner) *raftlogv1.Answer {
	if op.GetName() == "" {
		return refuse(problem.InvalidArgument, "name", "runner name is empty")
	}
	runner := p.Runner(op.GetName())
	told := op.GetVersion() != "" || op.GetTier() != "" || len(op.GetLabels()) > 0 || op.GetSlots() != 0
	switch {
	case runner == nil:
		header := p.cluster()
		if header.GetNextRunnerNumber() > ids.MaxRunner {
			return refuse(problem.LimitExceeded, "name", "all %d runner numbers are used", ids.MaxRunner)
		}
		runner = &raftlogv1.Runner{Name: op.GetName(), Number: header.GetNextRunnerNumber(),
			State: skerryv1.RunnerDown, Changed: cmd.GetTime()}
		header.NextRunnerNumber++
		p.putCluster(header)
	case !told:
		return &raftlogv1.Answer{Result: &raftlogv1.Answer_Runner{Runner: runner}}
	default:
		runner = proto.CloneOf(runner)
	}
	runner.Version, runner.Tier, runner.Slots = op.GetVersion(), op.GetTier(), op.GetSlots()
	runner.Labels = maps.Clone(op.GetLabels())
	p.put(tableRunners, runner)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Runner{Runner: runner}}
}

func (p processor) setRunnerState(cmd *raftlogv1.Command, op *raftlogv1.SetRunnerState) *raftlogv1.Answer {
	if op.GetState() != skerryv1.RunnerUp && op.GetState() != skerryv1.RunnerDown {
		return refuse(problem.InvalidArgument, "state", "unknown runner state %q", op.GetState())
	}
	runner := p.Runner(op.GetName())
	if runner == nil {
		return refuse(problem.NotFound, "name", "no runner %q", op.GetName())
	}
	if runner.GetState() != op.GetState() {
		runner = proto.CloneOf(runner)
		runner.State, runner.Changed = op.GetState(), cmd.GetTime()
		p.put(tableRunners, runner)
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Runner{Runner: runner}}
}

// createToken stores a token, and the agent that it is for when new.
func (p processor) createToken(cmd *raftlogv1.Command, token *raftlogv1.Token) *raftlogv1.Answer {
	return p.storeToken(cmd, token, "")
}

// storeToken makes a new agent the child of agentParent, when that is set.
func (p processor) storeToken(cmd *raftlogv1.Command, token *raftlogv1.Token, agentParent string) *raftlogv1.Answer {
	if token.GetId() == "" || len(token.GetHash()) == 0 || token.GetSubject() == "" {
		return refuse(problem.InvalidArgument, "token", "id, hash or subject is empty")
	}
	if p.Token(token.GetId()) != nil {
		return refuse(problem.AlreadyExists, "id", "token %q exists", token.GetId())
	}
	token = proto.CloneOf(token)
	token.Created, token.Revoked = cmd.GetTime(), nil
	if token.GetRole() == skerryv1.RoleAgent || token.GetRole() == skerryv1.RoleAdmin {
		if refusal := p.joinAgent(cmd, token, agentParent); refusal != nil {
			return refusal
		}
	}
	p.put(tableTokens, token)
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Token{Token: token}}
}

// joinAgent makes the agent of a token, or checks that it is in the token's project.
func (p processor) joinAgent(cmd *raftlogv1.Command, token *raftlogv1.Token, parent string) *raftlogv1.Answer {
	agent := p.Agent(token.GetSubject())
	if agent.GetArchived() != nil {
		return refuse(problem.AgentArchived, "subject", "agent %q was archived", agent.GetName())
	}
	if agent == nil {
		if token.GetProject() == "" {
			token.Project = DefaultProject
		}
		p.put(tableAgents, &raftlogv1.Agent{Name: token.GetSubject(), Project: token.GetProject(), Created: cmd.GetTime(), Parent: parent})
		return nil
	}
	if token.GetProject() == "" {
		token.Project = agent.GetProject()
	}
	if token.GetProject() != agent.GetProject() {
		return refuse(problem.AlreadyExists, "project", "agent %q is in project %q", agent.GetName(), agent.GetProject())
	}
	return nil
}

// assignWorkspace gives an agent its workspace on a runner: the one it has, or
// a new one at epoch 1. The first runner of an agent becomes its default.
func (p processor) assignWorkspace(cmd *raftlogv1.Command, op *raftlogv1.AssignWorkspace) *raftlogv1.Answer {
	agent := p.Agent(op.GetAgent())
	if agent == nil {
		return refuse(problem.NotFound, "agent", "no agent %q", op.GetAgent())
	}
	runner := p.Runner(op.GetRunner())
	if runner == nil {
		return refuse(problem.NoRunner, "runner", "no runner %q", op.GetRunner())
	}
	ws := p.WorkspaceOf(op.GetAgent(), op.GetRunner())
	if ws == nil {
		if runner.GetSchedule() != "" {
			return refuse(problem.RunnerCordoned, "runner", "runner %q is %s and takes no new workspaces", op.GetRunner(), runner.GetSchedule())
		}
		if op.GetId() == "" {
			return refuse(problem.InvalidArgument, "id", "workspace id is empty")
		}
		if p.Workspace(op.GetId()) != nil {
			return refuse(problem.AlreadyExists, "id", "workspace %q exists", op.GetId())
		}
		ws = &raftlogv1.Workspace{Id: op.GetId(), Agent: op.GetAgent(), Runner: op.GetRunner(), Epoch: 1, Created: cmd.GetTime()}
		p.put(tableWorkspaces, ws)
	}
	if agent.GetDefaultRunner() == "" {
		agent = proto.CloneOf(agent)
		agent.DefaultRunner = op.GetRunner()
		p.put(tableAgents, agent)
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Workspace{Workspace: ws}}
}

// updateHeads takes over what a runner reports and ignores what is stale (I6).
func (p processor) updateHeads(op *raftlogv1.UpdateHeads) *raftlogv1.Answer {
	var done raftlogv1.HeadsUpdated
	for _, head := range op.GetHeads() {
		ws := p.Workspace(head.GetWorkspaceId())
		if ws != nil && ws.GetRunner() != op.GetRunner() && p.updateBranch(op.GetRunner(), head) {
			done.Changed++
			continue
		}
		if ws == nil || ws.GetRunner() != op.GetRunner() || !Advances(ws, head) {
			done.Ignored++
			continue
		}
		ws = proto.CloneOf(ws)
		ws.Head = proto.CloneOf(head)
		p.put(tableWorkspaces, ws)
		done.Changed++
	}
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Heads{Heads: &done}}
}

// Advances reports whether head is news of ws: of its epoch and a later commit,
// or the same commit in another state. Everything else is stale or forged.
func Advances(ws *raftlogv1.Workspace, head *raftlogv1.Head) bool {
	if head.GetEpoch() != ws.GetEpoch() {
		return false
	}
	old := ws.GetHead()
	switch {
	case old == nil || old.GetEpoch() < head.GetEpoch():
		return true
	case head.GetSeq() != old.GetSeq():
		return head.GetSeq() > old.GetSeq()
	}
	sameCommit := head.GetDigest() == old.GetDigest() && head.GetCommit() == old.GetCommit()
	return sameCommit && (head.GetState() != old.GetState() || head.GetDetail() != old.GetDetail())
}
