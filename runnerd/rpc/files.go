package rpc

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/cas"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/workspace"
)

const (
	maxWrite      = 8 << 20
	downloadChunk = 256 << 10
	maxListed     = 500
	// leaseWait is how long a write waits for what runs in the workspace.
	leaseWait = 10 * time.Second
)

type files struct{ *Services }

func (s files) view(ctx context.Context, h http.Header, snapshot string) (*workspace.View, error) {
	w, err := s.workspaceOf(ctx, h)
	if err != nil {
		return nil, err
	}
	return w.View(ctx, snapshot)
}

// ListFiles implements FileService.
func (s files) ListFiles(ctx context.Context, req *connect.Request[skerryv1.ListFilesRequest]) (*connect.Response[skerryv1.ListFilesResponse], error) {
	limit, err := limited("limit", req.Msg.Limit, maxListed, maxListed)
	if err != nil {
		return nil, err
	}
	list := workspace.List{Path: req.Msg.Path, Recursive: req.Msg.Recursive, Limit: limit}
	if req.Msg.Glob != "" {
		if list.Glob, err = workspace.ParseGlob("glob", req.Msg.Glob); err != nil {
			return nil, err
		}
		// A pattern with directories is about what lies below.
		list.Recursive = list.Recursive || strings.Contains(req.Msg.Glob, "/")
	}
	after, snapshot, err := parsePage(req.Msg.PageToken, req.Msg.Snapshot)
	if err != nil {
		return nil, err
	}
	list.After = after
	v, err := s.view(ctx, req.Header(), snapshot)
	if err != nil {
		return nil, err
	}
	found, more, err := v.List(ctx, list)
	if err != nil {
		return nil, err
	}
	out := &skerryv1.ListFilesResponse{Files: found, Snapshot: v.Digest()}
	if more {
		out.NextPageToken = pageToken(v.Digest(), found[len(found)-1])
	}
	return connect.NewResponse(out), nil
}

// A page token carries the snapshot too, so that all pages are of one.
func pageToken(snapshot string, last *skerryv1.FileInfo) string {
	p := last.RawPath
	if p == nil {
		p = []byte(last.Path)
	}
	return snapshot + "/" + base64.RawURLEncoding.EncodeToString(p)
}

func parsePage(token, snapshot string) (after, fixed string, err error) {
	if token == "" {
		return "", snapshot, nil
	}
	bad := problem.Invalid("pageToken", "pass on a nextPageToken as it came", "is not valid")
	const digestLen = len("sha256:") + 64
	if len(token) < digestLen+1 || token[digestLen] != '/' {
		return "", "", bad
	}
	p, err := base64.RawURLEncoding.DecodeString(token[digestLen+1:])
	if err != nil || len(p) > workspace.MaxPath*2 {
		return "", "", bad
	}
	return string(p), token[:digestLen], nil
}

// ReadFile implements FileService.
func (s files) ReadFile(ctx context.Context, req *connect.Request[skerryv1.ReadFileRequest]) (*connect.Response[skerryv1.ReadFileResponse], error) {
	limit, err := limited("limit", req.Msg.Limit, workspace.MaxPageLines, workspace.MaxPageLines)
	if err != nil {
		return nil, err
	}
	v, err := s.view(ctx, req.Header(), req.Msg.Snapshot)
	if err != nil {
		return nil, err
	}
	page, err := v.ReadText(ctx, req.Msg.Path, req.Msg.Offset, limit)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(page), nil
}

// WriteFile implements FileService.
func (s files) WriteFile(ctx context.Context, req *connect.Request[skerryv1.WriteFileRequest]) (*connect.Response[skerryv1.WriteFileResponse], error) {
	content := req.Msg.GetData()
	if text := req.Msg.GetText(); text != "" {
		content = []byte(text)
	}
	if len(content) > maxWrite {
		return nil, problem.Limit("content", "8388608 bytes", "use UploadFile")
	}
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	write := workspace.Write{Path: req.Msg.Path, IfExists: req.Msg.IfExists, Mode: req.Msg.Mode}
	if _, err := w.Check(write); err != nil {
		return nil, err
	}
	staged, err := w.Stage()
	if err != nil {
		return nil, err
	}
	defer func() { _ = staged.Close() }()
	if _, err := staged.Write(content); err != nil {
		return nil, err
	}
	file, snapshot, err := s.install(ctx, w, staged, write, "write:")
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.WriteFileResponse{BytesWritten: uint64(len(content)), File: file, Snapshot: snapshot}), nil
}

// install takes the workspace's lease, puts the file in and commits.
func (s files) install(ctx context.Context, w *workspace.Workspace, staged *workspace.Staged, write workspace.Write, kind string) (*skerryv1.FileInfo, *skerryv1.Snapshot, error) {
	release, err := lease(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	if err := staged.Install(ctx, write); err != nil {
		return nil, nil, err
	}
	// The file is in its place: the commit goes on though the caller leaves.
	committed, err := w.Commit(context.WithoutCancel(ctx), kind+write.Path)
	if err != nil {
		return nil, nil, problem.New(connect.CodeInternal, problem.StoreFailed, "the file is in the workspace; call RepairWorkspace to commit it",
			"the file was written but not committed").Because(err)
	}
	v, err := w.View(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	entry, path, err := v.Lookup(ctx, write.Path, false)
	if err != nil {
		return nil, nil, err
	}
	return workspace.FileInfo(path, entry), committed.Snapshot, nil
}

// lease waits a bounded time for the workspace to have no other writer.
func lease(ctx context.Context, w *workspace.Workspace) (release func(), err error) {
	if err := w.Admit(ctx); err != nil {
		return nil, err
	}
	return leaseAnyway(ctx, w)
}

// leaseAnyway is lease where the host need not have room.
func leaseAnyway(ctx context.Context, w *workspace.Workspace) (release func(), err error) {
	ticket, err := w.Queue()
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, leaseWait)
	defer cancel()
	if err := ticket.Wait(waiting); err != nil {
		ticket.Release()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, problem.New(connect.CodeUnavailable, problem.WorkspaceBusy, "wait for the running execution or cancel it, then try again",
			"an execution holds the workspace; waited %s", leaseWait).Retry()
	}
	if err := w.Writable(); err != nil {
		ticket.Release()
		return nil, err
	}
	return ticket.Release, nil
}

// UploadFile implements FileService. The content is received beside the
// workspace, which is held only to put it in.
func (s files) UploadFile(ctx context.Context, stream *connect.ClientStream[skerryv1.UploadFileRequest]) (*connect.Response[skerryv1.UploadFileResponse], error) {
	if !stream.Receive() {
		return nil, streamEnd(stream.Err())
	}
	header := stream.Msg().GetHeader()
	if header == nil {
		return nil, problem.Invalid("header", "send the header in the first message", "is missing")
	}
	w, err := s.workspaceOf(ctx, stream.RequestHeader())
	if err != nil {
		return nil, err
	}
	write := workspace.Write{Path: header.Path, IfExists: header.IfExists, Mode: header.Mode}
	if header.Digest != "" {
		if write.Digest, err = cas.ParseDigest(header.Digest); err != nil {
			return nil, problem.Invalid("digest", "use sha256: and 64 hex digits", "is no digest")
		}
	}
	if _, err := w.Check(write); err != nil {
		return nil, err
	}
	staged, err := w.Stage()
	if err != nil {
		return nil, err
	}
	defer func() { _ = staged.Close() }()
	for stream.Receive() {
		if stream.Msg().GetHeader() != nil {
			return nil, problem.Invalid("header", "send one header, then data; upload each file in its own call", "came twice")
		}
		if _, err := staged.Write(stream.Msg().GetData()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	received := staged.Bytes
	file, snapshot, err := s.install(ctx, w, staged, write, "upload:")
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.UploadFileResponse{BytesWritten: uint64(received), File: file, Snapshot: snapshot}), nil
}

func streamEnd(err error) error {
	if err == nil {
		return problem.Invalid("header", "send the header in the first message", "the stream is empty")
	}
	return err
}

// DownloadFile implements FileService.
func (s files) DownloadFile(ctx context.Context, req *connect.Request[skerryv1.DownloadFileRequest], stream *connect.ServerStream[skerryv1.DownloadFileResponse]) error {
	v, err := s.view(ctx, req.Header(), req.Msg.Snapshot)
	if err != nil {
		return err
	}
	file, info, err := v.Open(ctx, req.Msg.Path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if req.Msg.Offset > info.Size {
		return problem.Invalid("offset", "use an offset within the file", "%d is behind the end at %d", req.Msg.Offset, info.Size)
	}
	if err := stream.Send(&skerryv1.DownloadFileResponse{Part: &skerryv1.DownloadFileResponse_Header{Header: info}}); err != nil {
		return err
	}
	if _, err := file.Seek(int64(req.Msg.Offset), io.SeekStart); err != nil {
		return err
	}
	buf := make([]byte, downloadChunk)
	for {
		n, err := io.ReadFull(file, buf)
		if n > 0 {
			if err := stream.Send(&skerryv1.DownloadFileResponse{Part: &skerryv1.DownloadFileResponse_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// FileHistory implements FileService.
func (s files) FileHistory(ctx context.Context, req *connect.Request[skerryv1.FileHistoryRequest]) (*connect.Response[skerryv1.FileHistoryResponse], error) {
	limit, err := limited("limit", req.Msg.Limit, 50, 1000)
	if err != nil {
		return nil, err
	}
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	found, next, err := w.FileHistory(ctx, req.Msg.Path, req.Msg.PageToken, limit)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.FileHistoryResponse{Revisions: found, NextPageToken: next}), nil
}

// DeleteFile implements FileService.
func (s files) DeleteFile(ctx context.Context, req *connect.Request[skerryv1.DeleteFileRequest]) (*connect.Response[skerryv1.DeleteFileResponse], error) {
	w, err := s.workspaceOf(ctx, req.Header())
	if err != nil {
		return nil, err
	}
	if err := w.Writable(); err != nil && w.Fenced() {
		return nil, err
	} else if err != nil {
		if err := w.Delete(req.Msg.Path, req.Msg.Recursive); err != nil {
			return nil, err
		}
		return connect.NewResponse(&skerryv1.DeleteFileResponse{}), nil
	}
	release, err := leaseAnyway(ctx, w)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := w.Delete(req.Msg.Path, req.Msg.Recursive); err != nil {
		return nil, err
	}
	committed, err := w.Commit(context.WithoutCancel(ctx), "delete:"+req.Msg.Path)
	if err != nil {
		return nil, problem.New(connect.CodeInternal, problem.StoreFailed, "call RepairWorkspace to commit it", "the path was deleted but that is not committed").Because(err)
	}
	return connect.NewResponse(&skerryv1.DeleteFileResponse{Snapshot: committed.Snapshot, Changes: committed.Changes}), nil
}
