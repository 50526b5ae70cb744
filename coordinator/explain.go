package coordinator

import (
	"context"
	"fmt"
	"math"
	"slices"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/placement"
	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// runnersFor is what placement has to know for a new workspace of an agent.
func (c *Coordinator) runnersFor(view state.Reader, agent string) []placement.Runner {
	known := view.Runners()
	out := make([]placement.Runner, 0, len(known))
	occupied := make(map[string]bool)
	for _, ws := range view.WorkspacesOfAgent(agent) {
		occupied[ws.GetRunner()] = true
	}
	for _, r := range known {
		p := placement.Runner{Name: r.GetName(), Labels: r.GetLabels(), Tier: r.GetTier(), Slots: r.GetSlots(), Schedule: r.GetSchedule(),
			Occupied: occupied[r.GetName()]}
		if l := c.links.get(r.GetName()); l != nil {
			p.Up, p.Busy = true, busyOf(l)
			told := l.inventory()
			p.Environments = told.environments
			if len(told.devices) > 0 {
				p.Free = make(map[string]uint32, len(told.devices))
			}
			for _, d := range told.devices {
				p.Free[d.GetKind()] = d.GetFree()
			}
		}
		out = append(out, p)
	}
	return out
}

// busyOf bounds what a runner tells, so that comparing loads cannot overflow.
func busyOf(l *runnerLink) uint32 {
	return uint32(min(uint64(l.running.Load())+uint64(l.queued.Load()), math.MaxInt32))
}

// conditions reads a selector; field names it in errors.
func conditions(selector []string, field string) ([]placement.Condition, error) {
	if len(selector) > placement.MaxConditions {
		return nil, problem.Limit(field, "16 conditions", "use fewer")
	}
	var out []placement.Condition
	for i, text := range selector {
		condition, err := placement.ParseCondition(text)
		if err != nil {
			return nil, problem.Invalid(fmt.Sprintf("%s[%d]", field, i), err.Error(), "%.64q is no condition on labels", text)
		}
		out = append(out, condition)
	}
	return out, nil
}

// placeAgent chooses a runner for an agent that has none.
func (c *Coordinator) placeAgent(view state.Reader, id identity, selector []placement.Condition) (string, error) {
	runners, req := c.runnersFor(view, id.subject), placement.Request{Scope: id.runners, Selector: selector, Policy: c.cfg.Placement.Policy}
	if name := placement.Best(runners, req); name != "" {
		return name, nil
	}
	d := placement.Place(runners, req)
	e := problem.New(connect.CodeUnavailable, problem.NoRunner, "start a runnerd, or wait until one is up (skerry runner list)", "no runner is up").Retry()
	// Of runners outside of the token's scope nothing is told.
	visible := slices.DeleteFunc(d.Rejected, func(r placement.Rejection) bool { return r.Reason == placement.OutOfScope })
	if slices.ContainsFunc(visible, func(r placement.Rejection) bool { return r.Reason != placement.Down }) {
		e.Message = "no runner can be taken: " + reject(visible)
		e.Remedy = "ask for less, or see why: skerry runner explain"
	}
	return "", e
}

// reject tells the first few rejections.
func reject(list []placement.Rejection) string {
	const most = 5
	out := ""
	for i, r := range list {
		if i == most {
			return fmt.Sprintf("%s, and %d more", out, len(list)-most)
		}
		if i > 0 {
			out += "; "
		}
		out += r.Runner + ": " + r.Message
	}
	return out
}

// ExplainPlacement implements RunnerServiceHandler.
func (s runnerService) ExplainPlacement(ctx context.Context, req *connect.Request[skerryv1.ExplainPlacementRequest]) (*connect.Response[skerryv1.ExplainPlacementResponse], error) {
	id, view := caller(ctx), s.c.state.Read()
	agent := req.Msg.GetAgent()
	if agent == "" {
		agent = id.subject
	}
	if id.role != skerryv1.RoleAdmin && agent != id.subject && !view.Descends(agent, id.subject) {
		return nil, problem.Missing("agent", "no agent %.64q", agent)
	}
	policy := req.Msg.GetPolicy()
	switch policy {
	case "":
		policy = s.c.cfg.Placement.Policy
	case placement.Spread, placement.Pack:
	default:
		return nil, problem.Invalid("policy", "use spread or pack", "unknown policy")
	}
	selector, err := conditions(req.Msg.GetSelector(), "selector")
	if err != nil {
		return nil, err
	}
	d := placement.Place(s.c.runnersFor(view, agent), placement.Request{Scope: id.runners, Selector: selector,
		Tier: clipText(req.Msg.GetTier(), maxLabelText), NPU: req.Msg.GetNpu(), Policy: policy})
	out := &skerryv1.ExplainPlacementResponse{Policy: policy}
	if current := view.Agent(agent).GetDefaultRunner(); id.allows(current) {
		out.Current = current
	}
	for _, c := range d.Candidates {
		out.Candidates = append(out.Candidates, &skerryv1.PlacementCandidate{Runner: c.Runner, Reasons: c.Reasons})
	}
	for _, r := range d.Rejected {
		if r.Reason != placement.OutOfScope {
			out.Rejected = append(out.Rejected, &skerryv1.PlacementRejection{Runner: r.Runner, Reason: string(r.Reason), Message: r.Message})
		}
	}
	return connect.NewResponse(out), nil
}
