package wire

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
)

// Connect answers a message that fails to decode by itself, before interceptors
// run and without details. A marking codec therefore reports success and leaves
// the failure in the message, as an unknown field with the number below, where
// decodeErrors finds it and answers with a Problem. A caller who sends that
// field on purpose is answered the same way.
type markingCodec struct{ codec }

type codec interface {
	connect.Codec
	IsBinary() bool
	MarshalAppend([]byte, any) ([]byte, error)
	MarshalStable(any) ([]byte, error)
}

const failureField protowire.Number = 1<<29 - 1

// Unmarshal implements connect.Codec.
func (c markingCodec) Unmarshal(data []byte, message any) error {
	m, err := asProto(message)
	if err != nil {
		return err
	}
	if err := c.codec.Unmarshal(data, m); err != nil {
		proto.Reset(m)
		mark := protowire.AppendTag(nil, failureField, protowire.BytesType)
		m.ProtoReflect().SetUnknown(protowire.AppendString(mark, err.Error()))
	}
	return nil
}

// failureOf gives the decode error that a markingCodec left in a message.
func failureOf(message any) (string, bool) {
	m, ok := message.(proto.Message)
	if !ok {
		return "", false
	}
	for raw := []byte(m.ProtoReflect().GetUnknown()); len(raw) > 0; {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return "", false
		}
		if num == failureField && typ == protowire.BytesType {
			text, _ := protowire.ConsumeString(raw[n:])
			return text, true
		}
		size := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if size < 0 {
			return "", false
		}
		raw = raw[n+size:]
	}
	return "", false
}

var unknownField = regexp.MustCompile(`unknown field "([^"]{1,64})"`)

// decodeProblem words a decode error for the caller.
func decodeProblem(text string) *problem.Error {
	const most = 300
	// protojson separates with a no-break space in some builds, on purpose.
	text = strings.TrimPrefix(strings.ReplaceAll(text, "\u00a0", " "), "proto: ")
	text = strings.ToValidUTF8(text[:min(len(text), most)], "")
	if match := unknownField.FindStringSubmatch(text); match != nil {
		return problem.Invalid(match[1], "remove it; the request's message has no such field", "unknown field")
	}
	return problem.Invalid("", "send a message of the type that this call takes", "the request cannot be decoded: %s", text)
}

// decodeErrors turns marked messages and over-long ones into Problems.
type decodeErrors struct{ maxBytes int }

// WrapUnary implements connect.Interceptor.
func (d decodeErrors) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if text, failed := failureOf(req.Any()); failed {
			return nil, problem.Connect(decodeProblem(text))
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (d decodeErrors) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (d decodeErrors) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(ctx, &checkedConn{StreamingHandlerConn: conn, maxBytes: d.maxBytes})
	}
}

type checkedConn struct {
	connect.StreamingHandlerConn
	maxBytes int
}

// Receive implements connect.StreamingHandlerConn.
func (c *checkedConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		var wire *connect.Error
		if errors.As(err, &wire) && wire.Code() == connect.CodeResourceExhausted && len(wire.Details()) == 0 {
			return problem.Connect(TooLarge(c.maxBytes))
		}
		return err
	}
	if text, failed := failureOf(message); failed {
		return problem.Connect(decodeProblem(text))
	}
	return nil
}

// TooLarge is a request message over maxBytes.
func TooLarge(maxBytes int) *problem.Error {
	e := problem.Limit("", fmt.Sprintf("request: %d bytes", maxBytes),
		"send less at once; UploadFile takes content of any size in pieces")
	e.Message = fmt.Sprintf("the request is over the limit of %d bytes", maxBytes)
	return e
}
