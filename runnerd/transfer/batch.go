package transfer

import (
	"context"
	"errors"
	"time"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
)

// Batch bounds what is written before it is committed, so that a cancel keeps
// most of what was done and others get their turn in the workspace.
type Batch struct {
	Files int
	Bytes int64
}

func (b Batch) withDefaults() Batch {
	if b.Files <= 0 {
		b.Files = 1000
	}
	if b.Bytes <= 0 {
		b.Bytes = 256 << 20
	}
	return b
}

// busyPause is the time between two attempts to get into a workspace that takes no writers.
const busyPause = time.Second

// apply puts what has no outcome yet into the workspace, a batch at a time.
func (j *job) apply(root cas.Digest) error {
	tree := newTreeReader(j.m.store, root)
	for {
		batch, err := j.next()
		if err != nil || len(batch) == 0 || j.stopped() {
			return err
		}
		if err := j.write(tree, batch); err != nil {
			return err
		}
	}
}

// next gives the files of the next batch.
func (j *job) next() ([]journal.TransferFile, error) {
	files, err := j.m.journal.TransferFiles(j.m.ctx, j.id, 0, skerryv1.FilePending, j.m.cfg.Batch.Files)
	if err != nil {
		return nil, j.orStopping(err)
	}
	var bytes int64
	for i, f := range files {
		if bytes += f.Size; bytes > j.m.cfg.Batch.Bytes && i > 0 {
			return files[:i], nil
		}
	}
	return files, nil
}

func (j *job) orStopping(err error) error {
	if err != nil && j.m.ctx.Err() != nil {
		return errStopping
	}
	return err
}

// enter waits for the workspace's lane. It gives nil when the transfer was
// cancelled meanwhile. A workspace that waits for a repair or for room is waited for.
func (j *job) enter(admit bool) (*workspace.Workspace, func(), error) {
	for {
		w, err := j.m.workspaces.Get(j.m.ctx, j.spec.GetWorkspace(), j.spec.GetAgent(), j.spec.GetEpoch())
		if err != nil {
			return nil, nil, j.orStopping(err)
		}
		release, err := j.lane(w, admit)
		switch {
		case j.m.ctx.Err() != nil:
			if release != nil {
				release()
			}
			return nil, nil, errStopping
		case err == nil && release == nil: // cancelled
			return nil, nil, nil
		case err == nil:
			j.waits(nil)
			return w, release, nil
		case problemIs(err, problem.Fenced):
			return nil, nil, err
		}
		j.waits(err)
		select {
		case <-time.After(busyPause):
		case <-j.m.ctx.Done():
			return nil, nil, errStopping
		case <-j.whenStopped(admit):
			return nil, nil, nil
		}
	}
}

// whenStopped never comes while an outcome is to be found.
func (j *job) whenStopped(admit bool) <-chan struct{} {
	if admit {
		return j.cancelled
	}
	return nil
}

func (j *job) lane(w *workspace.Workspace, admit bool) (release func(), err error) {
	queue := w.Queue
	if !admit {
		queue = w.Requeue
	}
	ticket, err := queue()
	if err != nil {
		return nil, err
	}
	select {
	case <-ticket.Admitted():
	case <-j.m.ctx.Done():
		ticket.Release()
		return nil, errStopping
	case <-j.whenStopped(admit):
		ticket.Release()
		return nil, nil
	}
	check := func() error { return w.Admit(j.m.ctx) }
	if !admit {
		check = func() error { return settledDown(w) }
	}
	if err := check(); err != nil {
		ticket.Release()
		return nil, err
	}
	return ticket.Release, nil
}

// settledDown: what lies in the directory is committed. A branch may be looked
// into too.
func settledDown(w *workspace.Workspace) error {
	if w.Fenced() {
		return nil
	}
	return w.Writable()
}

func problemIs(err error, reason string) bool {
	var typed *problem.Error
	return errors.As(err, &typed) && typed.Reason == reason
}

// write puts one batch in, commits and records the outcomes.
func (j *job) write(tree *treeReader, files []journal.TransferFile) error {
	items, err := j.placements(tree, files)
	if err != nil {
		return err
	}
	w, release, err := j.enter(true)
	if err != nil || release == nil {
		return err
	}
	defer release()
	ctx := context.WithoutCancel(j.m.ctx)
	b := journal.Batch{Base: w.Head().Commit.String(), From: files[0].Seq, To: files[len(files)-1].Seq}
	if err := j.m.journal.BeginBatch(ctx, j.id, b); err != nil {
		return err
	}
	j.setBatch(b)
	errs, err := w.Place(ctx, items, j.spec.GetConflict() == skerryv1.ConflictOverwrite)
	if err != nil {
		errs = all(len(items), err)
	}
	if err := j.commit(w, errs); err != nil {
		return err // the next start finds out
	}
	return j.outcomes(w.Head().Tree, tree, files, errs)
}

func all(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (j *job) setBatch(b journal.Batch) {
	j.mu.Lock()
	j.batch = b
	j.mu.Unlock()
}

func (j *job) placements(tree *treeReader, files []journal.TransferFile) ([]workspace.Placement, error) {
	items := make([]workspace.Placement, len(files))
	for i, f := range files {
		x, ok, err := tree.find(j.m.ctx, j.place(f))
		if err != nil {
			return nil, j.orStopping(err)
		}
		if !ok {
			return nil, problem.Invalid("root", "start another transfer", "the tree has not got %s any more", workspace.Display(f.Path))
		}
		items[i] = workspace.Placement{Path: f.Path, Entry: x}
	}
	return items, nil
}

// commit makes what was put there durable. As long as that fails the lane is
// kept and a repair is waited for.
func (j *job) commit(w *workspace.Workspace, errs []error) error {
	some := false
	for _, err := range errs {
		some = some || err == nil
	}
	if !some {
		return nil
	}
	for {
		_, err := w.Commit(context.WithoutCancel(j.m.ctx), "transfer:"+j.id)
		if err == nil {
			j.waits(nil)
			return nil
		}
		j.update(func(s *skerryv1.TransferStatus) {
			s.Problem = &skerryv1.TransferProblem{Reason: problem.WorkspaceNeedsRepair,
				Message: "files are written but cannot be committed: " + workspace.CommitCause(err) + "; mend the cause, then run: skerry workspace repair"}
		})
		if !w.AwaitRepair(j.m.ctx) {
			return errStopping
		}
	}
}

// outcomes records what became of a batch: completed is what the committed tree
// contains.
func (j *job) outcomes(committed cas.Digest, tree *treeReader, files []journal.TransferFile, errs []error) error {
	head := newTreeReader(j.m.store, committed)
	ctx := context.WithoutCancel(j.m.ctx)
	done := make([]journal.TransferFile, 0, len(files))
	for i, f := range files {
		f.State = skerryv1.StateFailed
		if errs[i] == nil {
			ok, err := j.contains(ctx, head, tree, f)
			if err != nil {
				return err
			}
			if ok {
				f.State = skerryv1.StateCompleted
			} else {
				errs[i] = problem.New(0, problem.Internal, "start another transfer", "the commit does not contain it")
			}
		}
		if p := transferProblem(errs[i]); p != nil {
			f.Reason, f.Message = p.GetReason(), p.GetMessage()
		}
		done = append(done, f)
	}
	return j.endBatch(ctx, done)
}

// contains reports whether a committed tree has a file of the transfer.
func (j *job) contains(ctx context.Context, head, tree *treeReader, f journal.TransferFile) (bool, error) {
	have, ok, err := head.find(ctx, f.Path)
	if err != nil || !ok {
		return false, err
	}
	want, ok, err := tree.find(ctx, j.place(f))
	if err != nil || !ok || have.Type != want.Type {
		return false, err
	}
	switch want.Type {
	case cas.TypeFile:
		return have.Digest == want.Digest && have.Size == want.Size, nil
	case cas.TypeSymlink:
		return have.Target == want.Target, nil
	case cas.TypeDir:
	}
	return true, nil
}

// endBatch records outcomes together with the status that they lead to. Until
// they are recorded the batch counts as under way: when that fails, nobody
// takes its files for ones that were not tried.
func (j *job) endBatch(ctx context.Context, done []journal.TransferFile) error {
	s := j.recorded()
	tallyAll(s, done)
	if err := j.m.journal.EndBatch(ctx, j.id, done, s); err != nil {
		return err
	}
	j.update(func(s *skerryv1.TransferStatus) {
		tallyAll(s, done)
		j.batch = journal.Batch{} // under the lock of update
	})
	for _, f := range done {
		j.m.metrics.files.WithLabelValues(f.State).Inc()
	}
	return nil
}

func tallyAll(s *skerryv1.TransferStatus, done []journal.TransferFile) {
	if s.Counts == nil {
		s.Counts = &skerryv1.TransferCounts{}
	}
	for _, f := range done {
		tally(s, f)
	}
}

func tally(s *skerryv1.TransferStatus, f journal.TransferFile) {
	s.Counts.Pending--
	switch f.State {
	case skerryv1.StateCompleted:
		s.Counts.Completed++
		s.BytesCompleted += uint64(f.Size)
	case skerryv1.StateUnknown:
		s.Counts.Unknown++
	default:
		s.Counts.Failed++
	}
}
