package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/coordinator/ca"
	"skerry.internal/coordinator/state"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/ids"
	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

const (
	defaultJoinLife = time.Hour
	maxJoinLife     = 7 * 24 * time.Hour
	joinVersion     = "v1"
	maxCSR          = 4 << 10
)

// joinService is JoinService.
type joinService struct{ c *Coordinator }

// Join implements JoinServiceHandler.
func (s joinService) Join(ctx context.Context, req *connect.Request[skerryv1.JoinRequest]) (*connect.Response[skerryv1.JoinResponse], error) {
	if !namePattern.MatchString(req.Msg.GetName()) {
		return nil, problem.Invalid("name", nameRemedy, "is no valid name")
	}
	if err := checkRequest(req.Msg.GetRequest()); err != nil {
		return nil, err
	}
	token, err := s.c.findJoinToken(req.Msg.GetToken())
	if err != nil {
		return nil, err
	}
	hosts, err := checkHosts(token.GetRole(), req.Msg.GetHosts())
	if err != nil {
		return nil, err
	}
	cert, bundle, err := s.c.issue(ctx, pki.Peer{Role: token.GetRole(), Name: req.Msg.GetName()}, req.Msg.GetRequest(), hosts,
		&raftlogv1.IssueCertificate{JoinTokenId: token.GetId()})
	if err != nil {
		return nil, err
	}
	s.c.logger.InfoContext(ctx, "member joined", "role", token.GetRole(), "name", req.Msg.GetName(), "join_token", token.GetId())
	return connect.NewResponse(&skerryv1.JoinResponse{Certificate: cert, Authorities: bundle, ClusterId: s.c.ClusterID()}), nil
}

func checkRequest(der []byte) error {
	if len(der) > maxCSR {
		return problem.Limit("request", "4096 bytes", "send a request without extensions")
	}
	if _, err := ca.PublicKey(der); err != nil {
		return problem.Invalid("request", "send a PKCS #10 request in DER for an ECDSA key on P-256", "%v", err)
	}
	return nil
}

const maxHosts = 16

// hostPattern is a DNS name; addresses are checked apart.
var hostPattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}\.?)*$`)

// checkHosts: a runner has no business with names of hosts.
func checkHosts(role string, hosts []string) ([]string, error) {
	if role != pki.RoleCoordinator && len(hosts) > 0 {
		return nil, problem.Invalid("hosts", "leave them out", "go with coordinators alone")
	}
	if len(hosts) > maxHosts {
		return nil, problem.Limit("hosts", "16 names", "list fewer")
	}
	for i, host := range hosts {
		if net.ParseIP(host) == nil && (len(host) > 253 || !hostPattern.MatchString(host)) {
			return nil, problem.Invalid(fmt.Sprintf("hosts[%d]", i), "give DNS names or IP addresses", "%.64q is neither", host)
		}
	}
	return hosts, nil
}

// findJoinToken checks the secret; whether the token is still good the state decides.
func (c *Coordinator) findJoinToken(text string) (*raftlogv1.JoinToken, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != joinVersion || len(parts[3]) != hex.EncodedLen(secretBytes) {
		return nil, badJoinToken("is none: want v1.<authority>.<id>.<secret>")
	}
	token := c.state.Read().JoinToken("jt_" + parts[2])
	hash := sha256.Sum256([]byte(parts[3]))
	var stored [sha256.Size]byte
	copy(stored[:], token.GetHash())
	if subtle.ConstantTimeCompare(stored[:], hash[:]) != 1 || token == nil {
		return nil, badJoinToken("it is unknown, revoked or expired")
	}
	return token, nil
}

func badJoinToken(why string) *problem.Error {
	e := unauthenticated(why)
	e.Field, e.Remedy = "token", "ask an admin for a join token (skerry cluster join-token)"
	return e
}

type requestKey struct{}

// withRequest lets a handler see by which connection a call came.
func withRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, r)))
	})
}

// Renew implements JoinServiceHandler.
func (s joinService) Renew(ctx context.Context, req *connect.Request[skerryv1.RenewRequest]) (*connect.Response[skerryv1.RenewResponse], error) {
	r, _ := ctx.Value(requestKey{}).(*http.Request)
	if r == nil {
		return nil, unauthenticated("no client certificate")
	}
	peer, ok := peerOf(r)
	if !ok {
		return nil, unauthenticated("no client certificate")
	}
	if refusal := s.c.refuseDenied(peer); refusal != nil {
		return nil, refusal
	}
	if time.Now().After(peer.Expires.Add(renewGrace)) {
		return nil, unauthenticated("the certificate expired more than 7 days ago")
	}
	if err := checkRequest(req.Msg.GetRequest()); err != nil {
		return nil, err
	}
	hosts, err := checkHosts(peer.Role, req.Msg.GetHosts())
	if err != nil {
		return nil, err
	}
	cert, bundle, err := s.c.issue(ctx, pki.Peer{Role: peer.Role, Name: peer.Name}, req.Msg.GetRequest(), hosts, &raftlogv1.IssueCertificate{})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RenewResponse{Certificate: cert, Authorities: bundle}), nil
}

// CreateJoinToken implements JoinServiceHandler.
func (s joinService) CreateJoinToken(ctx context.Context, req *connect.Request[skerryv1.CreateJoinTokenRequest]) (*connect.Response[skerryv1.CreateJoinTokenResponse], error) {
	life := defaultJoinLife
	if n := req.Msg.GetExpiresS(); n > uint64(maxJoinLife/time.Second) {
		return nil, problem.Limit("expiresS", "604800 seconds", "make a token when it is needed")
	} else if n != 0 {
		life = time.Duration(n) * time.Second
	}
	switch {
	case req.Msg.GetRole() != pki.RoleRunner && req.Msg.GetRole() != pki.RoleCoordinator:
		return nil, problem.Invalid("role", "use runner or coordinator", "unknown role")
	case req.Msg.GetName() != "" && !namePattern.MatchString(req.Msg.GetName()):
		return nil, problem.Invalid("name", nameRemedy, "is no valid name")
	}
	by, err := signer(s.c.state.Read().Authority())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	id := ids.New(ids.JoinToken, 0, now).String()
	var raw [secretBytes]byte
	// crypto/rand.Read never fails on Linux; it crashes the program instead.
	_, _ = rand.Read(raw[:])
	part := hex.EncodeToString(raw[:])
	hash := sha256.Sum256([]byte(part))
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_CreateJoinToken{CreateJoinToken: &raftlogv1.CreateJoinToken{
		Token: &raftlogv1.JoinToken{Id: id, Hash: hash[:], Role: req.Msg.GetRole(), Name: req.Msg.GetName(), Expires: timestamppb.New(now.Add(life))}}}})
	if err != nil {
		return nil, err
	}
	secret := strings.Join([]string{joinVersion, by.Pin(), strings.TrimPrefix(id, "jt_"), part}, ".")
	return connect.NewResponse(&skerryv1.CreateJoinTokenResponse{Token: apiJoinToken(answer.GetJoinToken()), Secret: secret}), nil
}

func apiJoinToken(t *raftlogv1.JoinToken) *skerryv1.JoinToken {
	return &skerryv1.JoinToken{Id: t.GetId(), Role: t.GetRole(), Name: t.GetName(), Created: t.GetCreated(), Expires: t.GetExpires(),
		Revoked: t.GetRevoked(), Used: t.GetUsed(), UsedBy: t.GetUsedBy()}
}

// ListJoinTokens implements JoinServiceHandler.
func (s joinService) ListJoinTokens(context.Context, *connect.Request[skerryv1.ListJoinTokensRequest]) (*connect.Response[skerryv1.ListJoinTokensResponse], error) {
	out := &skerryv1.ListJoinTokensResponse{}
	for _, t := range s.c.state.Read().JoinTokens() {
		out.Tokens = append(out.Tokens, apiJoinToken(t))
	}
	return connect.NewResponse(out), nil
}

// RevokeJoinToken implements JoinServiceHandler.
func (s joinService) RevokeJoinToken(ctx context.Context, req *connect.Request[skerryv1.RevokeJoinTokenRequest]) (*connect.Response[skerryv1.RevokeJoinTokenResponse], error) {
	if _, err := ids.Parse(ids.JoinToken, req.Msg.GetTokenId()); err != nil {
		return nil, problem.Missing("tokenId", "no such join token")
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_RevokeJoinToken{
		RevokeJoinToken: &raftlogv1.RevokeJoinToken{Id: req.Msg.GetTokenId()}}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RevokeJoinTokenResponse{Token: apiJoinToken(answer.GetJoinToken())}), nil
}

// GetAuthority implements JoinServiceHandler.
func (s joinService) GetAuthority(context.Context, *connect.Request[skerryv1.GetAuthorityRequest]) (*connect.Response[skerryv1.GetAuthorityResponse], error) {
	return connect.NewResponse(&skerryv1.GetAuthorityResponse{Authority: apiAuthority(s.c.state.Read())}), nil
}

func apiAuthority(view state.Reader) *skerryv1.Authority {
	a := view.Authority()
	out := &skerryv1.Authority{Generation: a.GetGeneration(), Phase: a.GetPhase(), Authorities: bundleOf(a), Changed: a.GetChanged()}
	for _, h := range view.Holders() {
		out.Holders = append(out.Holders, apiHolder(h))
	}
	return out
}

func apiHolder(h *raftlogv1.CertificateHolder) *skerryv1.CertificateHolder {
	return &skerryv1.CertificateHolder{Role: h.GetRole(), Name: h.GetName(), Serial: h.GetSerial(), Issued: h.GetIssued(),
		Expires: h.GetExpires(), Generation: h.GetGeneration(), Denied: h.GetDenied()}
}

// RotateAuthority implements JoinServiceHandler.
func (s joinService) RotateAuthority(ctx context.Context, req *connect.Request[skerryv1.RotateAuthorityRequest]) (*connect.Response[skerryv1.RotateAuthorityResponse], error) {
	authority := s.c.state.Read().Authority()
	err := s.c.nextStep(ctx, req.Msg.GetForce())
	if authority.GetPhase() == state.AuthoritySteady {
		err = s.beginRotation(ctx, authority)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&skerryv1.RotateAuthorityResponse{Authority: apiAuthority(s.c.state.Read())}), nil
}

func (s joinService) beginRotation(ctx context.Context, authority *raftlogv1.Authority) error {
	before, err := signer(authority)
	if err != nil {
		return err
	}
	next, err := ca.New(s.c.ClusterID(), time.Now())
	if err != nil {
		return err
	}
	cross, err := before.Certify(next)
	if err != nil {
		return err
	}
	_, err = s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_AdvanceAuthority{AdvanceAuthority: &raftlogv1.AdvanceAuthority{
		FromGeneration: authority.GetGeneration(), Key: &raftlogv1.AuthorityKey{Certificate: next.Certificate, Key: next.Key, Cross: cross}}}})
	return err
}

// DenyMember implements JoinServiceHandler. Links and connections that were opened
// with the certificate end too.
func (s joinService) DenyMember(ctx context.Context, req *connect.Request[skerryv1.DenyMemberRequest]) (*connect.Response[skerryv1.DenyMemberResponse], error) {
	if req.Msg.GetRole() != pki.RoleRunner && req.Msg.GetRole() != pki.RoleCoordinator {
		return nil, problem.Invalid("role", "use runner or coordinator", "unknown role")
	}
	answer, err := s.c.node.apply(ctx, &raftlogv1.Command{Op: &raftlogv1.Command_DenyMember{
		DenyMember: &raftlogv1.DenyMember{Role: req.Msg.GetRole(), Name: req.Msg.GetName()}}})
	if err != nil {
		return nil, err
	}
	s.c.links.cutDenied(s.c.state.Read(), time.Now())
	return connect.NewResponse(&skerryv1.DenyMemberResponse{Holder: apiHolder(answer.GetHolder())}), nil
}
