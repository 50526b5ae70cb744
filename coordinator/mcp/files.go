package mcp

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/proto/wire"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// listedFiles is how many entries a page has unless more are asked for.
	listedFiles = 200
	maxListed   = 500
	// maxListJSON bounds the structured form of a page of entries: 500 of
	// usual length fit.
	maxListJSON = 160 << 10
	maxContent  = 8 << 20
)

func listFiles(c Files) tool {
	return tool{
		name: "list_files", title: "List files",
		description: "List files, directories and symlinks of the last committed snapshot of the workspace, with type, size and time. Symlinks are not followed. " +
			"A page that is not the last has a cursor to go on from; all its pages are of the same snapshot.",
		params: []param{
			{name: "path", kind: text, doc: "Directory, relative to the workspace; default: its root."},
			{name: "glob", kind: text, doc: "Only what matches, relative to path; ** crosses directories: **/*.csv"},
			{name: "recursive", kind: flag, doc: "Also what lies in directories below."},
			{name: "limit", kind: number, least: 1, most: maxListed, doc: "At most this many entries; default 200."},
			{name: "cursor", kind: text, doc: "Go on where an earlier page ended, with the same other parameters."},
		},
		hints: hints{readOnly: true, idempotent: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			req := &skerryv1.ListFilesRequest{Path: get[string](a, "path"), Glob: get[string](a, "glob"), Recursive: get[bool](a, "recursive"),
				Limit: listedFiles, PageToken: get[string](a, "cursor")}
			if n := get[int64](a, "limit"); n > 0 {
				req.Limit = uint32(n)
			}
			page, err := listFit(ctx, c, req)
			if err != nil {
				return nil, err
			}
			return message(page, listText(req.Path, page))
		},
	}
}

// listFit lists a page that fits a result. When names are so long that it does
// not, it asks again for as many as fit, since only the API can make the cursor.
func listFit(ctx context.Context, c Files, req *skerryv1.ListFilesRequest) (*skerryv1.ListFilesResponse, error) {
	res, err := c.ListFiles(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	n, err := fitting(res.Msg.Files)
	if err != nil || n == len(res.Msg.Files) {
		return res.Msg, err
	}
	req.Limit = uint32(n)
	if req.PageToken == "" {
		req.Snapshot = res.Msg.Snapshot
	}
	if res, err = c.ListFiles(ctx, connect.NewRequest(req)); err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// fitting is how many entries fit both forms of a result, at least one.
func fitting(files []*skerryv1.FileInfo) (int, error) {
	const head = 1 << 10
	inText, inJSON := maxText-head, maxListJSON-head
	for i, f := range files {
		b, err := wire.MarshalJSON(f)
		if err != nil {
			return 0, fmt.Errorf("encode result: %w", err)
		}
		inText -= len(fileText(f))
		inJSON -= len(b) + 1
		if i > 0 && (inText < 0 || inJSON < 0) {
			return i, nil
		}
	}
	return len(files), nil
}

func listText(dir string, page *skerryv1.ListFilesResponse) string {
	var out strings.Builder
	if dir == "" {
		dir = "the workspace"
	}
	fmt.Fprintf(&out, "%d entries of %s", len(page.Files), pathText(dir))
	if page.Snapshot == "" {
		out.WriteString("; nothing was committed yet\n")
	} else {
		fmt.Fprintf(&out, ", snapshot %s\n", page.Snapshot)
	}
	for _, f := range page.Files {
		out.WriteString(fileText(f))
	}
	if page.NextPageToken != "" {
		fmt.Fprintf(&out, "there are more: cursor %q\n", page.NextPageToken)
	}
	return out.String()
}

func fileText(f *skerryv1.FileInfo) string {
	name := pathText(f.Path)
	if f.Type == "symlink" {
		name += " -> " + pathText(f.SymlinkTarget)
	}
	return fmt.Sprintf("%-7s %10d  %s  %s\n", f.Type, f.Size, stamp(f.Mtime), name)
}

func readFile(c Files) tool {
	return tool{
		name: "read_file", title: "Read a file",
		description: "Read one page of a text file of the last committed snapshot: at most 2000 lines or 40 KiB, with the line to go on from. " +
			"The second block of the answer is the text itself. A binary file gives its media type, size and SHA-256 instead.",
		params: []param{
			{name: "path", kind: text, required: true, doc: "File, relative to the workspace."},
			{name: "offset", kind: number, least: 1, doc: "First line, from 1; default 1."},
			{name: "limit", kind: number, least: 1, most: 2000, doc: "At most this many lines; default 2000."},
		},
		hints: hints{readOnly: true, idempotent: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			res, err := c.ReadFile(ctx, connect.NewRequest(&skerryv1.ReadFileRequest{Path: get[string](a, "path"),
				Offset: uint64(get[int64](a, "offset")), Limit: uint32(get[int64](a, "limit"))}))
			if err != nil {
				return nil, err
			}
			blocks := []string{readText(res.Msg)}
			if res.Msg.Text != "" {
				blocks = append(blocks, res.Msg.Text)
			}
			return message(res.Msg, blocks...)
		},
	}
}

func readText(r *skerryv1.ReadFileResponse) string {
	f := r.File
	out := fmt.Sprintf("%s, %d bytes, %s", pathText(f.GetPath()), f.GetSize(), f.GetDigest())
	switch {
	case r.Binary:
		return out + fmt.Sprintf(", binary, %s: not shown; work on it with a command", r.MediaType)
	case r.Lines == 0:
		out += fmt.Sprintf(", no lines from %d on", r.Offset)
	default:
		out += fmt.Sprintf(", lines %d to %d", r.Offset, r.Offset+uint64(r.Lines)-1)
	}
	if r.OmittedBytes > 0 {
		out += fmt.Sprintf(", %d bytes of an over-long line omitted: read it with a command such as cut", r.OmittedBytes)
	}
	if r.NextOffset > 0 {
		return out + fmt.Sprintf("; more from offset %d", r.NextOffset)
	}
	return out + "; the end"
}

func writeFile(c Files) tool {
	return tool{
		name: "write_file", title: "Write a file",
		description: "Write a text file of at most 8 MiB in the workspace in one step, with the directories above it, and commit it.",
		params: []param{
			{name: "path", kind: text, required: true, doc: "File, relative to the workspace."},
			{name: "content", kind: text, required: true, bytes: maxContent, doc: "The whole text, or with if_exists append what to add; at most 8 MiB."},
			{name: "if_exists", kind: text, enum: []string{"error", "overwrite", "append"}, doc: "What to do when the path exists; default error."},
		},
		hints: hints{destructive: true},
		call: func(ctx context.Context, a arguments) (*result, error) {
			res, err := c.WriteFile(ctx, connect.NewRequest(&skerryv1.WriteFileRequest{Path: get[string](a, "path"), IfExists: get[string](a, "if_exists"),
				Content: &skerryv1.WriteFileRequest_Text{Text: get[string](a, "content")}}))
			if err != nil {
				return nil, err
			}
			f := res.Msg.File
			boundSkipped(res.Msg.Snapshot, skippedPaths)
			return message(res.Msg, fmt.Sprintf("wrote %d bytes; %s has %d bytes, %s; snapshot %s",
				res.Msg.BytesWritten, pathText(f.GetPath()), f.GetSize(), f.GetDigest(), res.Msg.Snapshot.GetDigest()))
		},
	}
}
