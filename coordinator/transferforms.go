package coordinator

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	maxMappings = 50
	maxPath     = 4096
	maxPathName = 255
)

// checkMappings checks paths by their spelling and gives them cleaned. That no
// symlink leads anywhere is for the runners to see to.
func checkMappings(list []*skerryv1.TransferMapping) ([]*raftlogv1.Mapping, error) {
	switch {
	case len(list) == 0:
		return nil, problem.Invalid("mappings", "name 1 to 50 source and target paths", "are empty")
	case len(list) > maxMappings:
		return nil, problem.Limit("mappings", "50 mappings", "map directories, or start several transfers")
	}
	var out []*raftlogv1.Mapping
	total := 0
	for i, m := range list {
		source, err := checkPath(fmt.Sprintf("mappings[%d].source", i), m.GetSource())
		if err != nil {
			return nil, err
		}
		target, err := checkPath(fmt.Sprintf("mappings[%d].target", i), m.GetTarget())
		if err != nil {
			return nil, err
		}
		total += len(source) + len(target)
		out = append(out, &raftlogv1.Mapping{Source: source, Target: target})
	}
	if total > state.MaxMappingBytes {
		return nil, problem.Limit("mappings", fmt.Sprintf("%d bytes of paths together", state.MaxMappingBytes), "map directories, or start several transfers")
	}
	return out, checkTargets(out)
}

// checkPath gives a workspace-relative path without empty and "." components.
func checkPath(field, p string) (string, error) {
	outside := func(what string) error {
		e := problem.New(connect.CodeInvalidArgument, problem.PathOutside, "use a path relative to the workspace root, without ..", "%s", what)
		e.Field = field
		return e
	}
	switch {
	case len(p) > maxPath:
		return "", problem.Limit(field, "4096 bytes", "use a shorter path")
	case strings.ContainsRune(p, 0):
		return "", problem.Invalid(field, "remove the NUL byte", "path has a NUL byte")
	case strings.HasPrefix(p, "/"):
		return "", outside("path is absolute")
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == ".." {
			return "", outside("path has a .. component")
		}
		if len(name) > maxPathName {
			return "", problem.Limit(field, "255 bytes a name", "use shorter names")
		}
	}
	if p = path.Clean(p); p == "." {
		return "", nil
	}
	return p, nil
}

// checkTargets refuses targets that are the same or lie in each other: which of
// them a file belonged to would depend on the order.
func checkTargets(list []*raftlogv1.Mapping) error {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b *raftlogv1.Mapping) int { return cmp.Compare(a.GetTarget()+"/", b.GetTarget()+"/") })
	for i := 1; i < len(sorted); i++ {
		above, below := sorted[i-1].GetTarget(), sorted[i].GetTarget()
		if above == "" || below == above || strings.HasPrefix(below, above+"/") {
			return problem.Invalid("mappings", "give each mapping a target of its own", "target %.200q is another one, or lies in it", below)
		}
	}
	return nil
}

func apiMappings(list []*raftlogv1.Mapping) []*skerryv1.TransferMapping {
	out := make([]*skerryv1.TransferMapping, len(list))
	for i, m := range list {
		out[i] = &skerryv1.TransferMapping{Source: m.GetSource(), Target: m.GetTarget()}
	}
	return out
}

func apiTransfer(t *raftlogv1.Transfer) *skerryv1.Transfer {
	out := &skerryv1.Transfer{Id: t.GetId(), Agent: t.GetAgent(), Snapshot: t.GetSnapshot(), Mappings: apiMappings(t.GetMappings()), Conflict: t.GetConflict(),
		Source: &skerryv1.TransferEnd{Workspace: t.GetSource(), Runner: t.GetSourceRunner(), Epoch: t.GetSourceEpoch(), Branch: t.GetSourceBranch()},
		Target: &skerryv1.TransferEnd{Workspace: t.GetTarget(), Runner: t.GetTargetRunner(), Epoch: t.GetTargetEpoch()},
		State:  t.GetState(), Bytes: t.GetBytes(), BytesCompleted: t.GetBytesCompleted(), CancelRequested: t.GetCancelRequested(),
		Created: t.GetCreated(), Started: t.GetStarted(), Ended: t.GetEnded(), Route: t.GetRoute()}
	c := t.GetCounts()
	out.Counts = &skerryv1.TransferCounts{Pending: c.GetPending(), Copying: c.GetCopying(), Completed: c.GetCompleted(), Failed: c.GetFailed(),
		Cancelled: c.GetCancelled(), Unknown: c.GetUnknown()}
	if t.GetReason() != "" {
		out.Problem = &skerryv1.TransferProblem{Reason: t.GetReason(), Message: t.GetMessage()}
	}
	return out
}

func raftCounts(c *skerryv1.TransferCounts) *raftlogv1.Counts {
	return &raftlogv1.Counts{Pending: c.GetPending(), Copying: c.GetCopying(), Completed: c.GetCompleted(), Failed: c.GetFailed(),
		Cancelled: c.GetCancelled(), Unknown: c.GetUnknown()}
}
