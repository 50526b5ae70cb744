package coordinator

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// agentService is AgentService.
type agentService struct{ c *Coordinator }

// ListAgents implements AgentServiceHandler.
func (s agentService) ListAgents(ctx context.Context, _ *connect.Request[skerryv1.ListAgentsRequest]) (*connect.Response[skerryv1.ListAgentsResponse], error) {
	view, id := s.c.state.Read(), caller(ctx)
	all := view.Agents()
	if id.role != skerryv1.RoleAdmin {
		all = append([]*raftlogv1.Agent{view.Agent(id.subject)}, view.Descendants(id.subject)...)
	}
	out := &skerryv1.ListAgentsResponse{}
	for _, a := range all {
		out.Agents = append(out.Agents, apiAgent(a))
	}
	return connect.NewResponse(out), nil
}

// ArchiveAgent implements AgentServiceHandler.
func (s agentService) ArchiveAgent(ctx context.Context, req *connect.Request[skerryv1.ArchiveAgentRequest]) (*connect.Response[skerryv1.ArchiveAgentResponse], error) {
	name := req.Msg.GetAgent()
	if !namePattern.MatchString(name) {
		return nil, problem.Missing("agent", "no agent %.64q", name)
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_ArchiveAgent{ArchiveAgent: &raftlogv1.ArchiveAgent{Name: name}}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.ArchiveAgentResponse{Agent: apiAgent(answer.GetAgent())}), nil
}

func apiAgent(a *raftlogv1.Agent) *skerryv1.Agent {
	return &skerryv1.Agent{Name: a.GetName(), Project: a.GetProject(), Parent: a.GetParent(), Runner: a.GetDefaultRunner(),
		Created: a.GetCreated(), Archived: a.GetArchived()}
}
