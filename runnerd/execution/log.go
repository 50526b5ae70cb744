package execution

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/supervisor"
)

// dir is the execution's directory. An attempt to start that came to nothing,
// because the daemon died in the middle, is marked void by the supervisor's
// side and never used again; the next attempt has the next directory.
func (e *Engine) dir(id string) string {
	base := filepath.Join(e.cfg.Dir, id)
	dir := base
	for n := 1; ; n++ {
		if _, err := os.Lstat(filepath.Join(dir, "void")); err != nil {
			return dir
		}
		dir = fmt.Sprintf("%s.%d", base, n)
	}
}

// ReadLog gives one page of an execution's log. An execution without a log has
// an empty one.
func (e *Engine) ReadLog(r *skerryv1.Execution, cursor uint64, size int) (supervisor.LogPage, error) {
	if !hasLog(e.dir(r.Id)) {
		page := supervisor.LogPage{Next: cursor, EOF: skerryv1.Terminal(r.State)}
		if total := outputBytes(r); page.EOF && cursor < total {
			page.Dropped, page.Next = total-cursor, total // retention removed the log
		}
		return page, nil
	}
	return supervisor.OpenLog(e.dir(r.Id)).ReadAt(cursor, size)
}

func outputBytes(r *skerryv1.Execution) uint64 {
	return r.GetStdout().GetTotalBytes() + r.GetStderr().GetTotalBytes()
}

func hasLog(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "log"))
	return !errors.Is(err, fs.ErrNotExist)
}

// LogBytes is how many bytes both streams have so far.
func (e *Engine) LogBytes(ctx context.Context, r *skerryv1.Execution) (uint64, error) {
	if skerryv1.Terminal(r.State) {
		return outputBytes(r), nil
	}
	x := e.find(r.Id)
	if x == nil {
		return outputBytes(r), nil
	}
	h := x.supervisor()
	if h == nil {
		return 0, nil
	}
	status, err := h.Status(ctx)
	return status.Log.TotalBytes, err
}

// FollowLog yields the log from cursor on, each byte once, until the command
// has ended and all was yielded.
func (e *Engine) FollowLog(ctx context.Context, id string, cursor uint64) iter.Seq2[supervisor.LogPage, error] {
	return func(yield func(supervisor.LogPage, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(e.ctx, func() { cancel(shuttingDown()) })()
		if err := e.awaitLaunch(ctx, id); err != nil {
			yield(supervisor.LogPage{}, err)
			return
		}
		if !hasLog(e.dir(id)) {
			return
		}
		for page, err := range supervisor.OpenLog(e.dir(id)).Follow(ctx, cursor) {
			if !yield(page, err) {
				return
			}
		}
	}
}

func (e *Engine) awaitLaunch(ctx context.Context, id string) error {
	x := e.find(id)
	if x == nil {
		return nil
	}
	select {
	case <-x.launched:
		return nil
	case <-x.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
