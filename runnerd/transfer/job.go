package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
)

// Bounds of what is kept of ended transfers.
const (
	keptTransfers = 5000
	keptFor       = 30 * 24 * time.Hour
)

// job is a transfer into this runner that has not ended.
type job struct {
	m    *Manager
	id   string
	done chan struct{}
	// cancelled is closed when the rest is not to be copied; alive ends then too,
	// and with the daemon.
	cancelled chan struct{}
	alive     context.Context //nolint:containedctx // lifetime of the job
	kill      context.CancelFunc
	once      sync.Once

	mu      sync.Mutex
	spec    *skerryv1.RunTransferRequest
	status  *skerryv1.TransferStatus
	batch   journal.Batch
	renewed chan struct{} // closed and renewed when the source or grant is told anew
	changed chan struct{} // likewise when the status changes

	expanded bool
	left     journal.Batch // what was under way when the daemon stopped; To 0: nothing
}

func newJob(m *Manager, t journal.Transfer) *job {
	j := &job{m: m, id: t.Spec.GetTransferId(), done: make(chan struct{}), cancelled: make(chan struct{}), spec: t.Spec, status: t.Status,
		renewed: make(chan struct{}), changed: make(chan struct{}), expanded: t.Expanded, batch: t.Batch, left: t.Batch}
	j.alive, j.kill = context.WithCancel(m.ctx)
	if t.Cancel {
		j.stop()
	}
	return j
}

func (j *job) stop() {
	j.once.Do(func() {
		close(j.cancelled)
		j.kill()
	})
}

func (j *job) stopped() bool {
	select {
	case <-j.cancelled:
		return true
	default:
		return false
	}
}

// renew takes the latest source and grant.
func (j *job) renew(spec *skerryv1.RunTransferRequest) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.spec.Source = spec.GetSource()
	close(j.renewed)
	j.renewed = make(chan struct{})
}

func (j *job) source() *skerryv1.PullSource {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.spec.GetSource()
}

// look gives a copy of the status and a channel that is closed at its next change.
func (j *job) look() (*skerryv1.TransferStatus, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := proto.CloneOf(j.status)
	if n := uint64(max(0, j.batch.To-j.batch.From+1)); j.batch.To > 0 && s.GetCounts().GetPending() >= n {
		s.Counts.Pending -= n
		s.Counts.Copying += n
	}
	return s, j.changed
}

// recorded gives a copy of the status as the journal has it: without what is
// being copied.
func (j *job) recorded() *skerryv1.TransferStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	return proto.CloneOf(j.status)
}

func (j *job) update(change func(*skerryv1.TransferStatus)) *skerryv1.TransferStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(j.status)
	close(j.changed)
	j.changed = make(chan struct{})
	return proto.CloneOf(j.status)
}

// waits notes what the transfer waits for; nil: for nothing.
func (j *job) waits(err error) {
	j.update(func(s *skerryv1.TransferStatus) { s.Problem = transferProblem(err) })
}

func transferProblem(err error) *skerryv1.TransferProblem {
	if err == nil {
		return nil
	}
	var typed *problem.Error
	var far *peer.Error
	switch {
	case errors.As(err, &typed):
		return &skerryv1.TransferProblem{Reason: typed.Reason, Message: typed.Error()}
	case errors.As(err, &far):
		return &skerryv1.TransferProblem{Reason: string(far.Reason), Message: far.Message}
	case errors.Is(err, errNoRoute) || broken(err):
		return &skerryv1.TransferProblem{Reason: problem.RunnerUnreachable, Message: "the source cannot be reached now; it is tried again"}
	}
	return &skerryv1.TransferProblem{Reason: problem.Internal, Message: "the target's runner failed; its log has the cause"}
}

// errStopping ends a job without an end: the daemon stops.
var errStopping = errors.New("the daemon stops")

// run brings the transfer to its end, or leaves it to the next Start.
func (j *job) run() {
	defer j.kill()
	err := j.work()
	if j.m.ctx.Err() != nil && err != nil {
		return
	}
	j.end(err)
}

func (j *job) work() error {
	cancelled := j.cancelled
	if j.left.To > 0 {
		cancelled = nil // what was under way has an outcome to be found
	}
	select {
	case j.m.slots <- struct{}{}:
	case <-cancelled:
		return nil
	case <-j.m.ctx.Done():
		return errStopping
	}
	defer func() { <-j.m.slots }()
	j.update(func(s *skerryv1.TransferStatus) { s.State = skerryv1.StateRunning })
	if j.left.To > 0 {
		if err := j.settleLeft(); err != nil {
			return err
		}
	}
	root, err := j.fetch()
	if err != nil || j.stopped() {
		return err
	}
	if !j.expanded {
		if err := j.expand(root); err != nil {
			return err
		}
	}
	return j.apply(root)
}

// fetch brings the tree here, however long that takes, unless the transfer is
// cancelled or the source refuses for good.
func (j *job) fetch() (cas.Digest, error) {
	if j.spec.GetRoot() == "" {
		return cas.Digest{}, nil
	}
	root, err := cas.ParseDigest(j.spec.GetRoot())
	if err != nil {
		return root, problem.Invalid("root", "call through a coordinator", "is no digest")
	}
	if kept, err := j.m.store.LeasedTree(j.m.ctx, incoming(j.id)); err == nil && kept == root {
		return root, nil
	}
	for delay := 200 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
		err := j.fetchOnce(j.alive, root)
		switch {
		case j.m.ctx.Err() != nil:
			return root, errStopping
		case j.stopped():
			return root, nil
		case err == nil:
			j.waits(nil)
			return root, nil
		case final(err):
			return root, err
		}
		j.m.log.Info("transfer waits for its source", "transfer", j.id, "err", err)
		j.waits(err)
		j.pause(j.alive, delay)
	}
}

// pause ends early when the source is told anew.
func (j *job) pause(ctx context.Context, d time.Duration) {
	j.mu.Lock()
	renewed := j.renewed
	j.mu.Unlock()
	least := time.NewTimer(min(d, 200*time.Millisecond))
	defer least.Stop()
	select {
	case <-least.C:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-renewed:
	case <-ctx.Done():
	}
}

func (j *job) fetchOnce(ctx context.Context, root cas.Digest) error {
	if from := j.source().GetRunner(); from == "" || from == j.m.cfg.Name {
		j.update(func(s *skerryv1.TransferStatus) { s.Route = skerryv1.RouteLocal })
		return j.m.store.Lease(ctx, incoming(j.id), root, leaseLife)
	}
	route, _, err := j.m.pull(ctx, root, j.source, peer.PullOptions{Lease: incoming(j.id), Collections: leaseLife})
	if route != "" {
		j.update(func(s *skerryv1.TransferStatus) { s.Route = route })
	}
	return err
}

// final reports whether repeating a pull cannot help.
func final(err error) bool {
	switch peer.ReasonOf(err) {
	case peer.NotFound, peer.BadObject, peer.Protocol, peer.Limit, peer.Invalid, peer.GrantAudience:
		return true
	}
	return errors.Is(err, cas.ErrCorrupt) || errors.Is(err, cas.ErrNotFound)
}

// end gives every file that has no outcome one, and the transfer its state.
func (j *job) end(err error) {
	rest := journal.TransferFile{State: skerryv1.StateCancelled}
	if err != nil {
		p := transferProblem(err)
		rest = journal.TransferFile{State: skerryv1.StateFailed, Reason: p.GetReason(), Message: p.GetMessage()}
		j.m.log.Warn("transfer failed", "transfer", j.id, "err", err)
	}
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
		ended := j.record(rest, err)
		if ended == nil {
			break
		}
		j.m.log.Error("end of transfer not recorded", "transfer", j.id, "err", ended)
		select {
		case <-j.m.ctx.Done():
			return
		case <-time.After(delay):
		}
	}
	s, _ := j.look()
	j.m.metrics.ended.WithLabelValues(s.GetState()).Inc()
	ctx := context.WithoutCancel(j.m.ctx)
	if err := j.m.store.EndLease(ctx, incoming(j.id)); err != nil && !errors.Is(err, cas.ErrNotFound) {
		j.m.log.Warn("tree of a transfer is kept on", "transfer", j.id, "err", err)
	}
	if err := j.m.journal.PruneTransfers(ctx, keptTransfers, time.Now().Add(-keptFor)); err != nil {
		j.m.log.Warn("old transfers not forgotten", "err", err)
	}
}

// record writes the end down and then shows it.
func (j *job) record(rest journal.TransferFile, cause error) error {
	ctx := context.WithoutCancel(j.m.ctx)
	if err := j.doubt(ctx); err != nil {
		return err
	}
	var files []journal.TransferFile
	if !j.expanded { // of what was never looked into, each mapping is a file
		files = j.mappingsAsFiles()
	}
	s, _ := j.look()
	c := s.GetCounts()
	c.Pending += c.GetCopying()
	if rest.State == skerryv1.StateFailed {
		c.Failed += c.GetPending()
	} else {
		c.Cancelled += c.GetPending()
	}
	c.Pending, c.Copying = 0, 0
	s.Problem = transferProblem(cause)
	s.State = outcome(c, cause)
	if err := j.m.journal.EndTransfer(ctx, j.id, files, rest, s, time.Now()); err != nil {
		return fmt.Errorf("end transfer: %w", err)
	}
	j.update(func(live *skerryv1.TransferStatus) {
		proto.Reset(live)
		proto.Merge(live, s)
	})
	return nil
}

// doubt gives the files of a batch that was begun and whose outcome could not be
// found the outcome unknown.
func (j *job) doubt(ctx context.Context) error {
	j.mu.Lock()
	j.left = j.batch
	j.mu.Unlock()
	if j.left.To == 0 {
		return nil
	}
	files, err := j.leftFiles(ctx)
	if err != nil {
		return err
	}
	for i := range files {
		files[i].State, files[i].Reason, files[i].Message = skerryv1.StateUnknown, problem.OutcomeUnknown, "the runner failed while it was written; its log has the cause"
	}
	return j.endBatch(ctx, files)
}

// mappingsAsFiles counts them, too, as pending.
func (j *job) mappingsAsFiles() []journal.TransferFile {
	files := j.failedMappings()
	failed := map[int]bool{}
	for _, f := range files {
		failed[f.Mapping] = true
	}
	for i, mapping := range j.spec.GetMappings() {
		if !failed[i] {
			files = append(files, journal.TransferFile{Seq: int64(i + 1), Mapping: i, Path: mapping.GetTarget(), State: skerryv1.FilePending})
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.status.Counts = &skerryv1.TransferCounts{Failed: uint64(len(failed)), Pending: uint64(len(files) - len(failed))}
	return files
}

// outcome is the state of a transfer whose files have these outcomes: unknown
// if that of any is, completed if all are, partial if some are; else cancelled
// if any was, else failed.
func outcome(c *skerryv1.TransferCounts, cause error) string {
	switch {
	case c.GetUnknown() > 0:
		return skerryv1.StateUnknown
	case c.GetCompleted()+c.GetFailed()+c.GetCancelled() == 0 && cause == nil: // an empty directory onto the workspace
		return skerryv1.StateCompleted
	case c.GetCompleted() > 0 && c.GetFailed()+c.GetCancelled() == 0 && cause == nil:
		return skerryv1.StateCompleted
	case c.GetCompleted() > 0:
		return skerryv1.StatePartial
	case c.GetCancelled() > 0:
		return skerryv1.StateCancelled
	}
	return skerryv1.StateFailed
}

func shuttingDown() error {
	return problem.New(connect.CodeUnavailable, problem.ShuttingDown, "try again", "the runner is shutting down").Retry()
}
