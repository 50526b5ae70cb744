package state

import (
	"fmt"
	"slices"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Bounds of what an agent can mint.
const (
	// MaxTokenDepth is how many tokens may stand above one, and how many agents
	// above an agent.
	MaxTokenDepth = 4
	// MaxMinted is how many usable tokens one token may have minted.
	MaxMinted = 100
	// MaxChildren is how many children one agent may have.
	MaxChildren = 100
)

const (
	// Of tokens and agents.
	indexParent  = "parent"
	indexSubject = "subject"
)

func tokensTable() *memdb.TableSchema {
	return table(tableTokens, byID((*raftlogv1.Token).GetId),
		optional(byText(indexParent, false, 1, func(t *raftlogv1.Token) []string { return []string{t.GetParent()} })),
		byText(indexSubject, false, 1, func(t *raftlogv1.Token) []string { return []string{t.GetSubject()} }))
}

func agentsTable() *memdb.TableSchema {
	return table(tableAgents, byID((*raftlogv1.Agent).GetName),
		optional(byText(indexParent, false, 1, func(a *raftlogv1.Agent) []string { return []string{a.GetParent()} })))
}

// optional lets records without the text stay out of the index.
func optional(index *memdb.IndexSchema) *memdb.IndexSchema {
	index.AllowMissing = true
	return index
}

// Minted lists the tokens that a token minted, oldest first.
func (r Reader) Minted(token string) []*raftlogv1.Token {
	return all[raftlogv1.Token](r.txn, tableTokens, indexParent, token)
}

// TokensOf lists the tokens for an agent or a runner, oldest first.
func (r Reader) TokensOf(subject string) []*raftlogv1.Token {
	return all[raftlogv1.Token](r.txn, tableTokens, indexSubject, subject)
}

// Agents lists all agents by name.
func (r Reader) Agents() []*raftlogv1.Agent { return all[raftlogv1.Agent](r.txn, tableAgents, indexID) }

// Children lists the agents whose parent this one is, by name.
func (r Reader) Children(agent string) []*raftlogv1.Agent {
	return all[raftlogv1.Agent](r.txn, tableAgents, indexParent, agent)
}

// Descends reports whether an agent is a child, or a child's child, of another.
func (r Reader) Descends(agent, ancestor string) bool {
	// Parents are older than their children, so that this ends.
	for name := r.Agent(agent).GetParent(); name != ""; name = r.Agent(name).GetParent() {
		if name == ancestor {
			return true
		}
	}
	return false
}

// Descendants lists children, their children and so on.
func (r Reader) Descendants(agent string) []*raftlogv1.Agent {
	var out []*raftlogv1.Agent
	for _, child := range r.Children(agent) {
		out = append(append(out, child), r.Descendants(child.GetName())...)
	}
	return out
}

// TokenDescends reports whether one token was minted by another, directly or not.
func (r Reader) TokenDescends(token, ancestor string) bool {
	for id := r.Token(token).GetParent(); id != ""; id = r.Token(id).GetParent() {
		if id == ancestor {
			return true
		}
	}
	return false
}

// Usable reports whether a token is neither revoked nor expired at a time.
func Usable(token *raftlogv1.Token, now *timestamppb.Timestamp) bool {
	return token != nil && token.GetRevoked() == nil &&
		(token.GetExpires() == nil || now.AsTime().Before(token.GetExpires().AsTime()))
}

// mintToken stores a token with a scope: an admin's as it is, one that another
// token minted only when it is not wider than that.
func (p processor) mintToken(cmd *raftlogv1.Command, op *raftlogv1.MintToken) *raftlogv1.Answer {
	token, parent := proto.CloneOf(op.GetToken()), op.GetAgentParent()
	if token.GetParent() != "" {
		minter := p.Token(token.GetParent())
		if refusal := p.checkMinter(cmd, minter, token); refusal != nil {
			return refusal
		}
		if refusal := narrow(minter, token); refusal != nil {
			return refusal
		}
		token.Depth = minter.GetDepth() + 1
		if token.GetSubject() != minter.GetSubject() {
			parent = minter.GetSubject()
		}
	}
	if parent != "" {
		if refusal := p.checkChild(token, parent); refusal != nil {
			return refusal
		}
	}
	return p.storeToken(cmd, token, parent)
}

func (p processor) checkMinter(cmd *raftlogv1.Command, minter, token *raftlogv1.Token) *raftlogv1.Answer {
	switch {
	case !Usable(minter, cmd.GetTime()):
		return refuse(problem.Unauthenticated, "", "the token that mints was revoked or has expired")
	case token.GetRole() != skerryv1.RoleAgent || minter.GetRole() != skerryv1.RoleAgent:
		return refuse(problem.PermissionDenied, "role", "an agent's token mints tokens of agents only")
	case minter.GetDepth() >= MaxTokenDepth:
		return refuse(problem.LimitExceeded, "", "a token may have at most %d above it", MaxTokenDepth)
	}
	usable := 0
	for _, t := range p.Minted(minter.GetId()) {
		if Usable(t, cmd.GetTime()) {
			usable++
		}
	}
	if usable >= MaxMinted {
		return refuse(problem.LimitExceeded, "", "a token may have minted at most %d that are valid", MaxMinted)
	}
	return nil
}

// checkChild: the subject is a child of parent, or new and may become one.
func (p processor) checkChild(token *raftlogv1.Token, parent string) *raftlogv1.Answer {
	agent, above := p.Agent(token.GetSubject()), p.Agent(parent)
	switch {
	case above == nil || above.GetArchived() != nil:
		return refuse(problem.NotFound, "parent", "no agent %q", parent)
	case agent != nil && agent.GetParent() != parent:
		return refuse(problem.PermissionDenied, "subject", "the name is taken, and not by a child of %q", parent)
	case agent != nil:
		return nil
	case token.GetProject() != "" && token.GetProject() != above.GetProject():
		return refuse(problem.PermissionDenied, "project", "a child is in its parent's project, %q", above.GetProject())
	case len(p.Children(parent)) >= MaxChildren:
		return refuse(problem.LimitExceeded, "subject", "an agent may have at most %d children", MaxChildren)
	}
	depth := 1
	for name := above.GetParent(); name != ""; name = p.Agent(name).GetParent() {
		depth++
	}
	if depth > MaxTokenDepth {
		return refuse(problem.LimitExceeded, "subject", "at most %d agents may stand above one", MaxTokenDepth)
	}
	token.Project = above.GetProject()
	return nil
}

// narrow gives token what it does not say from the one that mints it, and
// refuses what goes beyond that.
func narrow(minter, token *raftlogv1.Token) *raftlogv1.Answer {
	if len(token.GetPermissions()) == 0 {
		token.Permissions = minter.GetPermissions()
	}
	if len(token.GetRunners()) == 0 {
		token.Runners = minter.GetRunners()
	}
	if token.GetExpires() == nil {
		token.Expires = minter.GetExpires()
	}
	for i, permission := range token.GetPermissions() {
		if len(minter.GetPermissions()) > 0 && !slices.Contains(minter.GetPermissions(), permission) {
			return wider("permissions", i, permission)
		}
	}
	for i, pattern := range token.GetRunners() {
		if !AllowsRunner(minter.GetRunners(), pattern) {
			return wider("runners", i, pattern)
		}
	}
	for i, policy := range token.GetNetworkPolicies() {
		if !slices.Contains(minter.GetNetworkPolicies(), policy) {
			return wider("networkPolicies", i, policy)
		}
	}
	if minter.GetExpires() != nil && token.GetExpires().AsTime().After(minter.GetExpires().AsTime()) {
		return refuse(problem.PermissionDenied, "expiresS", "the token that mints expires before")
	}
	return nil
}

func wider(field string, i int, value string) *raftlogv1.Answer {
	return refuse(problem.PermissionDenied, fmt.Sprintf("%s[%d]", field, i), "the token that mints has no %.64q", value)
}

// AllowsRunner reports whether one of the patterns, in which * stands for any
// text, covers a name. Empty patterns cover every one. A name that is a pattern
// itself is covered when all that it stands for is.
func AllowsRunner(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool { return covers(pattern, name) })
}

// covers goes back to the last star on a mismatch, which is enough, since a
// star may take anything.
func covers(pattern, name string) bool {
	star, mark := -1, 0
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n] && name[n] != '*':
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
