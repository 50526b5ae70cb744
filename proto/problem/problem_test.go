package problem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

func TestConnectKeepsTheTypedError(t *testing.T) {
	inner := connect.NewError(connect.CodeUnavailable, errors.New("secret host path /root/x"))
	err := Connect(fmt.Errorf("outer: %w", New(connect.CodeAborted, Fenced, "ask again", "stale").Because(inner).Retry()))
	if connect.CodeOf(err) != connect.CodeAborted || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v", err)
	}
	if p := Of(err); p == nil || p.Reason != Fenced || p.Remedy != "ask again" || !p.Retryable {
		t.Fatalf("problem %v", p)
	}
}

func TestConnectHidesUnknownErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code connect.Code
	}{
		{errors.New("open /root/secret: denied"), connect.CodeInternal},
		{context.Canceled, connect.CodeCanceled},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), connect.CodeDeadlineExceeded},
		{connect.NewError(connect.CodeNotFound, errors.New("kept")), connect.CodeNotFound},
	} {
		err := Connect(c.err)
		if connect.CodeOf(err) != c.code || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if Connect(nil) != nil || Of(errors.New("x")) != nil {
		t.Error("nothing became something")
	}
}
