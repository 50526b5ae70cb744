package rpc

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/supervisor"
)

const (
	logPage    = 64 << 10
	maxLogPage = 1 << 20
)

// ReadExecutionLogs implements ExecutionService.
func (s executions) ReadExecutionLogs(ctx context.Context, req *connect.Request[skerryv1.ReadExecutionLogsRequest]) (*connect.Response[skerryv1.ReadExecutionLogsResponse], error) {
	agent, err := agentOf(req.Header())
	if err != nil {
		return nil, err
	}
	size, err := limited("maxBytes", req.Msg.MaxBytes, logPage, maxLogPage)
	if err != nil {
		return nil, err
	}
	if err := checkStream(req.Msg.Stream); err != nil {
		return nil, err
	}
	// In this order: what is terminal now has all of its log.
	e, err := s.engine.Get(ctx, agent, req.Msg.ExecutionId)
	if err != nil {
		return nil, err
	}
	cursor := req.Msg.Cursor
	if req.Msg.TailBytes != nil {
		total, err := s.engine.LogBytes(ctx, e)
		if err != nil {
			return nil, err
		}
		cursor = total - min(uint64(*req.Msg.TailBytes), total)
	}
	page, err := s.engine.ReadLog(e, cursor, size)
	if err != nil {
		return nil, err
	}
	out := &skerryv1.ReadExecutionLogsResponse{NextCursor: page.Next, DroppedBytes: page.Dropped, State: e.State,
		Records: records(page, req.Msg.Stream), End: page.EOF && skerryv1.Terminal(e.State)}
	return connect.NewResponse(out), nil
}

func checkStream(stream string) error {
	switch stream {
	case "", "stdout", "stderr":
		return nil
	}
	return problem.Invalid("stream", "use stdout, stderr or nothing for both", "%.64q is no stream", stream)
}

// records shows those of one stream, or all. Cursors count both streams.
func records(page supervisor.LogPage, stream string) []*skerryv1.LogRecord {
	var out []*skerryv1.LogRecord
	for _, r := range page.Records {
		name := streamName(r.Stream)
		if stream != "" && name != stream {
			continue
		}
		out = append(out, &skerryv1.LogRecord{Cursor: r.Cursor, Stream: name, Time: timestamppb.New(r.Time), Data: r.Data})
	}
	return out
}

// FollowExecutionLogs implements ExecutionService.
func (s executions) FollowExecutionLogs(ctx context.Context, req *connect.Request[skerryv1.FollowExecutionLogsRequest], stream *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error {
	agent, err := agentOf(req.Header())
	if err != nil {
		return err
	}
	if err := checkStream(req.Msg.Stream); err != nil {
		return err
	}
	id, cursor := req.Msg.ExecutionId, req.Msg.Cursor
	if _, err := s.engine.Get(ctx, agent, id); err != nil {
		return err
	}
	// An answer at once, though there may be no output for long: the caller
	// then knows that it follows.
	if err := stream.Send(&skerryv1.FollowExecutionLogsResponse{NextCursor: cursor}); err != nil {
		return err
	}
	for page, err := range s.engine.FollowLog(ctx, id, cursor) {
		if err != nil {
			return err
		}
		cursor = page.Next
		out := &skerryv1.FollowExecutionLogsResponse{Records: records(page, req.Msg.Stream), NextCursor: cursor, DroppedBytes: page.Dropped}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	e, err := s.engine.AwaitEnd(ctx, agent, id)
	if err != nil {
		return err
	}
	return stream.Send(&skerryv1.FollowExecutionLogsResponse{NextCursor: cursor, End: true, Execution: e})
}

func streamName(s supervisor.Stream) string {
	if s == supervisor.Stderr {
		return "stderr"
	}
	return "stdout"
}
