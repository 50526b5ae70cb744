package coordinator

import (
	"context"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// elsewhere says to a runner why it is asked for what it knows alone.
const elsewhere = "not where new executions of the workspace start"

// repeated finds the execution that a call's idempotency key has started where
// its workspace was before it moved: runners keep the keys that they accepted.
// nil: the key is new, as far as to's runner does not know it. While one of those
// runners is away nobody knows, and what may have run is not run again (I3).
func repeated[Res any](ctx context.Context, c *Coordinator, to target, opts *skerryv1.RunOptions, ask func(target) (*connect.Response[Res], error)) (*connect.Response[Res], error) {
	if opts.GetIdempotencyKey() == "" {
		return nil, nil
	}
	away, view := "", c.state.Read()
	for _, b := range view.BranchesOfWorkspace(to.workspace.GetId()) {
		if b.GetRunner() == to.workspace.GetRunner() || view.Runner(b.GetRunner()) == nil {
			continue
		}
		former, err := c.reach(asWorkspace(b))
		if err != nil {
			away = b.GetRunner()
			continue
		}
		if res, err := knownAt(former, ask); res != nil || err != nil {
			return res, err
		}
	}
	if away == "" || opts.GetFirstUse() {
		return nil, nil
	}
	if res, err := knownAt(to, ask); res != nil || err != nil {
		return res, err
	}
	return nil, problem.New(connect.CodeUnavailable, problem.OutcomeUnknown,
		"repeat the call when the runner is back, or an admin has removed it; in a first call set options.firstUse, or give no idempotencyKey",
		"runner %q, which had the workspace before, is away, and may have run this key", away).Retry()
}

// knownAt asks a runner for the execution that a key started there; nil: none.
func knownAt[Res any](at target, ask func(target) (*connect.Response[Res], error)) (*connect.Response[Res], error) {
	at.onlyKnown = elsewhere
	res, err := ask(at)
	if problem.Of(err).GetReason() == problem.RunnerDraining {
		return nil, nil
	}
	return res, err
}
