package coordinator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/enroll"
	pki "skerry.internal/proto/identity"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// secured starts a coordinator that serves with the cluster's own certificate.
func secured(t *testing.T) *cluster {
	t.Helper()
	cfg := testConfig(t.TempDir())
	cfg.TLS.Cluster = true
	k := startWith(t, cfg)
	k.url = strings.Replace(k.url, "http://", "https://", 1)
	return k
}

// joins is JoinService as an admin sees it.
func (k *cluster) joins() rpc.JoinServiceClient {
	transport := &http.Transport{TLSClientConfig: k.trust(), ForceAttemptHTTP2: true}
	k.t.Cleanup(transport.CloseIdleConnections)
	bearer := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		token := k.token("admin", "root")
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+token)
			return next(ctx, req)
		}
	}))
	return rpc.NewJoinServiceClient(&http.Client{Transport: transport}, k.url, bearer)
}

// trust is an agent's: the authority by --ca-file, the server by its address.
func (k *cluster) trust() *tls.Config {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(k.identity.Authorities()) {
		k.t.Fatal("no authorities")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
}

func (k *cluster) joinToken(role, name string) string {
	k.t.Helper()
	return must[skerryv1.CreateJoinTokenResponse](k.t)(k.joins().CreateJoinToken(k.t.Context(),
		connect.NewRequest(&skerryv1.CreateJoinTokenRequest{Role: role, Name: name}))).GetSecret()
}

func (k *cluster) enrolling(name string) enroll.Config {
	return enroll.Config{Endpoints: func() []string { return []string{k.url} }, Name: name, Logger: slog.New(slog.DiscardHandler)}
}

func newIdentity(t testing.TB) *pki.Identity {
	t.Helper()
	id, err := pki.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (k *cluster) join(name string) *pki.Identity {
	k.t.Helper()
	id := newIdentity(k.t)
	if err := enroll.Join(k.t.Context(), id, k.joinToken("runner", name), k.enrolling(name)); err != nil {
		k.t.Fatal(err)
	}
	return id
}

func TestRunnerJoinsAndLinksByItsCertificate(t *testing.T) {
	k := secured(t)
	id := k.join("r1")
	if leaf := id.Leaf(); leaf.Role != pki.RoleRunner || leaf.Name != "r1" || leaf.Cluster != k.ClusterID() {
		t.Fatalf("joined as %+v", leaf)
	}
	conn, _, err := link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Name: "r1", TLS: id.ClientTLS(pki.RoleCoordinator)})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	_, _, err = link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Name: "r2", TLS: id.ClientTLS(pki.RoleCoordinator)})
	var refusal *link.StatusError
	if !errors.As(err, &refusal) || !refusal.Denied() {
		t.Errorf("under another name: %v", err)
	}
	before := id.Leaf().Serial
	if err := enroll.Renew(t.Context(), id, k.enrolling("r1")); err != nil {
		t.Fatal(err)
	}
	if id.Leaf().Serial == before {
		t.Error("the certificate was not renewed")
	}
}

// A runner's certificate is no token: it opens links, reads from other runners
// with a grant and renews itself, no more.
func TestCertificateOfARunnerMakesNoOtherCalls(t *testing.T) {
	k := secured(t)
	id := k.join("r1")
	transport := &http.Transport{TLSClientConfig: id.ClientTLS(pki.RoleCoordinator), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for procedure, rule := range rules {
		if rule.open || slices.Contains(rule.roles, skerryv1.RoleRunner) {
			continue
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, k.url+procedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		// What a relaying coordinator would say is believed of coordinators alone.
		req.Header.Set(headerPeerRole, pki.RoleCoordinator)
		req.Header.Set(headerPeerName, "coordinator-1")
		req.Header.Set(headerPeerSerial, id.Leaf().Serial)
		req.Header.Set(headerPeerExpires, "9999999999")
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: status %d", procedure, res.StatusCode)
		}
	}
}

func TestDenialEndsLinksAndIsForEver(t *testing.T) {
	k := secured(t)
	id := k.join("r1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	up := make(chan struct{}, 1)
	runner := link.RunConfig{Endpoints: []string{k.url}, Name: "r1", TLS: id.ClientTLS(pki.RoleCoordinator), OnLink: func(_ string, isUp bool) {
		if isUp {
			up <- struct{}{}
		} else {
			close(ended)
			cancel()
		}
	}}
	fake := newNamed("r1")
	done := make(chan error, 1)
	go func() { done <- link.Run(ctx, runner, fake.Handler(ctx), slog.New(slog.DiscardHandler)) }()
	<-up
	k.until("link", func() bool { return k.links.get("r1") != nil })
	must[skerryv1.DenyMemberResponse](t)(k.joins().DenyMember(t.Context(), connect.NewRequest(&skerryv1.DenyMemberRequest{Role: "runner", Name: "r1"})))
	<-ended
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, _, err := link.Dial(t.Context(), link.DialConfig{Endpoint: k.url, Name: "r1", TLS: id.ClientTLS(pki.RoleCoordinator)})
	var refusal *link.StatusError
	if !errors.As(err, &refusal) || !refusal.Denied() {
		t.Errorf("a denied certificate: %v", err)
	}
	if err := enroll.Renew(t.Context(), id, k.enrolling("r1")); !errors.Is(err, enroll.ErrRefused) {
		t.Errorf("renewed: %v", err)
	}
	// A new token lets it in again, by the same key.
	if err := enroll.Join(t.Context(), id, k.joinToken("runner", ""), k.enrolling("r1")); err != nil {
		t.Fatal(err)
	}
}

func TestJoinIsRefused(t *testing.T) {
	k := secured(t)
	good := k.joinToken("runner", "r1")
	parts := strings.Split(good, ".")
	other := k.joinToken("runner", "")
	with := func(i int, part string) string {
		out := append([]string(nil), parts...)
		out[i] = part
		return strings.Join(out, ".")
	}
	for name, c := range map[string]struct {
		token, as string
		want      error
	}{
		"not a token":             {"hello", "r1", enroll.ErrToken},
		"another authority":       {with(1, strings.Repeat("0", 64)), "r1", pki.ErrPin},
		"unknown id":              {with(2, strings.Repeat("0", 26)), "r1", enroll.ErrRefused},
		"secret of another token": {with(3, strings.Split(other, ".")[3]), "r1", enroll.ErrRefused},
		"another name":            {good, "r2", enroll.ErrRefused},
		"no name":                 {other, "R 1", enroll.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			id := newIdentity(t)
			err := enroll.Join(t.Context(), id, c.token, k.enrolling(c.as))
			if !errors.Is(err, c.want) || id.Ready() {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if strings.Contains(err.Error(), parts[3]) {
				t.Error("the error has the secret")
			}
		})
	}
	if err := enroll.Join(t.Context(), newIdentity(t), good, k.enrolling("r1")); err != nil {
		t.Errorf("the token is no good after attempts by others: %v", err)
	}
}

// The authority changes while a member is at work: it follows, and what it had
// before is worth nothing in the end.
func TestRotationOfTheAuthority(t *testing.T) {
	k := secured(t)
	id, old := k.join("r1"), k.join("r2")
	agent := k.trust() // of before
	rotate := func(force bool) *skerryv1.Authority {
		return must[skerryv1.RotateAuthorityResponse](t)(k.joins().RotateAuthority(t.Context(),
			connect.NewRequest(&skerryv1.RotateAuthorityRequest{Force: force}))).GetAuthority()
	}
	if phase := rotate(false).GetPhase(); phase != "trusting" {
		t.Fatalf("phase %s", phase)
	}
	if phase := rotate(false).GetPhase(); phase != "trusting" {
		t.Fatalf("phase %s though a member has not followed", phase)
	}
	follow := func() {
		t.Helper()
		if err := enroll.Renew(t.Context(), id, k.enrolling("r1")); err != nil {
			t.Fatal(err)
		}
		if err := k.renewOwn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, phase := range []string{"moving", "steady"} {
		follow()
		if got := rotate(true).GetPhase(); got != phase {
			t.Fatalf("phase %s, want %s", got, phase)
		}
	}
	follow()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(k.url, "https://"), agent)
	if err != nil {
		t.Fatalf("an agent that trusts the old authority: %v", err)
	}
	// OpenSSL takes the first certificate that fits: the one by the old authority.
	if chain := conn.ConnectionState().PeerCertificates; len(chain) != 3 || chain[1].CheckSignatureFrom(chain[1]) == nil || chain[2].CheckSignatureFrom(chain[2]) != nil {
		t.Errorf("the chain of %d is not the certificate, what the old authority certified, and the new one", len(chain))
	}
	_ = conn.Close()
	if certs, err := pki.ParseCertificates(id.Authorities()); err != nil || len(certs) != 1 {
		t.Errorf("the member trusts %d authorities (%v)", len(certs), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := enroll.Renew(ctx, old, k.enrolling("r2")); err == nil {
		t.Error("a member that did not follow is let in")
	}
}

func TestMembersSeeTheClustersCertificate(t *testing.T) {
	k := secured(t)
	address := strings.TrimPrefix(k.url, "https://")
	conn, err := tls.Dial("tcp", address, k.trust()) // an agent, by the address
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	id := k.join("r1")
	conn, err = tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", address, id.ClientTLS(pki.RoleCoordinator))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// A coordinator whose names change gets a certificate that is good for them.
func TestCertificateFollowsTheNames(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.TLS.Cluster = true
	startWith(t, cfg).stop()
	cfg.TLS.Names = []string{"head.example"}
	k := startWith(t, cfg)
	if !k.identity.Covers([]string{"head.example", "127.0.0.1"}) {
		t.Error("the certificate is not good for the new name")
	}
}

func TestRunnersGetNoHostNames(t *testing.T) {
	for role, c := range map[string]struct {
		hosts []string
		want  string
	}{
		"runner":                  {[]string{"localhost"}, problem.InvalidArgument},
		pki.RoleCoordinator:       {[]string{"head-1.cluster", "10.0.0.1", "fd00::1"}, ""},
		pki.RoleCoordinator + "!": {[]string{"*.example"}, problem.InvalidArgument},
	} {
		_, err := checkHosts(strings.TrimSuffix(role, "!"), c.hosts)
		reason := ""
		if err != nil {
			reason = asProblem(err).Reason
		}
		if reason != c.want {
			t.Errorf("%s %q: %v", role, c.hosts, err)
		}
	}
}
