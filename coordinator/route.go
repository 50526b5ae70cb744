package coordinator

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

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
}

// address sets the headers that the runner trusts. The request is the
// coordinator's own, so nothing that the caller sent under these names is in it.
func (t target) address(ctx context.Context, h http.Header) {
	h.Set(skerryv1.HeaderNetworks, caller(ctx).networks())
	h.Set(skerryv1.HeaderAgent, t.workspace.GetAgent())
	h.Set(skerryv1.HeaderWorkspace, t.workspace.GetId())
	h.Set(skerryv1.HeaderEpoch, strconv.FormatUint(t.workspace.GetEpoch(), 10))
}

// routeExecution finds the runner whose number the id carries. Ids that are
// malformed, of unknown runners or of runners where the agent has no workspace
// are all answered alike, so that nobody learns what exists. Whether the
// execution is the agent's own is for the runner to check.
func (c *Coordinator) routeExecution(ctx context.Context, text string) (target, error) {
	missing := problem.Missing("executionId", "no such execution")
	id, err := ids.Parse(ids.Execution, text)
	if err != nil {
		return target{}, missing
	}
	view := c.state.Read()
	runner := view.RunnerByNumber(id.Runner())
	if runner == nil {
		return target{}, missing
	}
	ws := workspaceAt(view, caller(ctx).subject, runner.GetName())
	if ws == nil {
		return target{}, missing
	}
	return c.reach(ws)
}

// routeSelector finds, or makes, the workspace that a selector means.
func (c *Coordinator) routeSelector(ctx context.Context, sel *skerryv1.WorkspaceSelector) (target, error) {
	if sel.GetBranch() != "" {
		return c.routeBranch(ctx, sel)
	}
	if sel.GetId() == "" {
		return c.routeRunner(ctx, sel.GetRunner(), "workspace.runner")
	}
	ws := c.state.Read().Workspace(sel.GetId())
	if ws == nil || ws.GetAgent() != caller(ctx).subject {
		return target{}, problem.Missing("workspace.id", "no such workspace")
	}
	if sel.GetRunner() != "" && sel.GetRunner() != ws.GetRunner() {
		return target{}, problem.Invalid("workspace.runner", "name only one of id and runner", "the workspace is on another runner")
	}
	return c.reach(ws)
}

// routeRunner finds, or makes, the caller's workspace on the named runner;
// unnamed: on its default runner, else on one that placement chooses. field
// names the request's field that holds the runner.
func (c *Coordinator) routeRunner(ctx context.Context, runner, field string) (target, error) {
	agent := caller(ctx).subject
	view := c.state.Read()
	name := runner
	if name == "" {
		name = view.Agent(agent).GetDefaultRunner()
	}
	if name != "" {
		if ws := view.WorkspaceOf(agent, name); ws != nil {
			return c.reach(ws)
		}
		if view.Runner(name) == nil {
			return target{}, unknownRunner(view, name, field)
		}
	}
	return c.assign(ctx, agent, runner)
}

// assign commits a new workspace. Two first calls of one agent at once must not
// be placed on two runners, so they come one after the other.
func (c *Coordinator) assign(ctx context.Context, agent, runner string) (target, error) {
	unlock, err := c.assigns.lock(ctx, agent)
	if err != nil {
		return target{}, err
	}
	defer unlock()
	view := c.state.Read()
	if runner == "" {
		runner = view.Agent(agent).GetDefaultRunner()
	}
	if runner == "" {
		if runner, err = c.placeAgent(); err != nil {
			return target{}, err
		}
	}
	if ws := view.WorkspaceOf(agent, runner); ws != nil {
		return c.reach(ws)
	}
	// A runner that is down gets no workspaces: the call would fail anyway.
	live := c.links.get(runner)
	if live == nil {
		return target{}, unreachable(runner)
	}
	ws, err := c.commitWorkspace(ctx, agent, runner, live.number)
	if err != nil {
		return target{}, err
	}
	return c.reach(ws)
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

func (c *Coordinator) placeAgent() (string, error) {
	var candidates []candidate
	for _, l := range c.links.all() {
		candidates = append(candidates, candidate{name: l.name, running: l.running.Load(), queued: l.queued.Load()})
	}
	name, ok := place(candidates)
	if !ok {
		return "", problem.New(connect.CodeUnavailable, problem.NoRunner,
			"start a runnerd, or wait until one is up (skerry runner list)", "no runner is up").Retry()
	}
	return name, nil
}

// reach gives the live link of a workspace's runner.
func (c *Coordinator) reach(ws *raftlogv1.Workspace) (target, error) {
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

func unknownRunner(view state.Reader, name, field string) *problem.Error {
	const most = 20
	var known []string
	for _, r := range view.Runners() {
		known = append(known, r.GetName())
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
