package mcp

import (
	"context"
	"encoding/json"
	"fmt"

	"connectrpc.com/connect"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	"skerry.internal/proto/wire"
)

// tool is one call that an agent can make.
type tool struct {
	name, title, description string
	params                   []param
	hints                    hints
	call                     func(context.Context, arguments) (*result, error)
}

// hints tell a client how careful to be.
type hints struct{ readOnly, destructive, idempotent bool }

// result is what a tool answers: the same as JSON, for programs, and as blocks
// of text, for models. The first block tells about what follows; a second one
// is content, verbatim.
type result struct {
	structured json.RawMessage
	text       []string
}

// message makes a result of an API message.
func message(m proto.Message, text ...string) (*result, error) {
	b, err := wire.MarshalJSON(m)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return &result{structured: b, text: text}, nil
}

func (t tool) declare() *sdk.Tool {
	closed := false
	return &sdk.Tool{
		Name: t.name, Title: t.title, Description: t.description, InputSchema: schema(t.params),
		Annotations: &sdk.ToolAnnotations{Title: t.title, ReadOnlyHint: t.hints.readOnly, DestructiveHint: &t.hints.destructive,
			IdempotentHint: t.hints.idempotent, OpenWorldHint: &closed},
	}
}

// handler answers calls. Everything that goes wrong in one is the tool's
// answer, so that the model sees it; a protocol error would hide it.
func (t tool) handler(redact *redactor) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (out *sdk.CallToolResult, _ error) {
		defer func() {
			if p := recover(); p != nil {
				out = failure(t, problem.New(connect.CodeInternal, problem.Internal, "report it", "the tool failed: a fault in Skerry"), redact)
			}
		}()
		args, err := decode(req.Params.Arguments, t.params)
		if err != nil {
			return failure(t, err, redact), nil
		}
		r, err := t.call(ctx, args)
		if err != nil {
			return failure(t, err, redact), nil
		}
		return success(r, redact), nil
	}
}

func success(r *result, redact *redactor) *sdk.CallToolResult {
	out := &sdk.CallToolResult{StructuredContent: json.RawMessage(redact.text(string(r.structured)))}
	for _, t := range r.text {
		out.Content = append(out.Content, &sdk.TextContent{Text: redact.text(t)})
	}
	return out
}
