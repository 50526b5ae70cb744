package transfer

import (
	"context"
	"errors"
	"time"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
)

// Run begins a transfer unless it was begun before, renews its grant, and gives
// its status when it has ended, or after wait.
func (m *Manager) Run(ctx context.Context, spec *skerryv1.RunTransferRequest, wait time.Duration) (*skerryv1.TransferStatus, error) {
	if err := check(spec); err != nil {
		return nil, err
	}
	spec.WaitMs = 0
	first := &skerryv1.TransferStatus{State: skerryv1.StateQueued, Bytes: spec.GetBytes(),
		Counts: &skerryv1.TransferCounts{Pending: spec.GetEntries(), Failed: uint64(len(spec.GetProblems()))}}
	if err := m.journal.AcceptTransfer(context.WithoutCancel(ctx), spec, first); err != nil {
		return nil, err
	}
	t, err := m.journal.Transfer(ctx, spec.GetTransferId())
	if err != nil || t.Ended {
		return t.Status, err
	}
	j, err := m.ensure(t)
	if err != nil {
		return nil, err
	}
	j.renew(spec)
	return j.await(ctx, wait)
}

func check(spec *skerryv1.RunTransferRequest) error {
	const most = 50
	switch n := len(spec.GetMappings()); {
	case spec.GetTransferId() == "" || n == 0:
		return problem.Invalid("transferId", "call through a coordinator", "no transfer, or no mappings")
	case n > most:
		return problem.Limit("mappings", "50 mappings", "start several transfers")
	}
	return nil
}

// ensure gives the job of a transfer that has not ended.
func (m *Manager) ensure(t journal.Transfer) (*job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, shuttingDown()
	}
	if j := m.jobs[t.Spec.GetTransferId()]; j != nil {
		return j, nil
	}
	return m.begin(t), nil
}

func (j *job) await(ctx context.Context, wait time.Duration) (*skerryv1.TransferStatus, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-j.done:
	case <-timer.C:
	case <-j.m.ctx.Done():
		return nil, shuttingDown()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s, _ := j.look()
	return s, nil
}

// Stop cancels what is not written yet. It does not wait for the end.
func (m *Manager) Stop(ctx context.Context, id string) (*skerryv1.TransferStatus, error) {
	if err := m.journal.CancelTransfer(context.WithoutCancel(ctx), id, time.Now()); err != nil {
		return nil, err
	}
	m.mu.Lock()
	j := m.jobs[id]
	m.mu.Unlock()
	if j == nil {
		t, err := m.find(ctx, id)
		return t.Status, err
	}
	j.stop()
	s, _ := j.look()
	return s, nil
}

func (m *Manager) find(ctx context.Context, id string) (journal.Transfer, error) {
	t, err := m.journal.Transfer(ctx, id)
	if errors.Is(err, journal.ErrNotFound) {
		return t, problem.Missing("transferId", "this runner has no such transfer")
	}
	return t, err
}

// Files gives a page of outcomes behind a place, and the status.
func (m *Manager) Files(ctx context.Context, req *skerryv1.ListTransferFilesRequest) (*skerryv1.ListTransferFilesResponse, error) {
	const most = 1000
	t, err := m.find(ctx, req.GetTransferId())
	if err != nil {
		return nil, err
	}
	out := &skerryv1.ListTransferFilesResponse{Status: t.Status}
	m.mu.Lock()
	j := m.jobs[req.GetTransferId()]
	m.mu.Unlock()
	if j != nil {
		out.Status, _ = j.look()
	}
	limit := int(min(max(req.GetLimit(), 1), most))
	copying := req.GetState() == skerryv1.FileCopying
	state := req.GetState()
	if copying { // not a stored state: what is pending in the batch of the moment
		state = skerryv1.FilePending
	}
	files, err := m.journal.TransferFiles(ctx, req.GetTransferId(), int64(req.GetAfter()), state, limit+1)
	if err != nil {
		return nil, err
	}
	if len(files) > limit {
		files = files[:limit]
		out.Next = uint64(files[limit-1].Seq)
	}
	for _, f := range files {
		shown := shown(f, t.Batch)
		if req.GetState() == "" || shown.GetState() == req.GetState() {
			out.Files = append(out.Files, shown)
		}
	}
	return out, nil
}

func shown(f journal.TransferFile, b journal.Batch) *skerryv1.TransferFile {
	out := &skerryv1.TransferFile{Path: workspace.Display(f.Path), Type: f.Type, Size: uint64(f.Size), State: f.State}
	if out.Path != f.Path {
		out.RawPath = []byte(f.Path)
	}
	if f.State == skerryv1.FilePending && b.To > 0 && f.Seq >= b.From && f.Seq <= b.To {
		out.State = skerryv1.FileCopying
	}
	if f.Reason != "" {
		out.Problem = &skerryv1.TransferProblem{Reason: f.Reason, Message: f.Message}
	}
	return out
}
