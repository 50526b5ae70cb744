package coordinator

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	"skerry.internal/proto/skerry/peer/v1/peerv1connect"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// identity is who makes a call.
type identity struct {
	tokenID string
	role    string
	// subject is the agent's name, or the runner's for role "runner".
	subject string
	expires time.Time
	// certificate: the caller showed one, and no token.
	certificate bool
	// policies are the network policies that the token names.
	policies []string
	// permissions and runners bound an agent's token; empty: all.
	permissions []string
	runners     []string
}

// networks is what a runner is told of the network policies that the caller may
// name, beside "none" and the runner's public ones.
func (id identity) networks() string {
	if id.role == skerryv1.RoleAdmin {
		return skerryv1.AllNetworks
	}
	return strings.Join(id.policies, ",")
}

type identityKey struct{}

func withIdentity(ctx context.Context, id identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// caller gives the identity that the authentication before every handler set.
func caller(ctx context.Context) identity {
	id, _ := ctx.Value(identityKey{}).(identity)
	return id
}

// Roles that may make a call.
var (
	agents  = []string{skerryv1.RoleAgent, skerryv1.RoleAdmin}
	admins  = []string{skerryv1.RoleAdmin}
	runners = []string{skerryv1.RoleRunner}
	// coordinators are known by their certificate; no token has this role.
	coordinators = []string{pki.RoleCoordinator}
)

// rule says who may make a call.
type rule struct {
	roles []string
	// needs is the permission that an agent's token must have; "": none.
	needs string
	// reads: the call changes nothing, so that it may be repeated at will.
	reads bool
	// open: the call needs no token; its handler decides by what is in it.
	open bool
}

// rules says who may call what. A path without a rule is refused to everyone.
var rules = map[string]rule{
	rpc.ExecutionServiceRunShellProcedure:            {roles: agents, needs: skerryv1.PermissionShell},
	rpc.ExecutionServiceRunCommandProcedure:          {roles: agents, needs: skerryv1.PermissionShell},
	rpc.ExecutionServiceGetExecutionProcedure:        {roles: agents, reads: true},
	rpc.ExecutionServiceListExecutionsProcedure:      {roles: agents, reads: true},
	rpc.ExecutionServiceReadExecutionLogsProcedure:   {roles: agents, reads: true},
	rpc.ExecutionServiceFollowExecutionLogsProcedure: {roles: agents, reads: true},
	rpc.ExecutionServiceCancelExecutionProcedure:     {roles: agents, needs: skerryv1.PermissionShell},
	rpc.ExecutionServiceWriteInputProcedure:          {roles: agents, needs: skerryv1.PermissionShell},
	rpc.ExecutionServiceResizeTerminalProcedure:      {roles: agents, needs: skerryv1.PermissionShell},
	rpc.ExecutionServicePortForwardProcedure:         {roles: agents, needs: skerryv1.PermissionShell},
	rpc.FileServiceListFilesProcedure:                {roles: agents, reads: true},
	rpc.FileServiceReadFileProcedure:                 {roles: agents, reads: true},
	rpc.FileServiceWriteFileProcedure:                {roles: agents},
	rpc.FileServiceUploadFileProcedure:               {roles: agents},
	rpc.FileServiceDownloadFileProcedure:             {roles: agents, reads: true},
	rpc.FileServiceFileHistoryProcedure:              {roles: agents, reads: true},
	rpc.FileServiceDeleteFileProcedure:               {roles: agents},
	rpc.WorkspaceServiceListWorkspacesProcedure:      {roles: agents, reads: true},
	rpc.WorkspaceServiceDiffProcedure:                {roles: agents, reads: true},
	rpc.WorkspaceServiceHistoryProcedure:             {roles: agents, reads: true},
	rpc.WorkspaceServiceRepairWorkspaceProcedure:     {roles: agents},
	rpc.WorkspaceServiceRestoreWorkspaceProcedure:    {roles: agents},
	rpc.RunnerServiceListRunnersProcedure:            {roles: agents, reads: true},
	rpc.RunnerServiceExplainPlacementProcedure:       {roles: agents, reads: true},
	rpc.RunnerServiceCordonRunnerProcedure:           {roles: admins},
	rpc.RunnerServiceUncordonRunnerProcedure:         {roles: admins},
	rpc.RunnerServiceDrainRunnerProcedure:            {roles: admins},
	rpc.RunnerServiceRemoveRunnerProcedure:           {roles: admins},
	rpc.AgentServiceListAgentsProcedure:              {roles: agents, reads: true},
	rpc.AgentServiceArchiveAgentProcedure:            {roles: admins},
	rpc.TimerServiceCreateTimerProcedure:             {roles: agents},
	rpc.TimerServiceListTimersProcedure:              {roles: agents, reads: true},
	rpc.TimerServiceCancelTimerProcedure:             {roles: agents},
	rpc.InboxServiceReadInboxProcedure:               {roles: agents, reads: true},
	rpc.InboxServiceWatchInboxProcedure:              {roles: agents, reads: true},
	rpc.TokenServiceCreateTokenProcedure:             {roles: agents},
	rpc.TokenServiceListTokensProcedure:              {roles: agents, reads: true},
	rpc.TokenServiceRevokeTokenProcedure:             {roles: agents},
	rpc.JoinServiceJoinProcedure:                     {open: true},
	rpc.JoinServiceRenewProcedure:                    {open: true},
	rpc.JoinServiceCreateJoinTokenProcedure:          {roles: admins},
	rpc.JoinServiceListJoinTokensProcedure:           {roles: admins, reads: true},
	rpc.JoinServiceRevokeJoinTokenProcedure:          {roles: admins},
	rpc.JoinServiceGetAuthorityProcedure:             {roles: admins, reads: true},
	rpc.JoinServiceRotateAuthorityProcedure:          {roles: admins},
	rpc.JoinServiceDenyMemberProcedure:               {roles: admins},
	rpc.ClusterServiceGetClusterStatusProcedure:      {roles: admins, reads: true},
	rpc.ClusterServiceListMembersProcedure:           {roles: admins, reads: true},
	rpc.ClusterServiceRemoveMemberProcedure:          {roles: admins},
	rpc.ClusterServiceTransferLeadershipProcedure:    {roles: admins},
	rpc.ClusterServiceSaveSnapshotProcedure:          {roles: admins, reads: true},
	rpc.ClusterServiceRestoreSnapshotProcedure:       {roles: admins},
	rpc.ClusterServiceAnnounceMemberProcedure:        {roles: coordinators, open: true},
	rpc.MemberServiceGetMemberStatsProcedure:         {roles: coordinators, reads: true},
	link.Path:                                        {roles: runners},

	rpc.WorkspaceServiceListBranchesProcedure:          {roles: agents, reads: true},
	rpc.WorkspaceServiceSetReplicationProcedure:        {roles: agents},
	rpc.WorkspaceServiceReassignWorkspaceProcedure:     {roles: admins},
	rpc.TransferServiceStartTransferProcedure:          {roles: agents, needs: skerryv1.PermissionTransfer},
	rpc.TransferServiceGetTransferProcedure:            {roles: agents, needs: skerryv1.PermissionTransfer, reads: true},
	rpc.TransferServiceListTransfersProcedure:          {roles: agents, needs: skerryv1.PermissionTransfer, reads: true},
	rpc.TransferServiceCancelTransferProcedure:         {roles: agents, needs: skerryv1.PermissionTransfer},
	rpc.TransferServiceListTransferWorkspacesProcedure: {roles: agents, needs: skerryv1.PermissionTransfer, reads: true},
	peerv1connect.PeerServiceFetchProcedure:            {roles: runners, reads: true},
}

// authorize checks who calls and whether they may, before anything of the body
// is read, and answers refusals in the caller's own protocol.
func (c *Coordinator) authorize(next http.Handler) http.Handler {
	refuse := c.refuser()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rules[r.URL.Path].open {
			if err := c.underShare(next, w, r); err != nil {
				refuse(w, r, err)
			}
			return
		}
		id, err := c.authenticate(r, time.Now())
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, r, err)
			return
		}
		rule, known := rules[r.URL.Path]
		switch {
		case !known:
			refuse(w, r, problem.New(connect.CodeUnimplemented, problem.Unsupported, "look at the API's list of calls", "no such call"))
		case !slices.Contains(rule.roles, id.role):
			refuse(w, r, problem.New(connect.CodePermissionDenied, problem.PermissionDenied,
				"use a token with role "+strings.Join(rule.roles, " or "), "a token with role %s may not make this call", id.role))
		case !id.may(rule.needs):
			refuse(w, r, noPermission(rule.needs))
		default:
			if err := c.underToken(next, w, r, id); err != nil {
				refuse(w, r, err)
			}
		}
	})
}

// refuser writes errors of calls that don't reach a handler.
func (c *Coordinator) refuser() func(http.ResponseWriter, *http.Request, *problem.Error) {
	writer := connect.NewErrorWriter()
	return func(w http.ResponseWriter, r *http.Request, e *problem.Error) {
		c.metrics.refused.WithLabelValues(strings.ToLower(e.Reason)).Inc()
		if err := writer.Write(w, r, problem.Connect(e)); err != nil {
			c.logger.DebugContext(r.Context(), "answer refusal", "error", err)
		}
	}
}

// authenticate finds the token in the replicated state on each call, so that
// revocation works at once.
func (c *Coordinator) authenticate(r *http.Request, now time.Time) (identity, *problem.Error) {
	if id, refusal, ok := c.authenticatePeer(r, now); ok {
		return id, refusal
	}
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return identity{}, unauthenticated("no bearer token in the Authorization header")
	}
	id, hash, ok := parseSecret(strings.TrimSpace(secret))
	if !ok {
		return identity{}, unauthenticated("the token is not one of Skerry's")
	}
	token := c.state.Read().Token(id)
	var stored [sha256.Size]byte
	copy(stored[:], token.GetHash())
	same := subtle.ConstantTimeCompare(stored[:], hash[:]) == 1
	switch {
	case token == nil || !same:
		return identity{}, unauthenticated("the token is unknown")
	case token.GetRevoked() != nil:
		return identity{}, unauthenticated("the token was revoked")
	case expired(token, now):
		return identity{}, tokenExpired()
	}
	out := identity{tokenID: id, role: token.GetRole(), subject: token.GetSubject(), policies: token.GetNetworkPolicies(),
		permissions: token.GetPermissions(), runners: token.GetRunners()}
	if token.GetExpires() != nil {
		out.expires = token.GetExpires().AsTime()
	}
	return out, nil
}

func expired(token *raftlogv1.Token, now time.Time) bool {
	return token.GetExpires() != nil && !now.Before(token.GetExpires().AsTime())
}

func unauthenticated(why string) *problem.Error {
	return problem.New(connect.CodeUnauthenticated, problem.Unauthenticated,
		"ask an admin for a token (skerry token create) and send it as Authorization: Bearer", "%s", why)
}

const secretBytes = 32

// parseSecret splits "sk_<token id without prefix>_<secret>" and hashes the
// secret. It says nothing about whether such a token exists.
func parseSecret(text string) (tokenID string, hash [sha256.Size]byte, ok bool) {
	rest, ok := strings.CutPrefix(text, "sk_")
	if !ok {
		return "", hash, false
	}
	id, secret, ok := strings.Cut(rest, "_")
	if !ok || len(secret) != hex.EncodedLen(secretBytes) {
		return "", hash, false
	}
	return "tk_" + id, sha256.Sum256([]byte(secret)), true
}
