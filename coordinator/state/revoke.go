package state

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// revokeToken revokes a token and all that it minted.
func (p processor) revokeToken(cmd *raftlogv1.Command, op *raftlogv1.RevokeToken) *raftlogv1.Answer {
	if p.Token(op.GetId()) == nil {
		return refuse(problem.NotFound, "tokenId", "no token %q", op.GetId())
	}
	p.revokeTree(op.GetId(), cmd.GetTime())
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Token{Token: p.Token(op.GetId())}}
}

// revokeTree goes as deep as MaxTokenDepth.
func (p processor) revokeTree(id string, now *timestamppb.Timestamp) {
	if token := p.Token(id); token.GetRevoked() == nil {
		token = proto.CloneOf(token)
		token.Revoked = now
		p.put(tableTokens, token)
	}
	for _, minted := range p.Minted(id) {
		p.revokeTree(minted.GetId(), now)
	}
}

// pruneTokens forgets tokens that were useless before a time.
func (p processor) pruneTokens(op *raftlogv1.PruneTokens) *raftlogv1.Answer {
	old := p.UselessTokens(op.GetBefore(), int(op.GetLimit()))
	for _, token := range old {
		p.remove(tableTokens, token)
	}
	return counted(len(old))
}

// UselessTokens lists tokens that were revoked or had expired before a time, at
// most limit. One that minted others goes after those.
func (r Reader) UselessTokens(before *timestamppb.Timestamp, limit int) []*raftlogv1.Token {
	var out []*raftlogv1.Token
	for _, token := range r.Tokens() {
		if len(out) == limit {
			break
		}
		if useless(token.GetRevoked(), before) || useless(token.GetExpires(), before) {
			if len(r.Minted(token.GetId())) == 0 {
				out = append(out, token)
			}
		}
	}
	return out
}

func useless(since, before *timestamppb.Timestamp) bool {
	return since != nil && since.AsTime().Before(before.AsTime())
}

// archiveAgent ends what an agent may do and what wakes it; its work stays.
func (p processor) archiveAgent(cmd *raftlogv1.Command, op *raftlogv1.ArchiveAgent) *raftlogv1.Answer {
	agent := p.Agent(op.GetName())
	if agent == nil {
		return refuse(problem.NotFound, "agent", "no agent %q", op.GetName())
	}
	if agent.GetArchived() == nil {
		agent = proto.CloneOf(agent)
		agent.Archived = cmd.GetTime()
		p.put(tableAgents, agent)
	}
	for _, token := range p.TokensOf(agent.GetName()) {
		if token.GetRole() != skerryv1.RoleRunner {
			p.revokeTree(token.GetId(), cmd.GetTime())
		}
	}
	for _, timer := range p.TimersOf(agent.GetName()) {
		p.remove(tableTimers, timer)
	}
	p.emptyInbox(agent.GetName())
	return &raftlogv1.Answer{Result: &raftlogv1.Answer_Agent{Agent: agent}}
}
