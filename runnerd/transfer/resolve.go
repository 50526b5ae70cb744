package transfer

import (
	"context"
	"errors"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/journal"
	"skerry.internal/runnerd/workspace"
)

// settleLeft finds out what became of the batch that was under way when the
// daemon stopped. It was written with the lane held, and what a crash leaves in
// a directory is committed before anybody else gets the lane: so the commit
// that follows the batch's base tells, and if there is none nothing was written.
func (j *job) settleLeft() error {
	w, release, err := j.enter(false)
	if err != nil {
		return err
	}
	defer release()
	ctx := context.WithoutCancel(j.m.ctx)
	files, err := j.leftFiles(ctx)
	if err != nil {
		return err
	}
	after, known, err := j.commitAfter(ctx, w)
	if err != nil {
		return err
	}
	var done []journal.TransferFile
	switch {
	case !known:
		for _, f := range files {
			f.State, f.Reason = skerryv1.StateUnknown, problem.OutcomeUnknown
			f.Message = "the runner stopped while it was written, and the commit that would tell is not kept any more"
			done = append(done, f)
		}
	case !after.IsZero():
		if done, err = j.containedIn(ctx, after, files); err != nil {
			return err
		}
	}
	j.left = journal.Batch{}
	return j.endBatch(ctx, done)
}

// leftFiles are those of the batch that have no outcome.
func (j *job) leftFiles(ctx context.Context) ([]journal.TransferFile, error) {
	files, err := j.m.journal.TransferFiles(ctx, j.id, j.left.From-1, skerryv1.FilePending, j.m.cfg.Batch.Files)
	for i, f := range files {
		if f.Seq > j.left.To {
			return files[:i], err
		}
	}
	return files, err
}

// commitAfter gives the tree of the commit that follows the batch's base; zero:
// there is none. known is false when the history does not reach so far back.
func (j *job) commitAfter(ctx context.Context, w *workspace.Workspace) (tree cas.Digest, known bool, err error) {
	from := w.Head().Commit
	if from.String() == j.left.Base {
		return cas.Digest{}, true, nil
	}
	for !from.IsZero() {
		log, err := j.m.store.Log(ctx, from, 256)
		if err != nil && !errors.Is(err, cas.ErrNotFound) {
			return cas.Digest{}, false, err
		}
		if len(log) == 0 {
			break
		}
		for _, c := range log {
			if c.Parent.String() == j.left.Base {
				return c.Tree, true, nil
			}
			from = c.Parent
		}
	}
	return cas.Digest{}, false, nil
}

// containedIn gives those of the files that the tree has. The others were not
// written; they are still to be.
func (j *job) containedIn(ctx context.Context, after cas.Digest, files []journal.TransferFile) ([]journal.TransferFile, error) {
	root, err := cas.ParseDigest(j.spec.GetRoot())
	if err != nil {
		return nil, err
	}
	head, tree := newTreeReader(j.m.store, after), newTreeReader(j.m.store, root)
	var done []journal.TransferFile
	for _, f := range files {
		ok, err := j.contains(ctx, head, tree, f)
		if err != nil {
			return nil, err
		}
		if ok {
			f.State = skerryv1.StateCompleted
			done = append(done, f)
		}
	}
	return done, nil
}
