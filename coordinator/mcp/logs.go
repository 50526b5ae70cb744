package mcp

import (
	"context"
	"encoding/json"
	"fmt"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// logPageText bounds the text of one page.
	logPageText = 40 << 10
	// logFetch is what one call to the API reads and logScan what one page
	// looks through in all when it shows one stream of two.
	logFetch = 1 << 20
	logScan  = 16 << 20
)

func executionLogs(c Executions) tool {
	return tool{
		name: "execution_logs", title: "Read an execution's output",
		description: "Read one page of at most 40 KiB of an execution's output, also while it runs: both streams in the order of arrival, or one. " +
			"The answer has next_cursor to go on from, whether the output ends there, and how many bytes retention no longer has. " +
			"The second block of the answer is the output itself.",
		params: []param{
			executionID(true, "The execution."),
			{name: "cursor", kind: number, doc: "Byte of the output to start at, as an earlier page gave it; default 0. Bytes of both streams count."},
			{name: "stream", kind: text, enum: []string{"stdout", "stderr"}, doc: "Only this stream; default: both."},
			{name: "tail", kind: number, least: 1, most: logPageText, doc: "Start this many bytes before the end instead of at cursor; with stream, bytes of that stream."},
		},
		hints: hints{readOnly: true, idempotent: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			if a.has("tail") && a.has("cursor") {
				return nil, problem.Invalid("tail", "give one of tail and cursor", "and cursor are both set")
			}
			r := logRequest{client: c, id: get[string](a, "execution_id"), stream: get[string](a, "stream")}
			var p *logPage
			var err error
			if a.has("tail") {
				p, err = r.tail(ctx, int(get[int64](a, "tail")))
			} else {
				p, err = r.page(ctx, uint64(get[int64](a, "cursor")))
			}
			if err != nil {
				return nil, err
			}
			return p.result()
		},
	}
}

// logPage is the structured form of a page of output.
type logPage struct {
	ExecutionID string `json:"executionId"`
	State       string `json:"state"`
	Stream      string `json:"stream,omitempty"`
	// Cursor is where the page really starts.
	Cursor     uint64 `json:"cursor"`
	NextCursor uint64 `json:"nextCursor"`
	// DroppedBytes counts what retention no longer has between the two.
	DroppedBytes uint64 `json:"droppedBytes"`
	// Binary says that some bytes were no text and are shown as U+FFFD.
	Binary bool `json:"binary"`
	// End says that the execution has ended and nothing follows.
	End  bool   `json:"end"`
	Text string `json:"text"`
}

func (p *logPage) result() (*result, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	stream := "output"
	if p.Stream != "" {
		stream = p.Stream
	}
	head := fmt.Sprintf("execution %s is %s; %s from cursor %d, next_cursor %d", p.ExecutionID, p.State, stream, p.Cursor, p.NextCursor)
	switch {
	case p.End:
		head += "; this is the end"
	case p.Text == "":
		head += "; nothing more yet"
	}
	if p.DroppedBytes > 0 {
		head += fmt.Sprintf("; %d bytes are no longer kept", p.DroppedBytes)
	}
	if p.Binary {
		head += "; some bytes are no UTF-8 text and shown as U+FFFD: write them to a file to keep them exact"
	}
	out := &result{structured: b, text: []string{head}}
	if p.Text != "" {
		out.text = append(out.text, p.Text)
	}
	return out, nil
}

// logRequest reads pages. It always fetches both streams: only then do the
// cursors show where retention left a gap.
type logRequest struct {
	client     Executions
	id, stream string
}

func (r logRequest) fetch(ctx context.Context, cursor uint64, size uint32, tail *uint32) (*skerryv1.ReadExecutionLogsResponse, error) {
	res, err := r.client.ReadExecutionLogs(ctx, connect.NewRequest(&skerryv1.ReadExecutionLogsRequest{
		ExecutionId: r.id, Cursor: cursor, MaxBytes: size, TailBytes: tail}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// page fills a page from cursor on. For one stream it looks further when the
// other one fills what was fetched.
func (r logRequest) page(ctx context.Context, cursor uint64) (*logPage, error) {
	t := newLogText(r.stream, cursor, logPageText)
	size, scan := uint32(logPageText), uint64(logPageText)
	if r.stream != "" {
		size, scan = logFetch, logScan
	}
	for {
		before := t.at
		got, err := r.fetch(ctx, before, size, nil)
		if err != nil {
			return nil, err
		}
		t.addPage(got)
		present := got.End || got.NextCursor-before < uint64(size) // nothing more is there now
		if t.full || present || t.at-cursor >= scan {
			return r.finish(t, cursor, got), nil
		}
	}
}

// tail is the page of the last n bytes. For one stream they are looked for in
// the last logFetch bytes of both.
func (r logRequest) tail(ctx context.Context, n int) (*logPage, error) {
	bytes := uint32(n)
	if r.stream != "" {
		bytes = logFetch
	}
	got, err := r.fetch(ctx, 0, logFetch, &bytes)
	if err != nil {
		return nil, err
	}
	start := got.NextCursor - got.DroppedBytes
	for _, record := range got.Records {
		start -= uint64(len(record.Data))
	}
	if r.stream != "" {
		got.Records, start = lastBytes(got.Records, r.stream, n, start)
	}
	start = startAtCharacter(got.Records, start)
	t := newLogText(r.stream, start, logPageText)
	t.addPage(got)
	return r.finish(t, start, got), nil
}

func (r logRequest) finish(t *logText, cursor uint64, last *skerryv1.ReadExecutionLogsResponse) *logPage {
	end := last.End && !t.full && t.at >= last.NextCursor
	t.finish(end)
	return &logPage{ExecutionID: r.id, State: last.State, Stream: r.stream, Cursor: cursor, NextCursor: t.at,
		DroppedBytes: t.dropped, Binary: t.binary, End: end, Text: string(t.text)}
}
