package rpc

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/runnerd/transfer"
)

// transfers is TransferControlService.
type transfers struct{ *Services }

// SetGrantKeys implements TransferControlService.
func (s transfers) SetGrantKeys(ctx context.Context, req *connect.Request[skerryv1.SetGrantKeysRequest]) (*connect.Response[skerryv1.SetGrantKeysResponse], error) {
	return answer(&skerryv1.SetGrantKeysResponse{}, s.cfg.Transfers.SetGrantKeys(ctx, req.Msg.GetKeys()))
}

// PrepareTransfer implements TransferControlService.
func (s transfers) PrepareTransfer(ctx context.Context, req *connect.Request[skerryv1.PrepareTransferRequest]) (*connect.Response[skerryv1.PrepareTransferResponse], error) {
	res, err := s.cfg.Transfers.Prepare(ctx, req.Msg)
	return answer(res, err)
}

// ReleaseTransfer implements TransferControlService.
func (s transfers) ReleaseTransfer(ctx context.Context, req *connect.Request[skerryv1.ReleaseTransferRequest]) (*connect.Response[skerryv1.ReleaseTransferResponse], error) {
	return answer(&skerryv1.ReleaseTransferResponse{}, s.cfg.Transfers.Release(ctx, req.Msg.GetTransferId()))
}

// RunTransfer implements TransferControlService.
func (s transfers) RunTransfer(ctx context.Context, req *connect.Request[skerryv1.RunTransferRequest]) (*connect.Response[skerryv1.RunTransferResponse], error) {
	wait := min(time.Duration(req.Msg.GetWaitMs())*time.Millisecond, transfer.Wait)
	status, err := s.cfg.Transfers.Run(ctx, req.Msg, wait)
	return answer(&skerryv1.RunTransferResponse{Status: status}, err)
}

// StopTransfer implements TransferControlService.
func (s transfers) StopTransfer(ctx context.Context, req *connect.Request[skerryv1.StopTransferRequest]) (*connect.Response[skerryv1.StopTransferResponse], error) {
	status, err := s.cfg.Transfers.Stop(ctx, req.Msg.GetTransferId())
	return answer(&skerryv1.StopTransferResponse{Status: status}, err)
}

// ListTransferFiles implements TransferControlService.
func (s transfers) ListTransferFiles(ctx context.Context, req *connect.Request[skerryv1.ListTransferFilesRequest]) (*connect.Response[skerryv1.ListTransferFilesResponse], error) {
	res, err := s.cfg.Transfers.Files(ctx, req.Msg)
	return answer(res, err)
}

// OfferReplica implements TransferControlService.
func (s transfers) OfferReplica(ctx context.Context, req *connect.Request[skerryv1.OfferReplicaRequest]) (*connect.Response[skerryv1.OfferReplicaResponse], error) {
	res, err := s.cfg.Transfers.Offer(ctx, req.Msg)
	return answer(res, err)
}

// PullReplica implements TransferControlService.
func (s transfers) PullReplica(ctx context.Context, req *connect.Request[skerryv1.PullReplicaRequest]) (*connect.Response[skerryv1.PullReplicaResponse], error) {
	res, err := s.cfg.Transfers.PullReplica(ctx, req.Msg)
	return answer(res, err)
}

// DropReplica implements TransferControlService.
func (s transfers) DropReplica(ctx context.Context, req *connect.Request[skerryv1.DropReplicaRequest]) (*connect.Response[skerryv1.DropReplicaResponse], error) {
	return answer(&skerryv1.DropReplicaResponse{}, s.cfg.Transfers.DropReplica(ctx, req.Msg.GetWorkspace()))
}

// AdoptWorkspace implements TransferControlService.
func (s transfers) AdoptWorkspace(ctx context.Context, req *connect.Request[skerryv1.AdoptWorkspaceRequest]) (*connect.Response[skerryv1.AdoptWorkspaceResponse], error) {
	w, err := s.cfg.Transfers.Adopt(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.AdoptWorkspaceResponse{Workspace: s.status(w)}), nil
}

// FenceWorkspaces implements TransferControlService. What runs in a workspace
// that went on elsewhere is cancelled; its end is committed to the branch.
func (s transfers) FenceWorkspaces(ctx context.Context, req *connect.Request[skerryv1.FenceWorkspacesRequest]) (*connect.Response[skerryv1.FenceWorkspacesResponse], error) {
	out := &skerryv1.FenceWorkspacesResponse{}
	for _, f := range req.Msg.GetFences() {
		w := s.workspaces.Open(f.GetWorkspace())
		if w == nil {
			continue
		}
		fenced, err := w.Fence(ctx, f.GetEpoch())
		if err != nil {
			return nil, err
		}
		if !fenced {
			continue
		}
		reason := fmt.Sprintf("fenced: workspace %s was assigned to another runner under epoch %d", w.ID, f.GetEpoch())
		if err := s.engine.CancelWorkspace(ctx, w.ID, reason); err != nil {
			s.log.Error("executions of a fenced workspace not cancelled", "workspace", w.ID, "err", err)
		}
		out.Workspaces = append(out.Workspaces, s.status(w))
	}
	return connect.NewResponse(out), nil
}

func answer[T any](msg *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(msg), nil
}
