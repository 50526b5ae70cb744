// Package problem is the error of the API: a code, a stable reason, the field
// or limit at fault and what to do. Domain code returns *Error; the one place
// that maps it to the wire is Connect.
package problem

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Reasons. docs/api.md explains each; clients switch on them, so they never change.
const (
	InvalidArgument      = "INVALID_ARGUMENT"
	LimitExceeded        = "LIMIT_EXCEEDED"
	Unauthenticated      = "UNAUTHENTICATED"
	PermissionDenied     = "PERMISSION_DENIED"
	NotFound             = "NOT_FOUND"
	AlreadyExists        = "ALREADY_EXISTS"
	NotAFile             = "NOT_A_FILE"
	PathOutside          = "PATH_OUTSIDE_WORKSPACE"
	PathSensitive        = "PATH_SENSITIVE"
	DigestMismatch       = "DIGEST_MISMATCH"
	IdempotencyMismatch  = "IDEMPOTENCY_KEY_REUSED"
	WorkspaceBusy        = "WORKSPACE_BUSY"
	WorkspaceNeedsRepair = "WORKSPACE_NEEDS_REPAIR"
	WorkspaceQueueFull   = "WORKSPACE_QUEUE_FULL"
	Fenced               = "WORKSPACE_FENCED"
	NoRunner             = "NO_RUNNER"
	RunnerUnreachable    = "RUNNER_UNREACHABLE"
	OutcomeUnknown       = "OUTCOME_UNKNOWN"
	NotLeader            = "NOT_LEADER"
	AuthorityChanged     = "AUTHORITY_CHANGED"
	TierUnavailable      = "TIER_UNAVAILABLE"
	Unsupported          = "UNSUPPORTED"
	ShuttingDown         = "SHUTTING_DOWN"
	StoreFailed          = "STORE_FAILED"
	NotInteractive       = "NOT_INTERACTIVE"
	InputConflict        = "INPUT_CONFLICT"
	NotRunning           = "EXECUTION_NOT_RUNNING"
	PortClosed           = "PORT_CLOSED"
	UpgradePending       = "UPGRADE_PENDING"
	MemberRemoved        = "MEMBER_REMOVED"
	QuorumAtRisk         = "QUORUM_AT_RISK"
	SnapshotDamaged      = "SNAPSHOT_DAMAGED"
	AgentArchived        = "AGENT_ARCHIVED"
	RunnerCordoned       = "RUNNER_CORDONED"
	RunnerDraining       = "RUNNER_DRAINING"
	RunnerInUse          = "RUNNER_IN_USE"
	WorkspaceLost        = "WORKSPACE_LOST"
	VersionSkew          = "VERSION_SKEW"
	FileConflict         = "FILE_CONFLICT"
	WorkspaceMoving      = "WORKSPACE_MOVING"
	ReplicaBehind        = "REPLICA_BEHIND"
	Internal             = "INTERNAL"
)

// Error is a typed error of the API.
type Error struct {
	Code    connect.Code
	Reason  string
	Message string
	// Field is the request field at fault, in lowerCamelCase.
	Field string
	// Limit is the limit that was passed, with its value and unit.
	Limit  string
	Remedy string
	// Retryable: the same request may succeed later without change.
	Retryable bool
	// Expected is the value that Field should have had, where one is right.
	Expected string
	// Cause is for logs only; it is never sent.
	Cause error
}

// Error implements error. The cause is not part of the text, which goes to agents.
func (e *Error) Error() string {
	text := e.Message
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Invalid is a bad value of a field.
func Invalid(field, remedy, format string, args ...any) *Error {
	return &Error{Code: connect.CodeInvalidArgument, Reason: InvalidArgument, Field: field, Remedy: remedy,
		Message: fmt.Sprintf(format, args...)}
}

// Limit is a value over a limit; most is the limit with its unit.
func Limit(field, most, remedy string) *Error {
	return &Error{Code: connect.CodeResourceExhausted, Reason: LimitExceeded, Field: field, Remedy: remedy,
		Limit: most, Message: "over the limit of " + most}
}

// Missing is a thing that does not exist, or that the caller must not know of.
func Missing(field, format string, args ...any) *Error {
	return &Error{Code: connect.CodeNotFound, Reason: NotFound, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Draining refuses to start something on a runner that is draining or drained.
func Draining(runner, schedule string) *Error {
	return New(connect.CodeUnavailable, RunnerDraining, "name another runner, or repeat the call when it takes work again (skerry runner list)",
		"runner %q is %s and starts nothing new", runner, schedule).Retry()
}

// New is any other error.
func New(code connect.Code, reason, remedy, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

// Retry marks e as retryable and returns it.
func (e *Error) Retry() *Error { e.Retryable = true; return e }

// Because keeps the cause for logs and returns e.
func (e *Error) Because(cause error) *Error { e.Cause = cause; return e }

// Connect maps any error to the wire. Errors that are no *Error become
// Internal without their text, since it may hold paths of the host.
func Connect(err error) error {
	if err == nil {
		return nil
	}
	// *Error first: its cause may hold a wire error, which is not for the caller.
	var e *Error
	var wire *connect.Error
	switch {
	case errors.As(err, &e):
	case errors.As(err, &wire):
		return err
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, errors.New("the caller went away"))
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the deadline of the call passed"))
	default:
		e = &Error{Code: connect.CodeInternal, Reason: Internal, Message: "internal error",
			Remedy: "the daemon's log has the cause under this request"}
	}
	out := connect.NewError(e.Code, errors.New(e.Error()))
	if detail, derr := connect.NewErrorDetail(e.Proto()); derr == nil {
		out.AddDetail(detail)
	}
	return out
}

// Proto is the detail that goes with the error.
func (e *Error) Proto() *skerryv1.Problem {
	return &skerryv1.Problem{Reason: e.Reason, Field: e.Field, Limit: e.Limit, Remedy: e.Remedy, Retryable: e.Retryable, Expected: e.Expected}
}

// Of finds the Problem in an error that came over the wire; nil when it has none.
func Of(err error) *skerryv1.Problem {
	var e *Error
	if errors.As(err, &e) {
		return e.Proto()
	}
	var wire *connect.Error
	if !errors.As(err, &wire) {
		return nil
	}
	for _, d := range wire.Details() {
		if v, err := d.Value(); err == nil {
			if p, ok := v.(*skerryv1.Problem); ok {
				return p
			}
		}
	}
	return nil
}
