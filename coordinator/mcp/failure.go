package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"connectrpc.com/connect"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"skerry.internal/proto/problem"
)

// failed is the JSON form of an error.
type failed struct {
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Field     string `json:"field,omitempty"`
	Limit     string `json:"limit,omitempty"`
	Remedy    string `json:"remedy,omitempty"`
	Retryable bool   `json:"retryable"`
}

// failure is an error as a tool's answer.
func failure(t tool, err error, redact *redactor) *sdk.CallToolResult {
	f := describe(err, t.params)
	structured, _ := json.Marshal(map[string]failed{"error": f})
	return &sdk.CallToolResult{
		IsError:           true,
		Content:           []sdk.Content{&sdk.TextContent{Text: redact.text(f.String())}},
		StructuredContent: json.RawMessage(redact.text(string(structured))),
	}
}

// String is the form for a model.
func (f failed) String() string {
	out := f.Reason + ": " + f.Message
	for _, line := range [][2]string{{"field", f.Field}, {"limit", f.Limit}, {"remedy", f.Remedy}} {
		if line[1] != "" {
			out += "\n" + line[0] + ": " + line[1]
		}
	}
	if f.Retryable {
		out += "\nretryable: the same call may succeed later"
	}
	return out
}

// describe turns an error of the API or of this package into the words of the
// tool: parameters have other names here than the API's fields.
func describe(err error, params []param) failed {
	p := problem.Of(err)
	if p == nil {
		return transport(err)
	}
	f := failed{Reason: p.Reason, Field: p.Field, Limit: p.Limit, Remedy: p.Remedy, Retryable: p.Retryable}
	// The text is "field: message; remedy".
	f.Message = strings.TrimSuffix(strings.TrimPrefix(errorText(err), p.Field+": "), "; "+p.Remedy)
	var wire *connect.Error
	if !errors.As(err, &wire) {
		return f // it is of this package and has the tool's words
	}
	f.Field = parameterName(f.Field, params)
	f.Message, f.Remedy = toolWords.Replace(f.Message), toolWords.Replace(f.Remedy)
	return f
}

// errorText is an error's message without the code that Connect puts before it.
func errorText(err error) string {
	var wire *connect.Error
	if errors.As(err, &wire) {
		return wire.Message()
	}
	var e *problem.Error
	if errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}

// transport describes an error that the API did not answer itself.
func transport(err error) failed {
	code := connect.CodeOf(err)
	f := failed{Reason: strings.ToUpper(code.String()), Message: clipText(errorText(err), 500)}
	switch code {
	case connect.CodeUnavailable:
		f.Retryable = true
		f.Message = "the coordinator cannot be reached: " + f.Message
		f.Remedy = "call again a little later; if that fails, whoever runs Skerry must look"
	case connect.CodeCanceled, connect.CodeDeadlineExceeded:
		f.Retryable, f.Remedy = true, "call again"
	case connect.CodeUnauthenticated:
		f.Remedy = "whoever set up this MCP server must give it a valid token"
	default:
	}
	return f
}

// toolWords replaces what remedies of the API name by what it is called here.
var toolWords = strings.NewReplacer(
	"GetExecution", "execution_status", "ListExecutions", "execution_status", "ReadExecutionLogs", "execution_logs",
	"CancelExecution", "execution_cancel", "ListFiles", "list_files", "ReadFile", "read_file", "WriteFile", "write_file",
	"nextPageToken", "next cursor", "pageToken", "cursor", "ifExists", "if_exists", "options.", "",
	"idempotencyKey", "idempotency_key", "timeoutS", "timeout_s", "waitMs", "wait_ms", "executionId", "execution_id", "afterMs", "after_ms")

// parameterName is the tool's name of a field of the API; what is no parameter
// of the tool keeps its name in snake case.
func parameterName(field string, params []param) string {
	field = strings.TrimPrefix(field, "options.")
	base, index, _ := strings.Cut(field, "[")
	if index != "" {
		index = "[" + index
	}
	for _, p := range params {
		if p.name == base {
			return field
		}
	}
	switch base {
	case "runner":
		return "runner_id" + index
	case "pageToken":
		return "cursor" + index
	case "text", "data":
		return "content" + index
	case "maxBytes", "tailBytes":
		return "tail" + index
	}
	return snake(base) + index
}

func snake(camel string) string {
	var out strings.Builder
	for _, r := range camel {
		if unicode.IsUpper(r) {
			out.WriteByte('_')
			r = unicode.ToLower(r)
		}
		out.WriteRune(r)
	}
	return out.String()
}

// unknownOutcome says whether a failed start may have started something.
func unknownOutcome(err error) bool {
	p := problem.Of(err)
	if p != nil {
		return p.Reason == problem.OutcomeUnknown || p.Reason == problem.Internal
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeAborted:
		return true
	default:
		return false
	}
}

// outcomeUnknown is the error of such a start: the key makes a repeat safe (I3).
func outcomeUnknown(err error, key string) error {
	f := describe(err, nil)
	return problem.New(connect.CodeUnknown, problem.OutcomeUnknown,
		fmt.Sprintf("repeat the call with idempotency_key %q, which runs it at most once; or look for it with execution_status", key),
		"the answer was lost and the command may or may not have started (%s: %s)", f.Reason, f.Message).Retry()
}

// clipText bounds a message by bytes.
func clipText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf(" [... %d bytes omitted]", len(s)-most)
}
