package coordinator

import raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"

// mayUse reports whether the caller may name a workspace; nil is nobody's.
func (c *Coordinator) mayUse(id identity, ws *raftlogv1.Workspace) bool {
	return ws != nil && ws.GetAgent() == id.subject
}

// usableWorkspaces lists those.
func (c *Coordinator) usableWorkspaces(id identity) []*raftlogv1.Workspace {
	return c.state.Read().WorkspacesOfAgent(id.subject)
}
