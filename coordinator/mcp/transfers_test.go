package mcp

import (
	"context"
	"strings"
	"testing"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
)

// transfers answers with what is set; a nil function fails the test.
type transfers struct {
	Transfers
	start func(*skerryv1.StartTransferRequest) *skerryv1.Transfer
	get   func(*skerryv1.GetTransferRequest) *skerryv1.GetTransferResponse
}

func (f transfers) StartTransfer(_ context.Context, r *connect.Request[skerryv1.StartTransferRequest]) (*connect.Response[skerryv1.StartTransferResponse], error) {
	return answer(&skerryv1.StartTransferResponse{Transfer: f.start(r.Msg)}, nil)
}

func (f transfers) GetTransfer(_ context.Context, r *connect.Request[skerryv1.GetTransferRequest]) (*connect.Response[skerryv1.GetTransferResponse], error) {
	return answer(f.get(r.Msg), nil)
}

func TestWorkspaceTransfer(t *testing.T) {
	long := strings.Repeat("p", 4096)
	var started *skerryv1.StartTransferRequest
	full := &skerryv1.Transfer{Id: "tr_1", State: "partial", Counts: &skerryv1.TransferCounts{Completed: 7, Failed: 50}}
	for range 50 {
		full.Mappings = append(full.Mappings, &skerryv1.TransferMapping{Source: long, Target: long})
	}
	s := newSession(t, &fake{t: t, transfers: transfers{
		start: func(r *skerryv1.StartTransferRequest) *skerryv1.Transfer {
			started = r
			return full
		},
		get: func(r *skerryv1.GetTransferRequest) *skerryv1.GetTransferResponse {
			out := &skerryv1.GetTransferResponse{Transfer: full, NextPageToken: "15"}
			for range r.FileLimit {
				out.Files = append(out.Files, &skerryv1.TransferFile{Path: long, State: "failed", Problem: &skerryv1.TransferProblem{Reason: "FILE_CONFLICT", Message: long}})
			}
			return out
		},
	}})
	a := s.good("workspace_transfer", `{"operation":"start","source":"ws_1","target":"ws_2","mappings":[{"source":"a","target":"b"},{"source":"c","target":""}],"conflict":"overwrite"}`)
	if started.Source != "ws_1" || started.Target != "ws_2" || len(started.Mappings) != 2 || started.Mappings[0].Target != "b" || started.Conflict != "overwrite" {
		t.Errorf("started %v", started)
	}
	if a.size > 8<<10 || !strings.Contains(a.text[0], "tr_1 is partial: 7 completed, 50 failed") {
		t.Errorf("%d bytes, text %.200q", a.size, a.text)
	}
	a = s.good("workspace_transfer", `{"operation":"status","transfer_id":"tr_1","wait_ms":100}`)
	if a.size > 16<<10 || len(a.text[0]) > 8<<10 || !strings.Contains(a.text[0], "more failed files") {
		t.Errorf("%d bytes, text of %d bytes", a.size, len(a.text[0]))
	}
}
