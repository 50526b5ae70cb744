package mcp

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// listing serves n files; the page token is the number of the next.
func listing(n int, name string, asked *[]*skerryv1.ListFilesRequest) func(*skerryv1.ListFilesRequest) (*skerryv1.ListFilesResponse, error) {
	return func(r *skerryv1.ListFilesRequest) (*skerryv1.ListFilesResponse, error) {
		*asked = append(*asked, r)
		var from int
		_, _ = fmt.Sscan(r.PageToken, &from)
		out := &skerryv1.ListFilesResponse{Snapshot: "sha256:1"}
		for i := from; i < n && len(out.Files) < int(r.Limit); i++ {
			out.Files = append(out.Files, &skerryv1.FileInfo{Path: fmt.Sprintf("%s%05d", name, i), Type: "file", Size: 1, Mtime: timestamppb.Now(),
				Mode: 0o644, Digest: "sha256:" + strings.Repeat("0", 64)})
		}
		if next := from + len(out.Files); next < n {
			out.NextPageToken = fmt.Sprint(next)
		}
		return out, nil
	}
}

func TestListFilesPages(t *testing.T) {
	for _, k := range []struct {
		name                 string
		files, limit, atOnce int
	}{{"data/sample_", 1200, 500, 500}, {"data/sample_", 500, 0, 200}, {strings.Repeat("long/", 400), 100, 500, 0}, {strings.Repeat("\u0001", 4000), 20, 500, 0}} {
		t.Run(fmt.Sprintf("%.10q %d", k.name, k.limit), func(t *testing.T) {
			var asked []*skerryv1.ListFilesRequest
			s := newSession(t, &fake{t: t, ls: listing(k.files, k.name, &asked)})
			seen, cursor := 0, ""
			for {
				args := fmt.Sprintf(`{"path":"p","glob":"g","recursive":true,"cursor":%q`, cursor)
				if k.limit > 0 {
					args += fmt.Sprintf(`,"limit":%d`, k.limit)
				}
				a := s.good("list_files", args+"}")
				if len(a.text[0]) > maxText || a.size > maxListJSON {
					t.Fatalf("a page of %d bytes of text, %d of JSON", len(a.text[0]), a.size)
				}
				files := a.json["files"].([]any)
				if k.atOnce > 0 && cursor == "" && len(files) != k.atOnce {
					t.Errorf("the first page has %d", len(files))
				}
				for _, f := range files {
					if want := fmt.Sprintf("%s%05d", k.name, seen); f.(map[string]any)["path"] != want {
						t.Fatalf("entry %d is %v", seen, f)
					}
					seen++
				}
				if cursor = a.json["nextPageToken"].(string); cursor == "" {
					break
				}
				if !strings.Contains(a.text[0], fmt.Sprintf("cursor %q", cursor)) {
					t.Error("the text lacks the cursor")
				}
			}
			if seen != k.files {
				t.Errorf("%d of %d seen", seen, k.files)
			}
			if r := asked[0]; r.Path != "p" || r.Glob != "g" || !r.Recursive {
				t.Errorf("asked %v", r)
			}
		})
	}
}

func TestListFilesShowsSymlinksAndForgedNames(t *testing.T) {
	s := newSession(t, &fake{t: t, ls: func(*skerryv1.ListFilesRequest) (*skerryv1.ListFilesResponse, error) {
		return &skerryv1.ListFilesResponse{Files: []*skerryv1.FileInfo{
			{Path: "l", Type: "symlink", SymlinkTarget: "/etc/passwd"}, {Path: "a\nfile 1 b", Type: "file"}}}, nil
	}})
	a := s.good("list_files", `{}`)
	if !strings.Contains(a.text[0], "l -> /etc/passwd\n") || !strings.Contains(a.text[0], `"a\nfile 1 b"`) || strings.Count(a.text[0], "\n") != 3 {
		t.Errorf("got %s", a.text[0])
	}
}

func TestReadFile(t *testing.T) {
	var asked *skerryv1.ReadFileRequest
	var out *skerryv1.ReadFileResponse
	s := newSession(t, &fake{t: t, read: func(r *skerryv1.ReadFileRequest) (*skerryv1.ReadFileResponse, error) {
		asked = r
		return out, nil
	}})
	file := &skerryv1.FileInfo{Path: "a.txt", Size: 100, Digest: "sha256:1"}
	out = &skerryv1.ReadFileResponse{File: file, Text: "x\ny\n", Offset: 3, Lines: 2, NextOffset: 5}
	a := s.good("read_file", `{"path":"a.txt","offset":3,"limit":2}`)
	if asked.Offset != 3 || asked.Limit != 2 || len(a.text) != 2 || a.text[1] != "x\ny\n" || !strings.Contains(a.text[0], "lines 3 to 4; more from offset 5") {
		t.Errorf("asked %v, got %q", asked, a.text)
	}
	out = &skerryv1.ReadFileResponse{File: file, Binary: true, MediaType: "image/png", Offset: 1}
	a = s.good("read_file", `{"path":"a.txt"}`)
	if len(a.text) != 1 || !strings.Contains(a.text[0], "100 bytes, sha256:1, binary, image/png") || a.json["binary"] != true {
		t.Errorf("got %q", a.text)
	}
	out = &skerryv1.ReadFileResponse{File: file, Offset: 9}
	if a = s.good("read_file", `{"path":"a.txt","offset":9}`); len(a.text) != 1 || !strings.Contains(a.text[0], "no lines from 9 on; the end") {
		t.Errorf("got %q", a.text)
	}
}
