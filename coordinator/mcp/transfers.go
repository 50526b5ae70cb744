package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	// What one answer shows at most.
	shownTransfers = 20
	shownFiles     = 15
	shownPath      = 200
	shownMappings  = 3
)

// pair is an item of a list of pairs.
type pair struct {
	Source *string `json:"source"`
	Target *string `json:"target"`
}

func (p param) pairsOf(raw json.RawMessage) ([]pair, error) {
	var items []pair
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(&items) != nil {
		return nil, problem.Invalid(p.name, `use a list of {"source": path, "target": path}`, "is not such a list")
	}
	if p.most > 0 && int64(len(items)) > p.most {
		return nil, problem.Limit(p.name, fmt.Sprintf("%d items", p.most), "map directories, or start several transfers")
	}
	for i, item := range items {
		if item.Source == nil || item.Target == nil {
			return nil, problem.Invalid(fmt.Sprintf("%s[%d]", p.name, i), "give source and target", "lacks one")
		}
	}
	return items, nil
}

func workspaceTransfer(c Transfers) tool {
	return tool{
		name: "workspace_transfer", title: "Copy files between workspaces",
		description: "Copy files, symlinks and directories from a committed snapshot of one of your workspaces into another, by operation: " +
			"workspaces (list them), start, list, status, cancel. A transfer goes on by itself; its end comes into your inbox. " +
			"Each file ends completed, failed or cancelled; what was committed stays.",
		params: []param{
			{name: "operation", kind: text, required: true, doc: "What to do.", enum: []string{"workspaces", "start", "list", "status", "cancel"}},
			{name: "source", kind: text, doc: "start: id of the workspace to copy from."},
			{name: "target", kind: text, doc: "start: id of the workspace to copy into."},
			{name: "mappings", kind: list, pairs: true, most: 50, doc: "start: 1 to 50 paths of the source and where each goes in the target."},
			{name: "conflict", kind: text, doc: "start: what a different file at a target means; default reject.", enum: []string{skerryv1.ConflictReject, skerryv1.ConflictOverwrite}},
			{name: "source_snapshot", kind: text, doc: "start: digest of a snapshot of the source; default its latest."},
			{name: "transfer_id", kind: text, doc: "status, cancel: the transfer."},
			{name: "wait_ms", kind: number, most: maxWaitMS, doc: "status: wait this many milliseconds for its end; default 0."},
			{name: "idempotency_key", kind: text, bytes: 128, doc: "start: a repeat with the same key starts nothing new."},
		},
		hints: hints{destructive: true},
		call:  func(ctx context.Context, a arguments) (*result, error) { return transferOperation(ctx, c, a) },
	}
}

func transferOperation(ctx context.Context, c Transfers, a arguments) (*result, error) {
	switch get[string](a, "operation") {
	case "workspaces":
		return transferWorkspaces(ctx, c)
	case "start":
		return startTransfer(ctx, c, a)
	case "list":
		return listTransfers(ctx, c)
	case "status":
		return transferStatus(ctx, c, a)
	}
	id, err := transferID(a)
	if err != nil {
		return nil, err
	}
	res, err := c.CancelTransfer(ctx, connect.NewRequest(&skerryv1.CancelTransferRequest{TransferId: id}))
	if err != nil {
		return nil, err
	}
	return message(&skerryv1.CancelTransferResponse{Transfer: clipTransfer(res.Msg.GetTransfer())}, transferText(res.Msg.GetTransfer()))
}

func transferID(a arguments) (string, error) {
	id := get[string](a, "transfer_id")
	if id == "" {
		return "", problem.Invalid("transfer_id", "name the transfer; operation list has them", "is missing")
	}
	return id, nil
}

func transferWorkspaces(ctx context.Context, c Transfers) (*result, error) {
	const most = 50
	res, err := c.ListTransferWorkspaces(ctx, connect.NewRequest(&skerryv1.ListTransferWorkspacesRequest{}))
	if err != nil {
		return nil, err
	}
	all := res.Msg.GetWorkspaces()
	var out strings.Builder
	fmt.Fprintf(&out, "%d workspaces\n", len(all))
	shown := &skerryv1.ListTransferWorkspacesResponse{Workspaces: all[:min(len(all), most)]}
	for _, w := range shown.GetWorkspaces() {
		fmt.Fprintf(&out, "%s on runner %s, which is %s, %d commits\n", w.GetId(), w.GetRunner(), w.GetRunnerState(), w.GetSeq())
	}
	if n := len(all) - most; n > 0 {
		fmt.Fprintf(&out, "and %d more\n", n)
	}
	return message(shown, out.String())
}

func startTransfer(ctx context.Context, c Transfers, a arguments) (*result, error) {
	req := &skerryv1.StartTransferRequest{Source: get[string](a, "source"), Target: get[string](a, "target"), Conflict: get[string](a, "conflict"),
		SourceSnapshot: get[string](a, "source_snapshot"), IdempotencyKey: get[string](a, "idempotency_key")}
	for _, p := range get[[]pair](a, "mappings") {
		req.Mappings = append(req.Mappings, &skerryv1.TransferMapping{Source: *p.Source, Target: *p.Target})
	}
	res, err := c.StartTransfer(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	t := res.Msg.GetTransfer()
	return message(&skerryv1.StartTransferResponse{Transfer: clipTransfer(t)}, transferText(t)+"follow it with operation status\n")
}

func listTransfers(ctx context.Context, c Transfers) (*result, error) {
	res, err := c.ListTransfers(ctx, connect.NewRequest(&skerryv1.ListTransfersRequest{Limit: shownTransfers}))
	if err != nil {
		return nil, err
	}
	out, text := &skerryv1.ListTransfersResponse{NextPageToken: res.Msg.GetNextPageToken()}, ""
	for _, t := range res.Msg.GetTransfers() {
		out.Transfers = append(out.Transfers, clipTransfer(t))
		text += transferText(t)
	}
	if text == "" {
		text = "no transfers\n"
	}
	return message(out, text)
}

func transferStatus(ctx context.Context, c Transfers, a arguments) (*result, error) {
	id, err := transferID(a)
	if err != nil {
		return nil, err
	}
	req := &skerryv1.GetTransferRequest{TransferId: id, FileState: skerryv1.StateFailed, FileLimit: shownFiles}
	if w := a.wait(); w != nil {
		req.WaitMs = *w
	}
	res, err := c.GetTransfer(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	out := &skerryv1.GetTransferResponse{Transfer: clipTransfer(res.Msg.GetTransfer()), NextPageToken: res.Msg.GetNextPageToken(), FilesUnavailable: res.Msg.GetFilesUnavailable()}
	text := transferText(res.Msg.GetTransfer())
	for _, f := range res.Msg.GetFiles() {
		f = proto.CloneOf(f)
		f.Path, f.RawPath = clipText(f.GetPath(), shownPath), nil
		if p := f.GetProblem(); p != nil {
			p.Message = clipText(p.GetMessage(), shownPath)
		}
		out.Files = append(out.Files, f)
		text += fmt.Sprintf("failed: %s: %s\n", f.GetPath(), f.GetProblem().GetMessage())
	}
	if res.Msg.GetNextPageToken() != "" {
		text += "and more failed files\n"
	}
	return message(out, text)
}

func transferText(t *skerryv1.Transfer) string {
	c := t.GetCounts()
	text := fmt.Sprintf("transfer %s is %s: %d completed, %d failed, %d cancelled, %d to go", t.GetId(), t.GetState(), c.GetCompleted(), c.GetFailed(),
		c.GetCancelled(), c.GetPending()+c.GetCopying())
	if c.GetUnknown() > 0 {
		text += fmt.Sprintf(", %d unknown", c.GetUnknown())
	}
	if p := t.GetProblem(); p != nil {
		text += "; " + clipText(p.GetMessage(), shownPath)
	}
	return text + "\n"
}

// clipTransfer keeps an answer small whatever was mapped.
func clipTransfer(t *skerryv1.Transfer) *skerryv1.Transfer {
	t = proto.CloneOf(t)
	t.Mappings = t.GetMappings()[:min(len(t.GetMappings()), shownMappings)]
	for _, m := range t.GetMappings() {
		m.Source, m.Target = clipText(m.GetSource(), shownPath), clipText(m.GetTarget(), shownPath)
	}
	if p := t.GetProblem(); p != nil {
		p.Message = clipText(p.GetMessage(), shownPath)
	}
	return t
}
