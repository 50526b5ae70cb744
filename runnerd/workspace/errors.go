package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
)

// pathError turns what the file system said about an agent's path into a typed
// error without host paths; nil stays nil.
func pathError(err error) error {
	var typed *problem.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	e := &problem.Error{Field: "path", Cause: err}
	switch {
	case escapes(err):
		e.Code, e.Reason = connect.CodeInvalidArgument, problem.PathOutside
		e.Message, e.Remedy = "a symlink leads outside the workspace", "use a path that stays inside"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		e.Code, e.Reason = connect.CodeFailedPrecondition, problem.NotAFile
		e.Message, e.Remedy = "a component of the path is not a directory", "check the path with ListFiles"
	case errors.Is(err, fs.ErrExist):
		e.Code, e.Reason = connect.CodeAlreadyExists, problem.AlreadyExists
		e.Message, e.Remedy = "the path exists", "set ifExists to overwrite or append"
	case errors.Is(err, fs.ErrNotExist):
		e.Code, e.Reason, e.Message = connect.CodeNotFound, problem.NotFound, "no such file"
	case errors.Is(err, unix.ENAMETOOLONG):
		e.Code, e.Reason, e.Limit = connect.CodeResourceExhausted, problem.LimitExceeded, "name or path length of the runner's file system"
		e.Message, e.Remedy = "name or path too long for the runner's file system", "use a shorter path"
	case diskFull(err):
		e.Code, e.Reason, e.Limit = connect.CodeResourceExhausted, problem.LimitExceeded, "disk space of the runner"
		e.Message, e.Remedy = "the runner's disk is full", "free space on the runner"
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Reason = connect.CodePermissionDenied, problem.PermissionDenied
		e.Message, e.Remedy = "the runner may not do this here", "check the modes of the directories above"
	default:
		return err
	}
	return e
}

// escapes recognises os.Root's refusal, which has no exported sentinel.
func escapes(err error) bool {
	var pe *fs.PathError
	return errors.As(err, &pe) && strings.Contains(pe.Err.Error(), "path escapes from parent")
}

// storeError turns an error of a look-up in a committed tree into a typed one.
func storeError(field string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cas.ErrNotFound):
		return problem.Missing(field, "no such file in the committed snapshot")
	case errors.Is(err, cas.ErrOutside):
		return outside(field, "a symlink leads outside the workspace")
	case errors.Is(err, cas.ErrLoop):
		return problem.Invalid(field, "remove the loop of symlinks", "too many symlinks")
	case errors.Is(err, cas.ErrNotDir):
		return problem.Missing(field, "a component of the path is not a directory")
	}
	return err
}

// noRoom turns what says that the disk is full into a typed error, and leaves
// others as they are.
func noRoom(err error) error {
	var typed *problem.Error
	if !diskFull(err) || errors.As(err, &typed) {
		return err
	}
	e := problem.New(connect.CodeResourceExhausted, problem.LimitExceeded, "free space on the runner", "the runner's disk is full").Because(err)
	e.Limit = "disk space of the runner"
	return e
}

// unstableError says that something writes while nothing should.
type unstableError struct {
	total int64
	first []string
}

// Error implements error.
func (e *unstableError) Error() string {
	return fmt.Sprintf("%d files change while nothing should write, first %q", e.total, e.first)
}

// CommitCause words the failure of a Commit for the agent: what to mend, but no
// path of the host. The log has the error itself.
func CommitCause(err error) string {
	var limit *cas.LimitError
	var unstable *unstableError
	switch {
	case errors.As(err, &limit):
		return limit.Error()
	case errors.As(err, &unstable):
		return unstable.Error()
	case diskFull(err):
		return "the runner's disk is full"
	case errors.Is(err, cas.ErrFenced):
		return "the workspace was assigned anew"
	case errors.Is(err, cas.ErrCorrupt):
		return "the runner's store has a damaged object"
	case errors.Is(err, cas.ErrFailed):
		return "the runner's store could not reach the disk; the runner must be restarted"
	case errors.Is(err, fs.ErrPermission):
		return "the runner may not read the workspace's directory"
	}
	return "an error that the runner's log tells"
}

func diskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
