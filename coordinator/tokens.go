package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/state"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	maxDescription = 256
	maxExpires     = 10 * 365 * 24 * time.Hour
	maxPolicies    = 64
	maxRunners     = 64
)

// permissions are those that a token can name.
var permissions = []string{skerryv1.PermissionFiles, skerryv1.PermissionShell, skerryv1.PermissionEnvironments, skerryv1.PermissionNPU, skerryv1.PermissionTransfer}

// runnerPattern is a runner's name with stars for any text.
var runnerPattern = regexp.MustCompile(`^[a-z0-9*][a-z0-9._*-]{0,62}$`)

// namePattern is what agents, runners and projects may be called.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

const nameRemedy = "use 1 to 63 of a-z 0-9 . _ - and start with a letter or digit"

// CreateToken makes a token and, when new, the agent that it is for. The secret
// is given once; only its hash is kept. An acknowledged token is durable (I9).
// With an agent in ctx it is minted by that agent's token; else nobody bounds it.
func (c *Coordinator) CreateToken(ctx context.Context, req *skerryv1.CreateTokenRequest) (secret string, token *skerryv1.Token, err error) {
	record, secret, err := newToken(req, time.Now())
	if err != nil {
		return "", nil, err
	}
	if id := caller(ctx); id.role == skerryv1.RoleAgent {
		if req.GetParent() != "" {
			return "", nil, problem.Invalid("parent", "leave it out: what your token makes is your own or your child", "is for admins to say")
		}
		record.Parent = id.tokenID
	}
	stored, err := c.mintToken(ctx, record, req.GetParent())
	if err != nil {
		return "", nil, err
	}
	return secret, apiToken(stored), nil
}

// mintToken stores a token by the oldest command that can say what it is.
func (c *Coordinator) mintToken(ctx context.Context, record *raftlogv1.Token, agentParent string) (*raftlogv1.Token, error) {
	if record.GetParent() == "" && agentParent == "" && len(record.GetPermissions())+len(record.GetRunners()) == 0 {
		return c.storeToken(ctx, record)
	}
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_MintToken{
		MintToken: &raftlogv1.MintToken{Token: record, AgentParent: agentParent}}})
	return answer.GetToken(), err
}

func (c *Coordinator) storeToken(ctx context.Context, record *raftlogv1.Token) (*raftlogv1.Token, error) {
	answer, err := c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_CreateToken{
		CreateToken: &raftlogv1.CreateToken{Token: record}}})
	if err != nil {
		return nil, err
	}
	return answer.GetToken(), nil
}

// newToken checks req and makes the record and the secret to go with it.
func newToken(req *skerryv1.CreateTokenRequest, now time.Time) (*raftlogv1.Token, string, error) {
	role := req.GetRole()
	if role == "" {
		role = skerryv1.RoleAgent
	}
	if err := checkToken(role, req); err != nil {
		return nil, "", err
	}
	id := ids.New(ids.Token, 0, now).String()
	var raw [secretBytes]byte
	// crypto/rand.Read never fails on Linux; it crashes the program instead.
	_, _ = rand.Read(raw[:])
	part := hex.EncodeToString(raw[:])
	hash := sha256.Sum256([]byte(part))
	token := &raftlogv1.Token{Id: id, Hash: hash[:], Role: role, Subject: req.GetSubject(),
		Project: req.GetProject(), Description: req.GetDescription(), NetworkPolicies: req.GetNetworkPolicies(),
		Permissions: req.GetPermissions(), Runners: req.GetRunners()}
	if s := req.GetExpiresS(); s != 0 {
		token.Expires = timestamppb.New(now.Add(time.Duration(s) * time.Second))
	}
	return token, "sk_" + strings.TrimPrefix(id, "tk_") + "_" + part, nil
}

func checkToken(role string, req *skerryv1.CreateTokenRequest) error {
	switch role {
	case skerryv1.RoleAgent, skerryv1.RoleAdmin, skerryv1.RoleRunner:
	default:
		return problem.Invalid("role", "use agent, admin or runner", "unknown role")
	}
	switch {
	case !namePattern.MatchString(req.GetSubject()):
		return problem.Invalid("subject", nameRemedy, "is no valid name")
	case req.GetProject() != "" && !namePattern.MatchString(req.GetProject()):
		return problem.Invalid("project", nameRemedy, "is no valid name")
	case len(req.GetDescription()) > maxDescription:
		return problem.Limit("description", "256 bytes", "shorten it")
	case req.GetExpiresS() > uint64(maxExpires/time.Second):
		return problem.Limit("expiresS", "315360000 seconds", "use 0 for a token that does not expire")
	}
	if err := checkScope(role, req); err != nil {
		return err
	}
	return checkPolicies(role, req.GetNetworkPolicies())
}

func checkScope(role string, req *skerryv1.CreateTokenRequest) error {
	scoped := len(req.GetPermissions())+len(req.GetRunners()) > 0 || req.GetParent() != ""
	switch {
	case scoped && role != skerryv1.RoleAgent:
		return problem.Invalid("role", "leave permissions, runners and parent out", "only an agent's token is bounded by them")
	case len(req.GetRunners()) > maxRunners:
		return problem.Limit("runners", "64 names or patterns", "use patterns such as gpu-*")
	case req.GetParent() != "" && !namePattern.MatchString(req.GetParent()):
		return problem.Invalid("parent", nameRemedy, "is no valid name")
	case len(req.GetPermissions()) > len(permissions):
		return problem.Limit("permissions", "5 permissions", "name each once")
	}
	for i, permission := range req.GetPermissions() {
		if !slices.Contains(permissions, permission) {
			return problem.Invalid(fmt.Sprintf("permissions[%d]", i), "use "+strings.Join(permissions, ", "), "%.64q is no permission", permission)
		}
	}
	for i, pattern := range req.GetRunners() {
		if !runnerPattern.MatchString(pattern) {
			return problem.Invalid(fmt.Sprintf("runners[%d]", i), "write a runner's name, with * for any text", "%.64q is no runner's name or pattern", pattern)
		}
	}
	return nil
}

// checkPolicies: only runners know which policies exist, so that names alone can
// be checked here.
func checkPolicies(role string, policies []string) error {
	if len(policies) > maxPolicies {
		return problem.Limit("networkPolicies", "64 policies", "name fewer, or mark policies public in the runners' configuration")
	}
	if len(policies) > 0 && role != skerryv1.RoleAgent {
		return problem.Invalid("networkPolicies", "leave them out: an admin token may name all policies, a runner's none", "go with the role agent alone")
	}
	for i, name := range policies {
		field := fmt.Sprintf("networkPolicies[%d]", i)
		if !namePattern.MatchString(name) {
			return problem.Invalid(field, nameRemedy, "%.64q is no policy's name", name)
		}
		if name == skerryv1.NetworkNone {
			return problem.Invalid(field, "leave it out", "every token may name %q", name)
		}
	}
	return nil
}

func apiToken(t *raftlogv1.Token) *skerryv1.Token {
	return &skerryv1.Token{Id: t.GetId(), Role: t.GetRole(), Subject: t.GetSubject(), Project: t.GetProject(),
		Description: t.GetDescription(), NetworkPolicies: t.GetNetworkPolicies(), Created: t.GetCreated(), Expires: t.GetExpires(), Revoked: t.GetRevoked(),
		Permissions: t.GetPermissions(), Runners: t.GetRunners(), Parent: t.GetParent()}
}

// tokenService is TokenService.
type tokenService struct{ c *Coordinator }

// CreateToken implements TokenServiceHandler.
func (s tokenService) CreateToken(ctx context.Context, req *connect.Request[skerryv1.CreateTokenRequest]) (*connect.Response[skerryv1.CreateTokenResponse], error) {
	secret, token, err := s.c.CreateToken(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.CreateTokenResponse{Token: token, Secret: secret}), nil
}

// ListTokens implements TokenServiceHandler.
func (s tokenService) ListTokens(ctx context.Context, _ *connect.Request[skerryv1.ListTokensRequest]) (*connect.Response[skerryv1.ListTokensResponse], error) {
	out := &skerryv1.ListTokensResponse{}
	view, id := s.c.state.Read(), caller(ctx)
	for _, t := range tokensNear(view, id) {
		if !id.seesToken(view, t) {
			continue
		}
		shown := apiToken(t)
		if !id.seesToken(view, view.Token(t.GetParent())) {
			shown.Parent = "" // another agent's
		}
		out.Tokens = append(out.Tokens, shown)
	}
	return connect.NewResponse(out), nil
}

// tokensNear are all tokens for an admin, and for an agent those of its own and
// of its descendants, among which are all that it may see.
func tokensNear(view state.Reader, id identity) []*raftlogv1.Token {
	if id.role == skerryv1.RoleAdmin {
		return view.Tokens()
	}
	out := view.TokensOf(id.subject)
	for _, child := range view.Descendants(id.subject) {
		out = append(out, view.TokensOf(child.GetName())...)
	}
	return out
}

// RevokeToken implements TokenServiceHandler. A runner's link opened with the
// token ends too.
func (s tokenService) RevokeToken(ctx context.Context, req *connect.Request[skerryv1.RevokeTokenRequest]) (*connect.Response[skerryv1.RevokeTokenResponse], error) {
	if _, err := ids.Parse(ids.Token, req.Msg.GetTokenId()); err != nil {
		return nil, problem.Missing("tokenId", "no such token")
	}
	if view := s.c.state.Read(); !caller(ctx).seesToken(view, view.Token(req.Msg.GetTokenId())) {
		return nil, problem.Missing("tokenId", "no such token")
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_RevokeToken{
		RevokeToken: &raftlogv1.RevokeToken{Id: req.Msg.GetTokenId()}}})
	if err != nil {
		return nil, err
	}
	s.c.links.cutToken(req.Msg.GetTokenId())
	return connect.NewResponse(&skerryv1.RevokeTokenResponse{Token: apiToken(answer.GetToken())}), nil
}
