package coordinator

import (
	"slices"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// may reports whether the caller's token has a permission. Admins have all, and
// so have tokens that name none.
func (id identity) may(permission string) bool {
	return id.role != skerryv1.RoleAgent || permission == "" || permission == skerryv1.PermissionFiles ||
		len(id.permissions) == 0 || slices.Contains(id.permissions, permission)
}

// allows reports whether the caller's token may use a runner.
func (id identity) allows(runner string) bool { return state.AllowsRunner(id.runners, runner) }

// mayUse reports whether a workspace is the caller's, or one of its agent's
// descendants', on a runner that the token is for.
func (c *Coordinator) mayUse(id identity, ws *raftlogv1.Workspace) bool {
	return ws != nil && id.allows(ws.GetRunner()) &&
		(ws.GetAgent() == id.subject || c.state.Read().Descends(ws.GetAgent(), id.subject))
}

// usableWorkspaces lists those that the caller may use.
func (c *Coordinator) usableWorkspaces(id identity) (out []*raftlogv1.Workspace) {
	view := c.state.Read()
	all := view.WorkspacesOfAgent(id.subject)
	for _, child := range view.Descendants(id.subject) {
		all = append(all, view.WorkspacesOfAgent(child.GetName())...)
	}
	for _, ws := range all {
		if id.allows(ws.GetRunner()) {
			out = append(out, ws)
		}
	}
	return out
}

// seesToken reports whether the caller may list and revoke a token: its own,
// what that made and, unless it was made by another token, all of its agent and
// the agent's descendants.
func (id identity) seesToken(view state.Reader, token *raftlogv1.Token) bool {
	switch {
	case token == nil:
		return false
	case id.role == skerryv1.RoleAdmin, token.GetId() == id.tokenID, view.TokenDescends(token.GetId(), id.tokenID):
		return true
	case view.Token(id.tokenID).GetParent() != "" || token.GetRole() != skerryv1.RoleAgent:
		return false
	}
	return token.GetSubject() == id.subject || view.Descends(token.GetSubject(), id.subject)
}

// noPermission refuses a call that the token has no permission for.
func noPermission(permission string) *problem.Error {
	return problem.New(connect.CodePermissionDenied, problem.PermissionDenied,
		"use a token with it (skerry token create --permission "+permission+")", "the token has no permission %q", permission)
}

// outOfScope refuses a runner by name. It says the same of one that does not
// exist, so that a token learns nothing of runners that it is not for.
func (id identity) outOfScope(runner, field string) *problem.Error {
	e := problem.New(connect.CodePermissionDenied, problem.PermissionDenied,
		"use a runner that it is for: "+strings.Join(id.runners, ", "), "the token is not for runner %.64q", runner)
	e.Field = field
	return e
}

func lostWorkspace(ws *raftlogv1.Workspace) *problem.Error {
	return problem.New(connect.CodeFailedPrecondition, problem.WorkspaceLost,
		"assign it to another runner from its replica, or name another runner for a new workspace",
		"runner %q of workspace %s was removed", ws.GetRunner(), ws.GetId())
}
