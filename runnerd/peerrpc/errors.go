package peerrpc

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"skerry.internal/cas/peer"
	"skerry.internal/proto/problem"
)

// codes are those of the reasons that a source answers with.
var codes = map[peer.Reason]connect.Code{
	peer.GrantInvalid:  connect.CodeUnauthenticated,
	peer.GrantExpired:  connect.CodeUnauthenticated,
	peer.GrantAudience: connect.CodePermissionDenied,
	peer.GrantSpent:    connect.CodeResourceExhausted,
	peer.Invalid:       connect.CodeInvalidArgument,
	peer.Limit:         connect.CodeResourceExhausted,
	peer.Busy:          connect.CodeUnavailable,
	peer.NotFound:      connect.CodeNotFound,
	peer.Internal:      connect.CodeInternal,
}

// wireError is how a source's error goes out. Causes stay here.
func wireError(err error) error {
	var e *peer.Error
	if !errors.As(err, &e) {
		return problem.Connect(err)
	}
	code, known := codes[e.Reason]
	if !known {
		code = connect.CodeInternal
	}
	p := problem.New(code, string(e.Reason), e.Remedy, "%s", e.Message)
	p.Limit, p.Retryable, p.Cause = e.Limit, e.Retryable(), e.Cause
	return problem.Connect(p)
}

// maxText bounds what is repeated of a source's words.
const maxText = 300

// domainError is what a receiver makes of an error that came over the wire.
// What has no reason that a source may give is left to the puller, which takes
// it for a broken connection.
func domainError(err error) error {
	var wire *connect.Error
	p := problem.Of(err)
	if p == nil || !errors.As(err, &wire) {
		return err
	}
	reason := peer.Reason(p.GetReason())
	if _, known := codes[reason]; !known {
		return err
	}
	return &peer.Error{Reason: reason, Message: fmt.Sprintf("the source refuses: %.*s", maxText, wire.Message()), Limit: fmt.Sprintf("%.*s", maxText, p.GetLimit())}
}
