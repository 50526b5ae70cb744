package coordinator

import (
	"context"
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	maxTransferWait     = 30 * time.Second
	defaultTransfers    = 50
	maxTransfers        = 200
	defaultTransferPage = 200
	maxTransferPage     = 1000
)

// transferService is TransferService.
type transferService struct{ c *Coordinator }

// StartTransfer implements TransferServiceHandler.
func (s transferService) StartTransfer(ctx context.Context, req *connect.Request[skerryv1.StartTransferRequest]) (*connect.Response[skerryv1.StartTransferResponse], error) {
	id := caller(ctx)
	t, err := newTransfer(req.Msg)
	if err != nil {
		return nil, err
	}
	t.Agent = id.subject
	view := s.c.state.Read()
	if known := view.TransferByKey(id.subject, t.GetIdempotencyKey()); t.GetIdempotencyKey() != "" && known != nil && slices.Equal(known.GetRequestHash(), t.GetRequestHash()) {
		return connect.NewResponse(&skerryv1.StartTransferResponse{Transfer: apiTransfer(known)}), nil
	}
	if err := s.c.setEnds(ctx, t, req.Msg); err != nil {
		return nil, err
	}
	number := view.Runner(t.GetTargetRunner()).GetNumber()
	t.Id = ids.New(ids.Transfer, number, time.Now()).String()
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_CreateTransfer{CreateTransfer: &raftlogv1.CreateTransfer{Transfer: t}}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.StartTransferResponse{Transfer: apiTransfer(answer.GetTransfer())}), nil
}

// newTransfer checks what is asked for and makes the record of it.
func newTransfer(req *skerryv1.StartTransferRequest) (*raftlogv1.Transfer, error) {
	const maxKey = 128
	mappings, err := checkMappings(req.GetMappings())
	if err != nil {
		return nil, err
	}
	conflict := req.GetConflict()
	switch conflict {
	case "":
		conflict = skerryv1.ConflictReject
	case skerryv1.ConflictReject, skerryv1.ConflictOverwrite:
	default:
		return nil, problem.Invalid("conflict", "use reject or overwrite", "%.64q is not known", conflict)
	}
	switch {
	case req.GetSource() == "":
		return nil, problem.Invalid("source", "name a workspace id; ListTransferWorkspaces has them", "is empty")
	case req.GetTarget() == "":
		return nil, problem.Invalid("target", "name a workspace id; ListTransferWorkspaces has them", "is empty")
	case len(req.GetIdempotencyKey()) > maxKey:
		return nil, problem.Limit("idempotencyKey", "128 bytes", "use a shorter key")
	case len(req.GetSourceSnapshot()) > maxDigest:
		return nil, problem.Limit("sourceSnapshot", "128 bytes", "use a digest that History shows")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(raw)
	return &raftlogv1.Transfer{Source: req.GetSource(), Target: req.GetTarget(), SourceBranch: req.GetSourceBranch(), Snapshot: req.GetSourceSnapshot(),
		Mappings: mappings, Conflict: conflict, IdempotencyKey: req.GetIdempotencyKey(), RequestHash: hash[:]}, nil
}

// setEnds finds the workspaces, which must be the caller's to use, and the
// snapshot that is copied from.
func (c *Coordinator) setEnds(ctx context.Context, t *raftlogv1.Transfer, req *skerryv1.StartTransferRequest) error {
	view, id := c.state.Read(), caller(ctx)
	source, target := view.Workspace(req.GetSource()), view.Workspace(req.GetTarget())
	if !c.mayUse(id, source) {
		return problem.Missing("source", "no such workspace")
	}
	if !c.mayUse(id, target) {
		return problem.Missing("target", "no such workspace")
	}
	switch {
	case target.GetRestore() != nil:
		return moving(target)
	case target.GetLost():
		return lostWorkspace(target)
	}
	t.TargetRunner, t.TargetEpoch = target.GetRunner(), target.GetEpoch()
	t.SourceRunner, t.SourceEpoch = source.GetRunner(), source.GetEpoch()
	if req.GetSourceBranch() != "" {
		b := view.Branch(req.GetSourceBranch())
		if b == nil || b.GetWorkspace() != source.GetId() || !id.allows(b.GetRunner()) {
			return problem.Missing("sourceBranch", "no such branch of the source workspace")
		}
		t.SourceRunner, t.SourceEpoch = b.GetRunner(), b.GetEpoch()
		if t.Snapshot == "" {
			t.Snapshot = b.GetDigest()
		}
	} else if source.GetRestore() != nil {
		return moving(source)
	}
	if sourceLost(view, t) {
		return problem.New(connect.CodeFailedPrecondition, problem.WorkspaceLost, "assign the workspace to another runner from its replica, or copy from another workspace",
			"the source's runner %q was removed", t.GetSourceRunner())
	}
	if t.GetSnapshot() == "" {
		t.Snapshot = c.currentHead(ctx, source)
	}
	if t.GetSnapshot() == "" {
		return problem.New(connect.CodeFailedPrecondition, problem.NotFound, "run a command or write a file there first", "nothing is committed in the source workspace yet")
	}
	return nil
}

// currentHead asks the runner, where it can be asked, since the replicated head
// may be a moment behind.
func (c *Coordinator) currentHead(ctx context.Context, ws *raftlogv1.Workspace) string {
	to, err := c.reach(ws)
	if err != nil {
		return ws.GetHead().GetDigest()
	}
	ctx, cancel := context.WithTimeout(ctx, currentTimeout)
	defer cancel()
	res, err := forward(ctx, to, &skerryv1.ListWorkspacesRequest{}, to.link.workspaces.ListWorkspaces, reads)
	if err != nil || len(res.Msg.GetWorkspaces()) != 1 {
		return ws.GetHead().GetDigest()
	}
	return res.Msg.GetWorkspaces()[0].GetHead().GetDigest()
}

// ownTransfer finds a transfer of the caller; others' are answered like none.
func (c *Coordinator) ownTransfer(ctx context.Context, id string) (*raftlogv1.Transfer, error) {
	t := c.state.Read().Transfer(id)
	if t == nil || !caller(ctx).ownsTransfer(t) {
		return nil, problem.Missing("transferId", "no such transfer")
	}
	return t, nil
}

// ownsTransfer: the caller's agent started it, between runners that its token is for.
func (id identity) ownsTransfer(t *raftlogv1.Transfer) bool {
	return t.GetAgent() == id.subject && id.allows(t.GetSourceRunner()) && id.allows(t.GetTargetRunner())
}

// GetTransfer implements TransferServiceHandler.
func (s transferService) GetTransfer(ctx context.Context, req *connect.Request[skerryv1.GetTransferRequest]) (*connect.Response[skerryv1.GetTransferResponse], error) {
	ask, err := filesRequest(req.Msg)
	if err != nil {
		return nil, err
	}
	t, err := s.c.awaitTransfer(ctx, req.Msg.GetTransferId(), time.Duration(req.Msg.GetWaitMs())*time.Millisecond)
	if err != nil {
		return nil, err
	}
	out := &skerryv1.GetTransferResponse{Transfer: apiTransfer(t)}
	s.c.addFiles(ctx, t, ask, out)
	return connect.NewResponse(out), nil
}

func filesRequest(req *skerryv1.GetTransferRequest) (*skerryv1.ListTransferFilesRequest, error) {
	ask := &skerryv1.ListTransferFilesRequest{TransferId: req.GetTransferId(), Limit: req.GetFileLimit(), State: req.GetFileState()}
	if ask.GetLimit() == 0 {
		ask.Limit = defaultTransferPage
	}
	switch {
	case ask.GetLimit() > maxTransferPage:
		return nil, problem.Limit("fileLimit", "1000 files a page", "ask for less and use nextPageToken")
	case time.Duration(req.GetWaitMs())*time.Millisecond > maxTransferWait:
		return nil, problem.Limit("waitMs", "30000 ms", "wait again")
	}
	if token := req.GetPageToken(); token != "" {
		after, err := strconv.ParseUint(token, 10, 63)
		if err != nil {
			return nil, problem.Invalid("pageToken", "use nextPageToken of the previous page, or nothing", "is none of this call's")
		}
		ask.After = after
	}
	switch ask.GetState() {
	case "", skerryv1.FilePending, skerryv1.FileCopying, skerryv1.StateCompleted, skerryv1.StateFailed, skerryv1.StateCancelled, skerryv1.StateUnknown:
		return ask, nil
	}
	return nil, problem.Invalid("fileState", "use pending, copying, completed, failed, cancelled or unknown", "unknown state")
}

// awaitTransfer gives a transfer when it has ended, or after wait.
func (c *Coordinator) awaitTransfer(ctx context.Context, id string, wait time.Duration) (*raftlogv1.Transfer, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		changed := c.state.Changed()
		t, err := c.ownTransfer(ctx, id)
		if err != nil || skerryv1.TransferEnded(t.GetState()) {
			return t, err
		}
		select {
		case <-changed:
		case <-timer.C:
			return t, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// addFiles asks the target for the files' outcomes, and while the transfer goes
// on for its counts.
func (c *Coordinator) addFiles(ctx context.Context, t *raftlogv1.Transfer, ask *skerryv1.ListTransferFilesRequest, out *skerryv1.GetTransferResponse) {
	if t.GetStarted() == nil && skerryv1.TransferEnded(t.GetState()) {
		out.Files = neverBegun(t, ask)
		return
	}
	if t.GetStarted() == nil {
		out.FilesUnavailable = "the target has not begun; files are listed when it has"
		return
	}
	l := c.links.get(t.GetTargetRunner())
	if l == nil {
		out.FilesUnavailable = "the target's runner, which has them, is not connected"
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := l.transfers.ListTransferFiles(ctx, connect.NewRequest(ask))
	if err != nil {
		out.FilesUnavailable = "the target's runner has not got them, or did not answer"
		return
	}
	out.Files = res.Msg.GetFiles()
	if next := res.Msg.GetNext(); next > 0 {
		out.NextPageToken = strconv.FormatUint(next, 10)
	}
	if status := res.Msg.GetStatus(); !skerryv1.TransferEnded(t.GetState()) && !skerryv1.TransferEnded(status.GetState()) {
		out.Transfer.Counts, out.Transfer.Bytes, out.Transfer.BytesCompleted = status.GetCounts(), status.GetBytes(), status.GetBytesCompleted()
		out.Transfer.Problem, out.Transfer.Route = status.GetProblem(), status.GetRoute()
	}
}

// neverBegun are the files of a transfer that ended before its target knew of
// it: its mappings.
func neverBegun(t *raftlogv1.Transfer, ask *skerryv1.ListTransferFilesRequest) []*skerryv1.TransferFile {
	if ask.GetAfter() > 0 || (ask.GetState() != "" && ask.GetState() != t.GetState()) {
		return nil
	}
	var out []*skerryv1.TransferFile
	for _, m := range t.GetMappings() {
		f := &skerryv1.TransferFile{Path: strings.ToValidUTF8(m.GetTarget(), "\uFFFD"), State: t.GetState()}
		if t.GetReason() != "" {
			f.Problem = &skerryv1.TransferProblem{Reason: t.GetReason(), Message: t.GetMessage()}
		}
		out = append(out, f)
	}
	return out
}

// ListTransfers implements TransferServiceHandler.
func (s transferService) ListTransfers(ctx context.Context, req *connect.Request[skerryv1.ListTransfersRequest]) (*connect.Response[skerryv1.ListTransfersResponse], error) {
	limit := int(req.Msg.GetLimit())
	if limit == 0 {
		limit = defaultTransfers
	}
	if limit > maxTransfers {
		return nil, problem.Limit("limit", "200 transfers", "ask for less and use nextPageToken")
	}
	if token := req.Msg.GetPageToken(); token != "" {
		if _, err := ids.Parse(ids.Transfer, token); err != nil {
			return nil, problem.Invalid("pageToken", "use nextPageToken of the previous page, or nothing", "is none of this call's")
		}
	}
	switch state := req.Msg.GetState(); {
	case state == "" || state == skerryv1.StateQueued || state == skerryv1.StateRunning || skerryv1.TransferEnded(state):
	default:
		return nil, problem.Invalid("state", "use queued, running, completed, partial, failed, cancelled or unknown", "unknown state")
	}
	out := &skerryv1.ListTransfersResponse{}
	all := s.c.state.Read().TransfersOfAgent(caller(ctx).subject)
	slices.Reverse(all)
	for _, t := range all {
		if !caller(ctx).ownsTransfer(t) || (req.Msg.GetPageToken() != "" && t.GetId() >= req.Msg.GetPageToken()) || (req.Msg.GetState() != "" && t.GetState() != req.Msg.GetState()) {
			continue
		}
		if len(out.Transfers) == limit {
			out.NextPageToken = out.GetTransfers()[limit-1].GetId()
			break
		}
		out.Transfers = append(out.Transfers, apiTransfer(t))
	}
	return connect.NewResponse(out), nil
}

// CancelTransfer implements TransferServiceHandler. The target is told at once
// where it can be; else the director does.
func (s transferService) CancelTransfer(ctx context.Context, req *connect.Request[skerryv1.CancelTransferRequest]) (*connect.Response[skerryv1.CancelTransferResponse], error) {
	if _, err := s.c.ownTransfer(ctx, req.Msg.GetTransferId()); err != nil {
		return nil, err
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_CancelTransfer{
		CancelTransfer: &raftlogv1.CancelTransfer{Id: req.Msg.GetTransferId()}}})
	if err != nil {
		return nil, err
	}
	t := answer.GetTransfer()
	if l := s.c.links.get(t.GetTargetRunner()); l != nil && t.GetState() == skerryv1.StateRunning {
		if _, err := stopAt(ctx, l, t.GetId()); err != nil {
			s.c.logger.DebugContext(ctx, "target not told of the cancel yet", "transfer", t.GetId(), "error", err)
		}
	}
	return connect.NewResponse(&skerryv1.CancelTransferResponse{Transfer: apiTransfer(t)}), nil
}

// ListTransferWorkspaces implements TransferServiceHandler.
func (s transferService) ListTransferWorkspaces(ctx context.Context, _ *connect.Request[skerryv1.ListTransferWorkspacesRequest]) (*connect.Response[skerryv1.ListTransferWorkspacesResponse], error) {
	out := &skerryv1.ListTransferWorkspacesResponse{}
	for _, ws := range s.c.usableWorkspaces(caller(ctx)) {
		state := skerryv1.RunnerDown
		if s.c.links.get(ws.GetRunner()) != nil {
			state = skerryv1.RunnerUp
		}
		out.Workspaces = append(out.Workspaces, &skerryv1.TransferWorkspace{Id: ws.GetId(), Agent: ws.GetAgent(), Runner: ws.GetRunner(), RunnerState: state,
			Snapshot: ws.GetHead().GetDigest(), Seq: ws.GetHead().GetSeq()})
	}
	return connect.NewResponse(out), nil
}
