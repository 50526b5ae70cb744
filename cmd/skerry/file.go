package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const uploadChunk = 256 << 10

func (a *app) fileCommand() *cobra.Command {
	var runner, id, branch string
	selector := func() *skerryv1.WorkspaceSelector {
		return &skerryv1.WorkspaceSelector{Runner: runner, Id: id, Branch: branch}
	}
	c := &cobra.Command{Use: "file", Short: "List, read and write workspace files", Example: "  skerry file put data.csv input/data.csv"}
	c.PersistentFlags().StringVar(&runner, "runner", "", "the workspace on this runner (default: the one that the agent uses)")
	c.PersistentFlags().StringVar(&id, "workspace", "", "the workspace with this id")
	c.PersistentFlags().StringVar(&branch, "branch", "", "this branch of a workspace, for reading")
	c.AddCommand(a.fileList(selector), a.fileCat(selector), a.filePut(selector), a.fileGet(selector), a.fileRemove(selector), a.fileHistory(selector))
	return group(c)
}

type selector func() *skerryv1.WorkspaceSelector

func (a *app) fileList(workspace selector) *cobra.Command {
	req := &skerryv1.ListFilesRequest{}
	c := &cobra.Command{
		Use: "ls [PATH]", Short: "List files of the last snapshot", Example: "  skerry file ls --recursive --glob '**/*.csv'", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace = workspace()
			if len(args) > 0 {
				req.Path = args[0]
			}
			res, err := c.files.ListFiles(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			var rows [][]string
			for _, f := range res.Msg.Files {
				name := f.Path
				if f.Type == "symlink" {
					name += " -> " + f.SymlinkTarget
				}
				rows = append(rows, []string{f.Type, fmt.Sprintf("%04o", f.Mode), fmt.Sprint(f.Size), stamp(f.Mtime), name})
			}
			if err := a.table(rows); err != nil || res.Msg.NextPageToken == "" {
				return err
			}
			_, err = fmt.Fprintf(a.stderr, "more: --page %s\n", res.Msg.NextPageToken)
			return err
		},
	}
	c.Flags().BoolVarP(&req.Recursive, "recursive", "r", false, "also what lies in directories below")
	c.Flags().StringVar(&req.Glob, "glob", "", "only what matches; ** crosses directories")
	c.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many (at most 500)")
	c.Flags().StringVar(&req.PageToken, "page", "", "continue a list")
	c.Flags().StringVar(&req.Snapshot, "snapshot", "", "of this snapshot instead of the last")
	return c
}

func (a *app) fileCat(workspace selector) *cobra.Command {
	var snapshot string
	c := &cobra.Command{
		Use: "cat PATH", Short: "Print a file of the last snapshot", Example: "  skerry file cat result.csv", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			if a.json {
				res, err := c.files.ReadFile(cmd.Context(), connect.NewRequest(&skerryv1.ReadFileRequest{Workspace: workspace(), Path: args[0], Snapshot: snapshot}))
				if err != nil {
					return err
				}
				return a.printJSON(res.Msg)
			}
			_, err = download(cmd.Context(), c, &skerryv1.DownloadFileRequest{Workspace: workspace(), Path: args[0], Snapshot: snapshot}, a.stdout)
			return err
		},
	}
	c.Flags().StringVar(&snapshot, "snapshot", "", "of this snapshot instead of the last")
	return c
}

// download streams a file to w and checks its digest.
func download(ctx context.Context, c *clients, req *skerryv1.DownloadFileRequest, w io.Writer) (*skerryv1.FileInfo, error) {
	stream, err := c.files.DownloadFile(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	sum := sha256.New()
	var info *skerryv1.FileInfo
	for stream.Receive() {
		if h := stream.Msg().GetHeader(); h != nil {
			info = h
			continue
		}
		sum.Write(stream.Msg().GetData())
		if _, err := w.Write(stream.Msg().GetData()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); info == nil || got != info.Digest {
		return nil, fmt.Errorf("%s: received %s, not %s; the download is damaged or incomplete", req.Path, got, info.GetDigest())
	}
	return info, nil
}

func (a *app) fileGet(workspace selector) *cobra.Command {
	var snapshot string
	c := &cobra.Command{
		Use: "get REMOTE [LOCAL]", Short: "Copy a file of the last snapshot here", Example: "  skerry file get plots/a.svg a.svg", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			local := filepath.Base(args[0])
			if len(args) > 1 {
				local = args[1]
			}
			c, err := a.clients()
			if err != nil {
				return err
			}
			tmp, err := os.CreateTemp(filepath.Dir(local), ".skerry-get-*")
			if err != nil {
				return err
			}
			defer func() { _ = os.Remove(tmp.Name()) }()
			info, err := download(cmd.Context(), c, &skerryv1.DownloadFileRequest{Workspace: workspace(), Path: args[0], Snapshot: snapshot}, tmp)
			if err == nil {
				err = tmp.Chmod(os.FileMode(info.Mode & 0o777))
			}
			if err := errors.Join(err, tmp.Close()); err != nil {
				return err
			}
			if err := os.Rename(tmp.Name(), local); err != nil || !a.json {
				return err
			}
			return a.printJSON(info)
		},
	}
	c.Flags().StringVar(&snapshot, "snapshot", "", "of this snapshot instead of the last")
	return c
}

func (a *app) filePut(workspace selector) *cobra.Command {
	var ifExists string
	c := &cobra.Command{
		Use: "put LOCAL [REMOTE]", Short: "Copy a local file (- for standard input) into the workspace", Args: cobra.RangeArgs(1, 2),
		Example: "  skerry file put data.csv input/data.csv\n  seq 10 | skerry file put - numbers.txt --if-exists overwrite",
		RunE: func(cmd *cobra.Command, args []string) error {
			remote := filepath.Base(args[0])
			if len(args) > 1 {
				remote = args[1]
			}
			in, mode, err := a.openInput(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }()
			c, err := a.clients()
			if err != nil {
				return err
			}
			res, err := upload(cmd.Context(), c, &skerryv1.UploadHeader{Workspace: workspace(), Path: remote, IfExists: ifExists, Mode: mode}, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res)
			}
			_, err = fmt.Fprintf(a.stdout, "%s  %d bytes  %s\n", oneLine(res.File.Path), res.BytesWritten, res.File.Digest)
			return err
		},
	}
	c.Flags().StringVar(&ifExists, "if-exists", "error", "error, overwrite or append")
	choices(c, "if-exists", "error", "overwrite", "append")
	return c
}

func (a *app) openInput(name string) (*os.File, uint32, error) {
	if name == "-" {
		return a.stdin, 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	if info.IsDir() {
		return nil, 0, errors.Join(fmt.Errorf("%s is a directory; put files one by one, or tar it and unpack it with skerry sh", name), f.Close())
	}
	return f, uint32(info.Mode().Perm()), nil
}

func upload(ctx context.Context, c *clients, header *skerryv1.UploadHeader, in io.Reader) (*skerryv1.UploadFileResponse, error) {
	stream := c.files.UploadFile(ctx)
	sendErr := stream.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Header{Header: header}})
	buf := make([]byte, uploadChunk)
	for sendErr == nil {
		n, err := io.ReadFull(in, buf)
		if n > 0 {
			sendErr = stream.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Data{Data: buf[:n]}})
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read input: %w", err) // the stream is left open and so never committed
		}
	}
	// A failed send means that the server has answered already: its answer says why.
	res, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func (a *app) fileHistory(workspace selector) *cobra.Command {
	req := &skerryv1.FileHistoryRequest{}
	c := &cobra.Command{
		Use: "history PATH", Short: "List the snapshots that changed a path, newest first", Example: "  skerry file history results/table.csv", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace, req.Path = workspace(), args[0]
			res, err := c.files.FileHistory(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			rows := [][]string{{"SEQ", "TIME", "CHANGE", "SIZE", "DIGEST", "SNAPSHOT", "MADE BY"}}
			for _, r := range res.Msg.Revisions {
				rows = append(rows, []string{fmt.Sprint(r.GetRevision().GetSnapshot().GetSeq()), stamp(r.GetRevision().GetTime()), r.Change, fmt.Sprint(r.GetFile().GetSize()),
					short(r.GetFile().GetDigest()), short(r.GetRevision().GetSnapshot().GetDigest()), r.GetRevision().GetSourceKind() + " " + r.GetRevision().GetSource()})
			}
			if err := a.table(rows); err != nil || res.Msg.NextPageToken == "" {
				return err
			}
			_, err = fmt.Fprintf(a.stderr, "more: --page %s\n", res.Msg.NextPageToken)
			return err
		},
	}
	c.Flags().Uint32Var(&req.Limit, "limit", 0, "at most this many (default 50, at most 1000)")
	c.Flags().StringVar(&req.PageToken, "page", "", "continue a list")
	return c
}

func (a *app) fileRemove(workspace selector) *cobra.Command {
	req := &skerryv1.DeleteFileRequest{}
	c := &cobra.Command{
		Use: "rm PATH", Short: "Delete a file, symlink or directory",
		Long: "Delete a file, symlink or directory. It also works in a workspace that needs repair, to make room on a full disk:\n" +
			"run `skerry workspace repair` afterwards.",
		Example: "  skerry file rm --recursive scratch", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clients()
			if err != nil {
				return err
			}
			req.Workspace, req.Path = workspace(), args[0]
			res, err := c.files.DeleteFile(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(res.Msg)
			}
			if res.Msg.Snapshot == nil {
				_, err = fmt.Fprintln(a.stderr, "deleted; now run: skerry workspace repair")
			}
			return err
		},
	}
	c.Flags().BoolVarP(&req.Recursive, "recursive", "r", false, "delete a directory with all below it")
	return c
}
