package coordinator

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/placement"
	"skerry.internal/coordinator/state"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// target is where one call goes: a workspace and the live link of its runner.
type target struct {
	link      *runnerLink
	workspace *raftlogv1.Workspace
	// onlyKnown, when set, is the schedule that lets the runner start nothing new.
	onlyKnown string
}

// address sets the headers that the runner trusts. The request is the
// coordinator's own, so nothing that the caller sent under these names is in it.
func (t target) address(ctx context.Context, h http.Header) {
	h.Set(skerryv1.HeaderNetworks, caller(ctx).networks())
	if t.onlyKnown != "" {
		h.Set(skerryv1.HeaderOnlyKnown, t.onlyKnown)
	}
	h.Set(skerryv1.HeaderAgent, t.workspace.GetAgent())
	h.Set(skerryv1.HeaderWorkspace, t.workspace.GetId())
	h.Set(skerryv1.HeaderEpoch, strconv.FormatUint(t.workspace.GetEpoch(), 10))
}

// routeOwnExecution finds the runner whose number the id carries. Ids that are
// malformed, of unknown runners, of runners that the token is not for or where
// the agent has no workspace are all answered alike, so that nobody learns what
// exists. Whether the execution is the agent's own is for the runner to check.
func (c *Coordinator) routeOwnExecution(ctx context.Context, text string) (target, error) {
	runner, err := c.executionRunner(ctx, text)
	if err != nil {
		return target{}, err
	}
	ws := workspaceAt(c.state.Read(), caller(ctx).subject, runner)
	if ws == nil {
		return target{}, noExecution()
	}
	return c.reach(ws)
}

// routeExecution is routeOwnExecution, for executions of descendants too: the
// runner is asked whose it is when a descendant has a workspace there.
func (c *Coordinator) routeExecution(ctx context.Context, text string) (target, error) {
	runner, err := c.executionRunner(ctx, text)
	if err != nil {
		return target{}, err
	}
	view, agent := c.state.Read(), caller(ctx).subject
	for _, child := range view.Descendants(agent) {
		if ws := workspaceAt(view, child.GetName(), runner); ws != nil {
			return c.routeFamily(ctx, view, ws, text)
		}
	}
	return c.routeOwnExecution(ctx, text)
}

// routeFamily asks the runner of ws whose an execution is. An older runner does
// not tell: there only the caller's own are found.
func (c *Coordinator) routeFamily(ctx context.Context, view state.Reader, ws *raftlogv1.Workspace, text string) (target, error) {
	to, err := c.reach(ws)
	if err != nil {
		return target{}, err
	}
	res, err := to.link.control.FindExecution(ctx, connect.NewRequest(&skerryv1.FindExecutionRequest{ExecutionId: text}))
	switch connect.CodeOf(err) {
	case connect.CodeNotFound:
		return target{}, noExecution()
	case connect.CodeUnimplemented:
		return c.routeOwnExecution(ctx, text)
	}
	if err != nil {
		return target{}, to.failure(ctx, err, reads)
	}
	owner := res.Msg.GetAgent()
	if owner != caller(ctx).subject && !view.Descends(owner, caller(ctx).subject) {
		return target{}, noExecution()
	}
	if to.workspace = workspaceAt(view, owner, ws.GetRunner()); to.workspace == nil {
		return target{}, noExecution()
	}
	return to, nil
}

// executionRunner is the name of the runner that an id carries.
func (c *Coordinator) executionRunner(ctx context.Context, text string) (string, error) {
	id, err := ids.Parse(ids.Execution, text)
	if err != nil {
		return "", noExecution()
	}
	runner := c.state.Read().RunnerByNumber(id.Runner())
	if runner == nil || !caller(ctx).allows(runner.GetName()) {
		return "", noExecution()
	}
	return runner.GetName(), nil
}

func noExecution() *problem.Error { return problem.Missing("executionId", "no such execution") }

// routeSelector finds, or makes, the workspace that a selector means.
func (c *Coordinator) routeSelector(ctx context.Context, sel *skerryv1.WorkspaceSelector) (target, error) {
	if sel.GetBranch() != "" {
		return c.routeBranch(ctx, sel)
	}
	if sel.GetId() == "" {
		return c.routeRunner(ctx, wish{runner: sel.GetRunner(), field: "workspace.runner"})
	}
	ws := c.state.Read().Workspace(sel.GetId())
	if !c.mayUse(caller(ctx), ws) {
		return target{}, problem.Missing("workspace.id", "no such workspace")
	}
	if sel.GetRunner() != "" && sel.GetRunner() != ws.GetRunner() {
		return target{}, problem.Invalid("workspace.runner", "name only one of id and runner", "the workspace is on another runner")
	}
	return c.reach(ws)
}

// wish is which runner a call asks for.
type wish struct {
	runner string
	// field names the request's field that holds the runner.
	field string
	// selector bounds the choice where the agent has no runner yet.
	selector []placement.Condition
}

// routeRunner finds, or makes, the caller's workspace on the named runner;
// unnamed: on the runner that it uses, else on one that placement chooses.
func (c *Coordinator) routeRunner(ctx context.Context, w wish) (target, error) {
	id, view := caller(ctx), c.state.Read()
	if w.runner != "" && !id.allows(w.runner) {
		return target{}, id.outOfScope(w.runner, w.field)
	}
	name := w.runner
	if name == "" {
		name = usualRunner(view, id)
	}
	if name != "" {
		if ws := view.WorkspaceOf(id.subject, name); ws != nil {
			return c.reach(ws)
		}
		if view.Runner(name) == nil {
			return target{}, unknownRunner(view, id, name, w.field)
		}
	}
	return c.assign(ctx, id, w)
}

// usualRunner is the one that the agent uses: its first. A token that is not for
// that one goes to another where the agent has a workspace.
func usualRunner(view state.Reader, id identity) string {
	if name := view.Agent(id.subject).GetDefaultRunner(); name == "" || id.allows(name) {
		return name
	}
	for _, ws := range view.WorkspacesOfAgent(id.subject) {
		if id.allows(ws.GetRunner()) {
			return ws.GetRunner()
		}
	}
	return ""
}

// assign commits a new workspace. Two first calls of one agent at once must not
// be placed on two runners, so they come one after the other.
func (c *Coordinator) assign(ctx context.Context, id identity, w wish) (target, error) {
	unlock, err := c.assigns.lock(ctx, id.subject)
	if err != nil {
		return target{}, err
	}
	defer unlock()
	view, runner := c.state.Read(), w.runner
	if runner == "" {
		runner = usualRunner(view, id)
	}
	if runner == "" {
		if runner, err = c.placeAgent(view, id, w.selector); err != nil {
			return target{}, err
		}
	}
	if ws := view.WorkspaceOf(id.subject, runner); ws != nil {
		return c.reach(ws)
	}
	// A runner that is down gets no workspaces: the call would fail anyway.
	live := c.links.get(runner)
	if live == nil {
		return target{}, unreachable(runner)
	}
	ws, err := c.commitWorkspace(ctx, id.subject, runner, live.number)
	if err != nil {
		return target{}, cordonRemedy(err)
	}
	return c.reach(ws)
}

func cordonRemedy(err error) error {
	if e := asProblem(err); e.Reason == problem.RunnerCordoned {
		e.Remedy = "name another runner (skerry runner explain), or none to have one chosen"
		return e
	}
	return err
}

func (c *Coordinator) commitWorkspace(ctx context.Context, agent, runner string, number uint32) (*raftlogv1.Workspace, error) {
	id := ids.New(ids.Workspace, number, time.Now()).String()
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_AssignWorkspace{
		AssignWorkspace: &raftlogv1.AssignWorkspace{Id: id, Agent: agent, Runner: runner}}})
	if err != nil {
		return nil, err
	}
	return answer.GetWorkspace(), nil
}

// reach gives the live link of a workspace's runner.
func (c *Coordinator) reach(ws *raftlogv1.Workspace) (target, error) {
	if ws.GetLost() {
		return target{}, lostWorkspace(ws)
	}
	if ws.GetRestore() != nil {
		return target{}, moving(ws)
	}
	live := c.links.get(ws.GetRunner())
	if live == nil || live.ended() {
		return target{}, unreachable(ws.GetRunner())
	}
	return target{link: live, workspace: ws}, nil
}

func unreachable(runner string) *problem.Error {
	return problem.New(connect.CodeUnavailable, problem.RunnerUnreachable,
		"repeat the call when the runner is up again (skerry runner list)", "runner %q is not connected", runner).Retry()
}

func unknownRunner(view state.Reader, id identity, name, field string) *problem.Error {
	const most = 20
	var known []string
	for _, r := range view.Runners() {
		if id.allows(r.GetName()) {
			known = append(known, r.GetName())
		}
	}
	list := strings.Join(known[:min(len(known), most)], ", ")
	if len(known) > most {
		list += ", ... (" + strconv.Itoa(len(known)) + " in all)"
	}
	e := problem.New(connect.CodeNotFound, problem.NoRunner, "use one of: "+list, "no runner %.64q", name)
	e.Field = field
	if len(known) == 0 {
		e.Remedy = "start a runnerd first"
	}
	return e
}

// asProblem gives the typed form of any error.
func asProblem(err error) *problem.Error {
	var e *problem.Error
	if errors.As(err, &e) {
		return e
	}
	return problem.New(connect.CodeInternal, problem.Internal, "the daemon's log has the cause", "internal error").Because(err)
}
