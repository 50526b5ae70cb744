package coordinatortest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

type executions struct {
	rpc.UnimplementedExecutionServiceHandler
	*Runner
}

// RunShell implements ExecutionServiceHandler.
func (e executions) RunShell(ctx context.Context, req *connect.Request[skerryv1.RunShellRequest]) (*connect.Response[skerryv1.RunShellResponse], error) {
	if e.OnShell != nil {
		ex, err := e.OnShell(ctx, req.Msg)
		if err != nil {
			return nil, problem.Connect(err)
		}
		return connect.NewResponse(&skerryv1.RunShellResponse{Execution: ex}), nil
	}
	id := e.AddExecution(req.Header().Get(skerryv1.HeaderAgent), time.Now())
	e.mu.Lock()
	defer e.mu.Unlock()
	ex := e.executions[id]
	ex.Workspace = req.Header().Get(skerryv1.HeaderWorkspace)
	ex.Command = &skerryv1.Command{Shell: req.Msg.GetCommand()}
	return connect.NewResponse(&skerryv1.RunShellResponse{Execution: ex}), nil
}

// GetExecution implements ExecutionServiceHandler.
func (e executions) GetExecution(_ context.Context, req *connect.Request[skerryv1.GetExecutionRequest]) (*connect.Response[skerryv1.GetExecutionResponse], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ex := e.executions[req.Msg.GetExecutionId()]
	if ex == nil || ex.GetAgent() != req.Header().Get(skerryv1.HeaderAgent) {
		return nil, problem.Connect(problem.Missing("executionId", "no such execution"))
	}
	return connect.NewResponse(&skerryv1.GetExecutionResponse{Execution: ex}), nil
}

// ListExecutions implements ExecutionServiceHandler.
func (e executions) ListExecutions(_ context.Context, req *connect.Request[skerryv1.ListExecutionsRequest]) (*connect.Response[skerryv1.ListExecutionsResponse], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []*skerryv1.Execution
	for id, ex := range e.executions {
		if ex.GetAgent() == req.Header().Get(skerryv1.HeaderAgent) && (req.Msg.GetPageToken() == "" || id < req.Msg.GetPageToken()) {
			found = append(found, ex)
		}
	}
	slices.SortFunc(found, func(a, b *skerryv1.Execution) int { return strings.Compare(b.GetId(), a.GetId()) })
	out := &skerryv1.ListExecutionsResponse{Executions: found}
	if n := int(req.Msg.GetLimit()); len(found) > n {
		out.Executions = found[:n]
		out.NextPageToken = found[n-1].GetId()
	}
	return connect.NewResponse(out), nil
}

// FollowExecutionLogs implements ExecutionServiceHandler: three records, then the end.
func (e executions) FollowExecutionLogs(ctx context.Context, req *connect.Request[skerryv1.FollowExecutionLogsRequest], out *connect.ServerStream[skerryv1.FollowExecutionLogsResponse]) error {
	if err := e.refuse(req.Header(), req.Msg.GetExecutionId()); err != nil {
		return err
	}
	if e.OnFollow != nil {
		return e.OnFollow(ctx, req.Msg, out)
	}
	for i := range 3 {
		msg := &skerryv1.FollowExecutionLogsResponse{NextCursor: uint64(i + 1),
			Records: []*skerryv1.LogRecord{{Cursor: uint64(i), Stream: "stdout", Data: []byte{'a' + byte(i)}}}}
		if err := out.Send(msg); err != nil {
			return err
		}
	}
	return out.Send(&skerryv1.FollowExecutionLogsResponse{NextCursor: 3, End: true})
}

type files struct {
	rpc.UnimplementedFileServiceHandler
	*Runner
}

// ListFiles implements FileServiceHandler; it names the workspace as the snapshot.
func (f files) ListFiles(_ context.Context, req *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error) {
	return connect.NewResponse(&skerryv1.ListFilesResponse{Snapshot: req.Header().Get(skerryv1.HeaderWorkspace)}), nil
}

// ReadFile implements FileServiceHandler; it refuses with every field of a Problem.
func (f files) ReadFile(context.Context, *connect.Request[skerryv1.ReadFileRequest]) (*connect.Response[skerryv1.ReadFileResponse], error) {
	return nil, problem.Connect(&problem.Error{Code: connect.CodeFailedPrecondition, Reason: problem.PathSensitive,
		Message: "is sensitive", Field: "path", Limit: "limit", Remedy: "remedy", Retryable: true})
}

// UploadFile implements FileServiceHandler; only a stream that ends in order is kept.
func (f files) UploadFile(_ context.Context, in *connect.ClientStream[skerryv1.UploadFileRequest]) (*connect.Response[skerryv1.UploadFileResponse], error) {
	var path string
	var data []byte
	for in.Receive() {
		if h := in.Msg().GetHeader(); h != nil {
			path = h.GetPath()
			f.mu.Lock()
			f.started++
			f.mu.Unlock()
			if path == "refused" {
				return nil, problem.Connect(problem.Invalid("path", "choose another", "is refused"))
			}
		}
		data = append(data, in.Msg().GetData()...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := in.Err(); err != nil {
		f.broken = append(f.broken, err)
		return nil, err
	}
	f.files[path] = data
	return connect.NewResponse(&skerryv1.UploadFileResponse{BytesWritten: uint64(len(data))}), nil
}

// DownloadFile implements FileServiceHandler.
func (f files) DownloadFile(_ context.Context, req *connect.Request[skerryv1.DownloadFileRequest], out *connect.ServerStream[skerryv1.DownloadFileResponse]) error {
	data := f.File(req.Msg.GetPath())
	if data == nil {
		return problem.Connect(problem.Missing("path", "no such file"))
	}
	header := &skerryv1.DownloadFileResponse{Part: &skerryv1.DownloadFileResponse_Header{
		Header: &skerryv1.FileInfo{Path: req.Msg.GetPath(), Size: uint64(len(data))}}}
	if err := out.Send(header); err != nil {
		return err
	}
	for piece := range slices.Chunk(data, 64<<10) {
		if err := out.Send(&skerryv1.DownloadFileResponse{Part: &skerryv1.DownloadFileResponse_Data{Data: piece}}); err != nil {
			return err
		}
	}
	return nil
}

type workspaces struct {
	rpc.UnimplementedWorkspaceServiceHandler
	*Runner
}

// History implements WorkspaceServiceHandler.
func (w workspaces) History(_ context.Context, req *connect.Request[skerryv1.HistoryRequest]) (*connect.Response[skerryv1.HistoryResponse], error) {
	return connect.NewResponse(&skerryv1.HistoryResponse{NextPageToken: req.Header().Get(skerryv1.HeaderEpoch)}), nil
}

// PortForward implements ExecutionServiceHandler: it sends back what comes.
func (e executions) PortForward(_ context.Context, stream *connect.BidiStream[skerryv1.PortForwardRequest, skerryv1.PortForwardResponse]) error {
	for {
		msg, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && msg.GetExecutionId() != "" {
			err = e.refuse(stream.RequestHeader(), msg.GetExecutionId())
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&skerryv1.PortForwardResponse{Data: msg.GetData()}); err != nil {
			return err
		}
	}
}
