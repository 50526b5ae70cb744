package coordinator

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// fileService is FileService.
type fileService struct{ c *Coordinator }

// ListFiles implements FileServiceHandler.
func (s fileService) ListFiles(ctx context.Context, req *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.files.ListFiles, reads)
}

// ReadFile implements FileServiceHandler.
func (s fileService) ReadFile(ctx context.Context, req *connect.Request[skerryv1.ReadFileRequest]) (*connect.Response[skerryv1.ReadFileResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.files.ReadFile, reads)
}

// FileHistory implements FileServiceHandler.
func (s fileService) FileHistory(ctx context.Context, req *connect.Request[skerryv1.FileHistoryRequest]) (*connect.Response[skerryv1.FileHistoryResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.files.FileHistory, reads)
}

// DeleteFile implements FileServiceHandler. Deleting twice is another answer.
func (s fileService) DeleteFile(ctx context.Context, req *connect.Request[skerryv1.DeleteFileRequest]) (*connect.Response[skerryv1.DeleteFileResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.files.DeleteFile, appending)
}

// WriteFile implements FileServiceHandler.
func (s fileService) WriteFile(ctx context.Context, req *connect.Request[skerryv1.WriteFileRequest]) (*connect.Response[skerryv1.WriteFileResponse], error) {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return forward(ctx, to, req.Msg, to.link.files.WriteFile, byMode(req.Msg.GetIfExists()))
}

// byMode is the effect of writing a file: the same whole content twice is the
// same file, appending twice is not.
func byMode(ifExists string) effect {
	if ifExists == "overwrite" {
		return repeatable
	}
	return appending
}

// DownloadFile implements FileServiceHandler.
func (s fileService) DownloadFile(ctx context.Context, req *connect.Request[skerryv1.DownloadFileRequest], out *connect.ServerStream[skerryv1.DownloadFileResponse]) error {
	to, err := s.c.routeSelector(ctx, req.Msg.GetWorkspace())
	if err != nil {
		return err
	}
	return relay(ctx, to, req.Msg, out, to.link.files.DownloadFile)
}

// UploadFile implements FileServiceHandler. The header routes the stream.
func (s fileService) UploadFile(ctx context.Context, in *connect.ClientStream[skerryv1.UploadFileRequest]) (*connect.Response[skerryv1.UploadFileResponse], error) {
	if !in.Receive() {
		if err := in.Err(); err != nil {
			return nil, err
		}
		return nil, noHeader()
	}
	header := in.Msg().GetHeader()
	if header == nil {
		return nil, noHeader()
	}
	to, err := s.c.routeSelector(ctx, header.GetWorkspace())
	if err != nil {
		return nil, err
	}
	return upload(ctx, to, in, byMode(header.GetIfExists()))
}

func noHeader() *problem.Error {
	return problem.Invalid("header", "send the header as the first message, then data", "the first message is no header")
}

// upload copies the caller's stream to the runner. When the caller's stream
// breaks, the runner's is reset, never ended: an end would make it commit half
// a file.
func upload(ctx context.Context, to target, in *connect.ClientStream[skerryv1.UploadFileRequest], e effect) (*connect.Response[skerryv1.UploadFileResponse], error) {
	ctx, reset := context.WithCancel(ctx)
	defer reset()
	out := to.link.files.UploadFile(ctx)
	to.address(ctx, out.RequestHeader())
	for more := true; more; more = in.Receive() {
		err := out.Send(in.Msg())
		if errors.Is(err, io.EOF) {
			break // the runner has answered already; CloseAndReceive gives its error
		}
		if err != nil {
			return nil, to.failure(ctx, err, e)
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	res, err := out.CloseAndReceive()
	if err != nil {
		return nil, to.failure(ctx, err, e)
	}
	return connect.NewResponse(res.Msg), nil
}
