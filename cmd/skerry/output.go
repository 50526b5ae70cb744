package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/proto/wire"
)

// fail prints an error: as JSON with --json, else one line.
func (a *app) fail(err error) {
	p := problem.Of(err)
	if a.json {
		out := map[string]any{"error": message(err)}
		if p != nil {
			out["reason"], out["field"], out["limit"], out["remedy"], out["retryable"] = p.Reason, p.Field, p.Limit, p.Remedy, p.Retryable
		}
		b, _ := json.Marshal(out)
		_, _ = fmt.Fprintln(a.stderr, string(b))
		return
	}
	reason := ""
	if p != nil {
		reason = " (" + p.Reason + ")"
	}
	_, _ = fmt.Fprintf(a.stderr, "skerry: %s%s\n", oneLine(message(err)), oneLine(reason))
}

// message is an error's text without the codes that Connect puts into it. It may
// hold names that an agent chose, so that on a terminal it must pass oneLine.
func message(err error) string {
	var wireError *connect.Error
	if !asConnect(err, &wireError) {
		return err.Error()
	}
	text := wireError.Message()
	if wireError.Code() == connect.CodeUnavailable && problem.Of(err) == nil {
		text = "the coordinator cannot be reached: " + text + "; " + unreachableRemedy(err)
	}
	return strings.Replace(err.Error(), wireError.Error(), text, 1)
}

// unreachableRemedy tells a certificate that nobody vouches for from a host that
// does not answer.
func unreachableRemedy(err error) string {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return "name its certificate authority with --ca-file or SKERRY_CA_FILE (docs/operations.md, A cluster of coordinators)"
	}
	return "check the endpoint, or start one here with: skerry dev"
}

func (a *app) printJSON(v any) error {
	b, err := json.Marshal(v)
	if m, ok := v.(proto.Message); ok {
		b, err = wire.MarshalJSON(m)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, string(b))
	return err
}

// table prints rows with aligned columns; the first is the header.
func (a *app) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(row[i])
		}
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// oneLine makes text that agents chose harmless for a terminal and a table.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		// Controls, and the characters that reorder a line's others.
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return '\u00b7'
		}
		return r
	}, s)
}

func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Local().Format(time.DateTime)
}

func short(digest string) string {
	const shown = len("sha256:") + 12
	if len(digest) > shown {
		return digest[:shown]
	}
	return orDash(digest)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// commandText is what an execution runs, for people.
func commandText(c *skerryv1.Command) string {
	text := c.GetShell()
	switch {
	case c.GetScriptPath() != "":
		text = strings.Join(append([]string{c.ScriptPath}, c.Arguments...), " ")
	case len(c.GetArgv()) > 0:
		text = strings.Join(c.Argv, " ")
	}
	const most = 60
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "..."
	}
	return text
}

// printChanges lists changed paths the way people know it from version control.
func printChanges(w io.Writer, c *skerryv1.Changes) {
	for _, part := range []struct {
		mark  string
		paths []string
	}{{"A", c.GetCreated()}, {"M", c.GetModified()}, {"D", c.GetDeleted()}} {
		for _, p := range part.paths {
			_, _ = fmt.Fprintf(w, "%s %s\n", part.mark, oneLine(p))
		}
	}
	if c.GetTruncated() {
		_, _ = fmt.Fprintf(w, "in all %d created, %d modified, %d deleted\n", c.CreatedCount, c.ModifiedCount, c.DeletedCount)
	}
}
