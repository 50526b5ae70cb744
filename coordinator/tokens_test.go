package coordinator

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestTokenLife(t *testing.T) {
	k := start(t)
	admin := k.as(k.token("admin", "root"))
	made := must[skerryv1.CreateTokenResponse](t)(admin.tokens.CreateToken(t.Context(),
		connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "ann", ExpiresS: 3600, Description: "d"})))
	if tok := made.GetToken(); tok.GetRole() != "agent" || tok.GetProject() != "default" || tok.GetExpires() == nil || tok.GetDescription() != "d" {
		t.Errorf("token %v", tok)
	}
	ann := k.as(made.GetSecret())
	if _, err := ann.workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{})); err != nil {
		t.Fatal(err)
	}
	revoke := connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: made.GetToken().GetId()})
	first := must[skerryv1.RevokeTokenResponse](t)(admin.tokens.RevokeToken(t.Context(), revoke))
	again := must[skerryv1.RevokeTokenResponse](t)(admin.tokens.RevokeToken(t.Context(), revoke))
	if first.GetToken().GetRevoked() == nil || !first.GetToken().GetRevoked().AsTime().Equal(again.GetToken().GetRevoked().AsTime()) {
		t.Errorf("revoked %v, then %v", first, again)
	}
	_, err := ann.workspaces.ListWorkspaces(t.Context(), connect.NewRequest(&skerryv1.ListWorkspacesRequest{}))
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("revoked token: %v", err)
	}
	list := must[skerryv1.ListTokensResponse](t)(admin.tokens.ListTokens(t.Context(), connect.NewRequest(&skerryv1.ListTokensRequest{})))
	if len(list.GetTokens()) != 2 || strings.Contains(sprint(list), strings.Split(made.GetSecret(), "_")[2]) {
		t.Errorf("tokens %v", list)
	}
	for _, id := range []string{"", "tk_x", "ex_00000000000000000000000000", "tk_00000000000000000000000000"} {
		_, err := admin.tokens.RevokeToken(t.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: id}))
		if connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("revoke %q: %v", id, err)
		}
	}
}

func TestTokenRequestsAreChecked(t *testing.T) {
	k := start(t)
	admin := k.as(k.token("admin", "root"))
	k.token("agent", "ann")
	long := strings.Repeat("a", 300)
	tests := []struct {
		req    *skerryv1.CreateTokenRequest
		field  string
		reason string
	}{
		{&skerryv1.CreateTokenRequest{}, "subject", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a", NetworkPolicies: []string{"pypi", "*"}}, "networkPolicies[1]", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a", NetworkPolicies: []string{"a,b"}}, "networkPolicies[0]", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a", NetworkPolicies: []string{"none"}}, "networkPolicies[0]", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a", NetworkPolicies: make([]string, 65)}, "networkPolicies", problem.LimitExceeded},
		{&skerryv1.CreateTokenRequest{Subject: "a", Role: "admin", NetworkPolicies: []string{"pypi"}}, "networkPolicies", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a", Role: "runner", NetworkPolicies: []string{"pypi"}}, "networkPolicies", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "Ann"}, "subject", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: ".ann"}, "subject", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a/b"}, "subject", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "a\n"}, "subject", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: long}, "subject", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Role: "god"}, "role", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Project: "P"}, "project", problem.InvalidArgument},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Project: "other"}, "project", problem.AlreadyExists},
		{&skerryv1.CreateTokenRequest{Subject: "ann", Description: long}, "description", problem.LimitExceeded},
		{&skerryv1.CreateTokenRequest{Subject: "ann", ExpiresS: 1 << 62}, "expiresS", problem.LimitExceeded},
	}
	for _, tt := range tests {
		_, err := admin.tokens.CreateToken(t.Context(), connect.NewRequest(tt.req))
		if p := problem.Of(err); p.GetField() != tt.field || p.GetReason() != tt.reason {
			t.Errorf("%v: %v, %v", tt.req, err, p)
		}
	}
}

func TestBootstrapOnce(t *testing.T) {
	k := start(t)
	path := filepath.Join(t.TempDir(), AdminTokenFile)
	// What a crash before the commit leaves.
	if err := os.WriteFile(path, []byte("stale"), 0o644); err != nil {
		t.Fatal(err)
	}
	created, err := k.Bootstrap(t.Context(), path)
	if err != nil || !created {
		t.Fatalf("created=%v, %v", created, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	admin := k.as(string(bytes.TrimSpace(secret)))
	if _, err := admin.tokens.ListTokens(t.Context(), connect.NewRequest(&skerryv1.ListTokensRequest{})); err != nil {
		t.Errorf("admin token: %v", err)
	}
	if created, err := k.Bootstrap(t.Context(), path); err != nil || created {
		t.Errorf("second time: created=%v, %v", created, err)
	}
	if _, err := k.Bootstrap(t.Context(), "/nowhere/x"); err != nil {
		t.Errorf("path must not matter once a token exists: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".secret-*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
