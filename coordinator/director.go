package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// How long one question about a transfer waits for its end.
	directWait = 10 * time.Second
	// Between two attempts at what cannot be done now.
	directRetry = 500 * time.Millisecond
	// A source walks all that is to be copied before it answers.
	prepareTimeout = 5 * time.Minute
	// A runner's answer to a short question.
	askTimeout = 10 * time.Second
)

// director drives the transfers of the cluster. It keeps nothing that is not in
// the replicated state or with the runners, so that another can take over at
// any time.
type director struct {
	c  *Coordinator
	wg sync.WaitGroup

	mu      sync.Mutex
	driving map[string]bool
}

// directTransfers is a leader's task.
func (c *Coordinator) directTransfers(ctx context.Context) {
	d := &director{c: c, driving: map[string]bool{}}
	defer d.wg.Wait()
	for {
		changed := c.state.Changed()
		for _, t := range c.state.Read().OpenTransfers() {
			// One whose outcome is unknown resolves when its target is back.
			if t.GetState() != skerryv1.StateUnknown || c.links.get(t.GetTargetRunner()) != nil {
				d.begin(ctx, t.GetId())
			}
		}
		if !waitChange(ctx, changed) {
			return
		}
	}
}

func (d *director) begin(ctx context.Context, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.driving[id] {
		return
	}
	d.driving[id] = true
	d.wg.Go(func() {
		d.drive(ctx, id)
		d.mu.Lock()
		delete(d.driving, id)
		d.mu.Unlock()
	})
}

// drive brings one transfer to its end, or as far as is known.
func (d *director) drive(ctx context.Context, id string) {
	run := &transferRun{c: d.c, id: id}
	for ctx.Err() == nil {
		done, err := run.step(ctx)
		if done {
			return
		}
		if err != nil {
			d.c.logger.DebugContext(ctx, "transfer waits", "transfer", id, "error", err)
			pauseFor(ctx, directRetry)
		}
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// transferRun is one transfer being driven.
type transferRun struct {
	c        *Coordinator
	id       string
	prepared *skerryv1.PrepareTransferResponse
}

// step does the next thing. done: there is nothing left to do now.
func (r *transferRun) step(ctx context.Context) (done bool, err error) {
	t := r.c.state.Read().Transfer(r.id)
	switch {
	case t == nil:
		return true, nil
	case skerryv1.TransferEnded(t.GetState()) && t.GetState() != skerryv1.StateUnknown:
		r.release(ctx, t)
		return true, nil
	case t.GetState() == skerryv1.StateQueued:
		return false, r.prepare(ctx, t)
	}
	return r.follow(ctx, t)
}

// prepare has the source make the tree, and marks the transfer as begun before
// the target learns of it: from then on only the target knows how it ends.
func (r *transferRun) prepare(ctx context.Context, t *raftlogv1.Transfer) error {
	if sourceLost(r.c.state.Read(), t) {
		return r.sourceRemoved(ctx, t)
	}
	if err := r.ask(ctx, t); err != nil {
		return r.failed(ctx, t, err)
	}
	p := r.prepared
	return r.commit(ctx, &raftlogv1.UpdateTransfer{State: skerryv1.StateRunning, Snapshot: clipText(p.GetSnapshot(), maxDigest), Bytes: p.GetBytes(),
		Counts: &raftlogv1.Counts{Pending: p.GetEntries(), Failed: uint64(len(p.GetProblems()))}})
}

// ask asks the source for what is to be copied.
func (r *transferRun) ask(ctx context.Context, t *raftlogv1.Transfer) error {
	l := r.c.links.get(t.GetSourceRunner())
	if l == nil {
		return unreachable(t.GetSourceRunner())
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	source := r.c.state.Read().Workspace(t.GetSource())
	res, err := l.transfers.PrepareTransfer(ctx, connect.NewRequest(&skerryv1.PrepareTransferRequest{TransferId: t.GetId(), Agent: source.GetAgent(),
		Workspace: t.GetSource(), Epoch: t.GetSourceEpoch(), Snapshot: t.GetSnapshot(), Mappings: apiMappings(t.GetMappings())}))
	if err != nil {
		return err
	}
	r.prepared = res.Msg
	return nil
}

// sourceLost reports whether the source's runner was removed, though another may
// have its name by now.
func sourceLost(view state.Reader, t *raftlogv1.Transfer) bool {
	ws := view.Workspace(t.GetSource())
	return view.Runner(t.GetSourceRunner()) == nil || (ws.GetLost() && ws.GetRunner() == t.GetSourceRunner() && ws.GetEpoch() == t.GetSourceEpoch())
}

// sourceRemoved ends a transfer that nobody will prepare any more.
func (r *transferRun) sourceRemoved(ctx context.Context, t *raftlogv1.Transfer) error {
	return r.commit(ctx, &raftlogv1.UpdateTransfer{State: skerryv1.StateFailed, Reason: problem.WorkspaceLost,
		Message: fmt.Sprintf("the source's runner %q was removed", t.GetSourceRunner()), Counts: &raftlogv1.Counts{Failed: uint64(len(t.GetMappings()))}})
}

// failed ends a transfer whose source refuses it for good; else it gives err.
func (r *transferRun) failed(ctx context.Context, t *raftlogv1.Transfer, err error) error {
	p, final := refusedForGood(err)
	if !final || t.GetState() != skerryv1.StateQueued {
		return err
	}
	return r.commit(ctx, &raftlogv1.UpdateTransfer{State: skerryv1.StateFailed, Reason: clipText(p.GetReason(), maxDigest), Message: clipText(p.GetMessage(), maxDetail),
		Counts: &raftlogv1.Counts{Failed: uint64(len(t.GetMappings()))}})
}

// refusedForGood tells a runner's refusal from a link that broke and from what
// may succeed later.
func refusedForGood(err error) (*skerryv1.TransferProblem, bool) {
	var wire *connect.Error
	p := problem.Of(err)
	if p == nil || p.GetRetryable() || !errors.As(err, &wire) || !connect.IsWireError(err) {
		if connect.CodeOf(err) == connect.CodeUnimplemented && connect.IsWireError(err) {
			return &skerryv1.TransferProblem{Reason: problem.Unsupported, Message: "the runner is too old for transfers; upgrade it"}, true
		}
		return nil, false
	}
	if p.GetReason() == problem.Internal || p.GetReason() == problem.ShuttingDown || p.GetReason() == problem.StoreFailed {
		return nil, false
	}
	return &skerryv1.TransferProblem{Reason: p.GetReason(), Message: wire.Message()}, true
}

// follow asks the target how far it is; the first question begins the transfer.
func (r *transferRun) follow(ctx context.Context, t *raftlogv1.Transfer) (done bool, err error) {
	l := r.c.links.get(t.GetTargetRunner())
	if l == nil || r.c.state.Read().Workspace(t.GetTarget()).GetLost() {
		return r.targetAway(ctx, t)
	}
	status, err := r.progress(ctx, l, t)
	if err != nil {
		if p, final := refusedForGood(err); final && p.GetReason() == problem.Unsupported {
			return false, r.commit(ctx, &raftlogv1.UpdateTransfer{State: skerryv1.StateFailed, Reason: p.GetReason(), Message: p.GetMessage()})
		}
		return false, err
	}
	if !skerryv1.TransferEnded(status.GetState()) {
		return false, nil
	}
	return false, r.commit(ctx, endOf(status))
}

// targetAway: the transfer goes on when the target is back, unless it lost the
// workspace meanwhile or was removed: then nobody knows how far it came.
func (r *transferRun) targetAway(ctx context.Context, t *raftlogv1.Transfer) (done bool, err error) {
	view := r.c.state.Read()
	ws := view.Workspace(t.GetTarget())
	moved := ws.GetRunner() != t.GetTargetRunner() || ws.GetEpoch() != t.GetTargetEpoch() || ws.GetLost()
	if !moved && view.Runner(t.GetTargetRunner()) != nil {
		return false, unreachable(t.GetTargetRunner())
	}
	if t.GetState() == skerryv1.StateUnknown {
		return true, nil
	}
	return true, r.commit(ctx, &raftlogv1.UpdateTransfer{State: skerryv1.StateUnknown, Reason: problem.Fenced,
		Message: "the target's runner is away and its workspace went on elsewhere; what was committed comes back with it as a branch"})
}

// progress tells the target what it needs and gives its status.
func (r *transferRun) progress(ctx context.Context, l *runnerLink, t *raftlogv1.Transfer) (*skerryv1.TransferStatus, error) {
	if t.GetCancelRequested() {
		if status, err := stopAt(ctx, l, t.GetId()); err != nil || skerryv1.TransferEnded(status.GetState()) {
			return status, err
		}
	}
	if r.prepared == nil {
		if err := r.ask(ctx, t); err != nil {
			return r.statusOnly(ctx, l, t, err)
		}
	}
	spec, err := r.spec(t)
	if err != nil {
		return nil, err
	}
	res, err := l.transfers.RunTransfer(ctx, connect.NewRequest(spec))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetStatus(), nil
}

// statusOnly: without its source a transfer that the target knows may end all the same.
func (r *transferRun) statusOnly(ctx context.Context, l *runnerLink, t *raftlogv1.Transfer, cause error) (*skerryv1.TransferStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := l.transfers.ListTransferFiles(ctx, connect.NewRequest(&skerryv1.ListTransferFilesRequest{TransferId: t.GetId(), Limit: 1}))
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	if !skerryv1.TransferEnded(res.Msg.GetStatus().GetState()) {
		return nil, cause
	}
	return res.Msg.GetStatus(), nil
}

func (r *transferRun) spec(t *raftlogv1.Transfer) (*skerryv1.RunTransferRequest, error) {
	p := r.prepared
	target := r.c.state.Read().Workspace(t.GetTarget())
	spec := &skerryv1.RunTransferRequest{TransferId: t.GetId(), Agent: target.GetAgent(), Workspace: t.GetTarget(), Epoch: t.GetTargetEpoch(), Root: p.GetRoot(),
		Mappings: apiMappings(t.GetMappings()), Problems: p.GetProblems(), Conflict: t.GetConflict(), Entries: p.GetEntries(), Bytes: p.GetBytes(),
		Source: &skerryv1.PullSource{Runner: t.GetSourceRunner(), Peer: p.GetPeer()}, WaitMs: uint32(directWait.Milliseconds())}
	if p.GetRoot() == "" || t.GetSourceRunner() == t.GetTargetRunner() {
		return spec, nil
	}
	var err error
	spec.Source.Grant, err = r.c.signGrant(p.GetRoot(), t.GetSourceRunner(), t.GetTargetRunner())
	return spec, err
}

func stopAt(ctx context.Context, l *runnerLink, id string) (*skerryv1.TransferStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := l.transfers.StopTransfer(ctx, connect.NewRequest(&skerryv1.StopTransferRequest{TransferId: id}))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetStatus(), nil
}

func endOf(s *skerryv1.TransferStatus) *raftlogv1.UpdateTransfer {
	return &raftlogv1.UpdateTransfer{State: s.GetState(), Counts: raftCounts(s.GetCounts()), Bytes: s.GetBytes(), BytesCompleted: s.GetBytesCompleted(),
		Reason: clipText(s.GetProblem().GetReason(), maxDigest), Message: clipText(s.GetProblem().GetMessage(), maxDetail), Route: clipText(s.GetRoute(), maxDigest)}
}

// release lets the source forget; what it kept ends by itself, too.
func (r *transferRun) release(ctx context.Context, t *raftlogv1.Transfer) {
	l := r.c.links.get(t.GetSourceRunner())
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := l.transfers.ReleaseTransfer(ctx, connect.NewRequest(&skerryv1.ReleaseTransferRequest{TransferId: t.GetId()})); err != nil {
		r.c.logger.DebugContext(ctx, "source keeps the tree of an ended transfer for a while", "transfer", t.GetId(), "error", err)
	}
}

func (r *transferRun) commit(ctx context.Context, u *raftlogv1.UpdateTransfer) error {
	u.Id = r.id
	if _, err := r.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_UpdateTransfer{UpdateTransfer: u}}); err != nil {
		return fmt.Errorf("record transfer %s: %w", r.id, err)
	}
	return nil
}
