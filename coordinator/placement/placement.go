// Package placement chooses a runner for an agent's new workspace. It is a pure
// function of what is known about the runners and of what is asked for, so that
// each choice can be explained, repeated and tested without a cluster.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"skerry.internal/coordinator/state"
)

// Policies: what decides between runners that are equally near to the data.
const (
	// Spread takes the least busy runner.
	Spread = "spread"
	// Pack fills the busiest one that still has a free slot, so that others stay
	// empty for large work.
	Pack = "pack"
)

// Runner is what is known of one. Slices and maps are only read.
type Runner struct {
	Name   string
	Labels map[string]string
	Tier   string
	Slots  uint32
	// Busy is how many executions run or wait there.
	Busy uint32
	Up   bool
	// Schedule is "", "cordoned", "draining" or "drained".
	Schedule string
	// Free is how many devices of a kind nobody has.
	Free         map[string]uint32
	Environments []string
	// Replicas is how many of the agent's workspaces have their latest state there.
	Replicas int
	// Occupied: the agent has a workspace there already.
	Occupied bool
}

// Request is what the workspace needs. The zero value needs nothing.
type Request struct {
	// Scope are the runners that the token may use; empty: all.
	Scope       []string
	Selector    []Condition
	Tier        string
	NPU         uint32
	Environment string
	// Policy is Spread unless it is Pack.
	Policy string
}

// Reason says in one word why a runner is not taken.
type Reason string

// Reasons, in the order in which they are looked for.
const (
	OutOfScope  Reason = "out_of_scope"
	Down        Reason = "down"
	Cordoned    Reason = "cordoned"
	Draining    Reason = "draining"
	Occupied    Reason = "workspace"
	Label       Reason = "label"
	Tier        Reason = "tier"
	NPU         Reason = "npu"
	Environment Reason = "environment"
)

// Candidate is a runner that can be taken, and what weighs for and against it.
type Candidate struct {
	Runner  string
	Reasons []string
}

// Rejection is a runner that cannot, and why not.
type Rejection struct {
	Runner  string
	Reason  Reason
	Message string
}

// Decision names every runner once: candidates by preference, rejections by name.
type Decision struct {
	Candidates []Candidate
	Rejected   []Rejection
}

// DeviceNPU is the kind of device that Request.NPU counts.
const DeviceNPU = "npu"

// Place decides. The order of runners does not matter.
func Place(runners []Runner, req Request) Decision {
	var fit []Runner
	var d Decision
	for _, r := range runners {
		if reason, message := why(r, req); reason != "" {
			d.Rejected = append(d.Rejected, Rejection{r.Name, reason, message})
			continue
		}
		fit = append(fit, r)
	}
	slices.SortFunc(fit, func(a, b Runner) int { return prefer(a, b, req.Policy) })
	for _, r := range fit {
		d.Candidates = append(d.Candidates, Candidate{r.Name, weights(r, req.Policy)})
	}
	slices.SortFunc(d.Rejected, func(a, b Rejection) int { return cmp.Compare(a.Runner, b.Runner) })
	return d
}

// Best is the first of Place's candidates; "": there is none. It weighs no
// reasons up and orders nothing, which counts where there are thousands.
func Best(runners []Runner, req Request) string {
	var best *Runner
	for i := range runners {
		if reason, _ := why(runners[i], req); reason == "" && (best == nil || prefer(runners[i], *best, req.Policy) < 0) {
			best = &runners[i]
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

// why gives the first reason against a runner; "": none.
func why(r Runner, req Request) (Reason, string) {
	switch {
	case !state.AllowsRunner(req.Scope, r.Name):
		return OutOfScope, "the token is for " + strings.Join(req.Scope, ", ")
	case !r.Up:
		return Down, "it is not connected"
	case r.Schedule == "cordoned":
		return Cordoned, "it takes no new workspaces (skerry runner uncordon)"
	case r.Schedule != "":
		return Draining, "it is " + r.Schedule + " and takes no work (skerry runner uncordon)"
	case r.Occupied:
		return Occupied, "the agent has a workspace there already"
	}
	for _, c := range req.Selector {
		if !c.Holds(r.Labels) {
			return Label, fmt.Sprintf("%s does not hold: its %s", c, label(r.Labels, c.Key))
		}
	}
	switch free := r.Free[DeviceNPU]; {
	case req.Tier != "" && !AtLeast(r.Tier, req.Tier):
		return Tier, fmt.Sprintf("its sandbox is %s, weaker than %s", orNone(r.Tier), req.Tier)
	case free < req.NPU:
		return NPU, fmt.Sprintf("%d NPUs are free there, %d needed", free, req.NPU)
	case req.Environment != "" && !slices.Contains(r.Environments, req.Environment):
		return Environment, fmt.Sprintf("it does not have environment %q", req.Environment)
	}
	return "", ""
}

func label(labels map[string]string, key string) string {
	if value, ok := labels[key]; ok {
		return fmt.Sprintf("%s is %q", key, value)
	}
	return key + " is not set"
}

func orNone(tier string) string { return cmp.Or(tier, "none") }

// prefer orders runners that fit: data that lies there, a free slot, the policy's
// load, the name.
func prefer(a, b Runner, policy string) int {
	load := compareLoad(a, b)
	if policy == Pack {
		load = -load
	}
	return cmp.Or(cmp.Compare(b.Replicas, a.Replicas), compareFull(a, b), load, cmp.Compare(a.Name, b.Name))
}

func compareFull(a, b Runner) int {
	switch fullA, fullB := full(a), full(b); {
	case fullA == fullB:
		return 0
	case fullA:
		return 1
	}
	return -1
}

func full(r Runner) bool { return r.Busy >= slots(r) }

// compareLoad compares busy parts of the slots without rounding; of full
// runners the one with the longer queue for a slot is busier, too.
func compareLoad(a, b Runner) int {
	return cmp.Compare(uint64(a.Busy)*uint64(slots(b)), uint64(b.Busy)*uint64(slots(a)))
}

func slots(r Runner) uint32 { return max(r.Slots, 1) }

func weights(r Runner, policy string) []string {
	var out []string
	if r.Replicas > 0 {
		out = append(out, fmt.Sprintf("has the latest state of %d of the agent's workspaces", r.Replicas))
	}
	busy := fmt.Sprintf("%d of %d slots busy", r.Busy, slots(r))
	if full(r) {
		busy += ": new work would wait"
	} else if policy == Pack {
		busy += ": fuller ones first"
	}
	return append(out, busy)
}
