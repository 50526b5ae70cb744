package workspace

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"skerry.internal/cas"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Limits of one page of text.
const (
	MaxPageLines = 2000
	MaxPageBytes = 40 << 10
)

const sniffBytes = 8 << 10

// ReadText gives one page of a text file: lines from offset (1-based), at most
// limit lines and MaxPageBytes. A line longer than the page is cut and what was
// left out counted. A binary file gives its media type alone.
func (v *View) ReadText(ctx context.Context, path string, offset uint64, limit int) (*skerryv1.ReadFileResponse, error) {
	file, info, err := v.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	out := &skerryv1.ReadFileResponse{File: info, Snapshot: v.Digest(), Offset: max(offset, 1)}
	head := make([]byte, sniffBytes)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	out.MediaType = http.DetectContentType(head[:min(n, 512)])
	if out.Binary = !isText(head[:n], n < sniffBytes); out.Binary {
		return out, nil
	}
	if !strings.HasPrefix(out.MediaType, "text/") {
		out.MediaType = "text/plain; charset=utf-8"
	}
	return out, page(ctx, file, out, limit)
}

// page fills text, lines and what follows. Lines are counted from the start of
// the file, since a committed file has no line index.
func page(ctx context.Context, file *cas.File, out *skerryv1.ReadFileResponse, limit int) error {
	in := bufio.NewReaderSize(contextReader{ctx, file}, 64<<10)
	var text bytes.Buffer
	line := uint64(1)
	for {
		wanted := line >= out.Offset
		if wanted && (out.Lines == uint32(limit) || text.Len() >= MaxPageBytes) {
			if _, err := in.Peek(1); err == nil {
				out.NextOffset = line
			}
			break
		}
		got, omitted, err := readLine(in, &text, wanted)
		if wanted && got == tooFull {
			out.NextOffset = line
			break
		}
		if wanted && got == full {
			out.Lines++
			out.OmittedBytes += omitted
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		line++
	}
	out.Text = strings.ToValidUTF8(text.String(), "\uFFFD")
	return nil
}

type lineResult int

const (
	none    lineResult = iota // the end, without a line
	full                      // a line, perhaps cut
	tooFull                   // the line does not fit behind the ones before
)

// readLine reads one line and, when wanted, adds it to text as far as it fits.
// Only a line that starts a page is cut; another one that does not fit is left
// for the next page.
func readLine(in *bufio.Reader, text *bytes.Buffer, wanted bool) (lineResult, uint64, error) {
	start, result := text.Len(), none
	var omitted uint64
	for {
		part, err := in.ReadSlice('\n')
		if len(part) > 0 {
			result = full
		}
		if wanted {
			room := MaxPageBytes - text.Len()
			if len(part) > room && start > 0 {
				text.Truncate(start)
				return tooFull, 0, nil
			}
			keep := cutRune(part, room)
			text.Write(part[:keep])
			omitted += uint64(len(part) - keep)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return result, omitted, err
		}
	}
}

// cutRune gives the largest length up to most at which p does not split a character.
func cutRune(p []byte, most int) int {
	if len(p) <= most {
		return len(p)
	}
	n := max(most, 0)
	for n > 0 && most-n < utf8.UTFMax && !utf8.RuneStart(p[n]) {
		n--
	}
	return n
}

// isText says whether a file that starts with head is text: UTF-8 without NUL.
// A character may be cut at the end of head unless head is the whole file.
func isText(head []byte, whole bool) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	if !whole {
		for range utf8.UTFMax - 1 {
			if len(head) > 0 && !utf8.Valid(head) {
				head = head[:len(head)-1]
			}
		}
	}
	return utf8.Valid(head)
}
