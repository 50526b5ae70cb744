package peer

import (
	"errors"
	"fmt"

	"skerry.internal/cas"
)

// Reason says what kind of failure an Error is. The texts go over the wire
// and never change.
type Reason string

// The reasons.
const (
	// GrantInvalid: malformed, signed by nobody who may, or for another source.
	GrantInvalid Reason = "GRANT_INVALID"
	// GrantExpired: its time is over, or has not come.
	GrantExpired Reason = "GRANT_EXPIRED"
	// GrantAudience: it was given to another receiver.
	GrantAudience Reason = "GRANT_OTHER_AUDIENCE"
	// GrantSpent: its bytes were sent.
	GrantSpent Reason = "GRANT_SPENT"
	// Invalid: a malformed request.
	Invalid Reason = "INVALID_ARGUMENT"
	// Limit: over a limit of the side that says so.
	Limit Reason = "LIMIT_EXCEEDED"
	// Busy: too many transfers at once; try later.
	Busy Reason = "PEER_BUSY"
	// NotFound: the source has not got the granted tree, or not all of it.
	NotFound Reason = "NOT_FOUND"
	// BadObject: the source sent what does not match its digest.
	BadObject Reason = "BAD_OBJECT"
	// Protocol: the source broke the protocol's rules.
	Protocol Reason = "PROTOCOL_VIOLATION"
	// Stalled: nothing came for too long.
	Stalled Reason = "PEER_STALLED"
	// CutOff: the answer ended early; asking again resumes.
	CutOff Reason = "PEER_CUT_OFF"
	// Internal: this side failed.
	Internal Reason = "INTERNAL"
)

// Error is a typed failure of a transfer.
type Error struct {
	Reason  Reason
	Message string
	Limit   string // the limit that was passed, with its unit
	Remedy  string
	Peer    string     // who is at fault, where it is the other side
	Object  cas.Digest // where one object is at fault
	Cause   error      // for logs; never sent
}

// Error implements error.
func (e *Error) Error() string {
	text := e.Message
	if e.Peer != "" {
		text = fmt.Sprintf("peer %q: %s", e.Peer, text)
	}
	if e.Limit != "" {
		text += "; the limit is " + e.Limit
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Retryable reports whether the same call may succeed later without change.
func (e *Error) Retryable() bool {
	return e.Reason == Busy || e.Reason == Stalled || e.Reason == CutOff
}

// ReasonOf returns the reason of an error of this package, else "".
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

func failure(r Reason, remedy, format string, args ...any) *Error {
	return &Error{Reason: r, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

func over(limit, remedy, format string, args ...any) *Error {
	e := failure(Limit, remedy, format, args...)
	e.Limit = limit
	return e
}
