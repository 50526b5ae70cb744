package coordinator

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"skerry.internal/proto/problem"
	raftlogv1 "skerry.internal/proto/skerry/raftlog/v1"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func idOf(secret string) string { return "tk_" + strings.Split(secret, "_")[1] }

// blocked makes RunShell of a fake runner wait for its call's end, and says when
// a call has arrived.
func blocked(k *cluster, name string) (arrived chan string) {
	arrived = make(chan string, 16)
	r := newNamed(name)
	r.OnShell = func(ctx context.Context, req *skerryv1.RunShellRequest) (*skerryv1.Execution, error) {
		arrived <- req.GetCommand()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	k.run(r)
	return arrived
}

// awaitReason waits for the end of a call and checks why it ended.
func awaitReason(t *testing.T, what string, ended <-chan error, reason, says string) {
	t.Helper()
	select {
	case err := <-ended:
		if p := problem.Of(err); p.GetReason() != reason || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s %q", what, err, reason, says)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("%s goes on", what)
	}
}

// Calls of every form end within seconds when their token, or the one that made
// it, is revoked: waiting ones, streams from the runner, streams from the caller
// who sends nothing, and links.
func TestRevocationEndsCallsUnderWay(t *testing.T) {
	k := start(t)
	arrived := blocked(k, "r1")
	secret := k.token("agent", "ann")
	minted, _, err := k.CreateToken(withIdentity(t.Context(), k.identityOf(secret)), &skerryv1.CreateTokenRequest{Subject: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ann, bob := k.as(minted), k.as(k.token("agent", "bob"))
	go func() { _, _ = bob.executions.RunShell(t.Context(), shell("bob")) }()
	unary := make(chan error, 1)
	go func() { _, err := ann.executions.RunShell(t.Context(), shell("ann")); unary <- err }()
	for range 2 {
		<-arrived
	}
	watch, err := ann.inbox.WatchInbox(t.Context(), connect.NewRequest(&skerryv1.WatchInboxRequest{}))
	if err != nil || !watch.Receive() {
		t.Fatal(err, watch.Err())
	}
	upload := ann.files.UploadFile(t.Context())
	if err := upload.Send(&skerryv1.UploadFileRequest{Part: &skerryv1.UploadFileRequest_Header{Header: &skerryv1.UploadHeader{Path: "f"}}}); err != nil {
		t.Fatal(err)
	}
	streams := make(chan error, 2)
	go func() {
		for watch.Receive() {
		}
		streams <- watch.Err()
	}()
	k.until("upload under way", func() bool { return k.inFlight.Load() >= 4 })
	admin := k.as(k.token("admin", "root"))
	must[skerryv1.RevokeTokenResponse](t)(admin.tokens.RevokeToken(t.Context(), connect.NewRequest(&skerryv1.RevokeTokenRequest{TokenId: idOf(secret)})))
	awaitReason(t, "unary call", unary, problem.Unauthenticated, "revoked")
	awaitReason(t, "stream", streams, problem.Unauthenticated, "revoked")
	go func() { _, err := upload.CloseAndReceive(); streams <- err }()
	awaitReason(t, "upload", streams, problem.Unauthenticated, "revoked")
	if n := k.inFlight.Load(); n != 1 {
		t.Errorf("%d calls in flight, want bob's alone", n)
	}
}

func TestExpiryEndsCallsUnderWay(t *testing.T) {
	k := start(t)
	arrived := blocked(k, "r1")
	record, secret, err := newToken(&skerryv1.CreateTokenRequest{Subject: "ann"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	record.Expires = timestamppb.New(time.Now().Add(time.Second))
	if _, err := k.storeToken(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := k.as(secret).executions.RunShell(t.Context(), shell("x")); ended <- err }()
	<-arrived
	awaitReason(t, "call", ended, problem.Unauthenticated, "expired")
}

// A runner's link ends with its token, by whatever command that was revoked.
func TestRevocationEndsLinks(t *testing.T) {
	k := start(t)
	r := newNamed("r1")
	token := k.token("runner", "r1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, k.url, token) }()
	k.until("link", func() bool { return k.links.get("r1") != nil })
	if _, err := k.node.apply(t.Context(), &raftlogv1.Command{Op: &raftlogv1.Command_RevokeToken{RevokeToken: &raftlogv1.RevokeToken{Id: idOf(token)}}}); err != nil {
		t.Fatal(err)
	}
	k.until("link cut", func() bool { return k.links.get("r1") == nil })
	cancel()
	<-done
}

func TestTokensAreForgottenAfterThirtyDays(t *testing.T) {
	k := start(t)
	old, err := k.storeToken(t.Context(), &raftlogv1.Token{Id: "tk_old", Hash: []byte{1}, Role: "agent", Subject: "ann",
		Expires: timestamppb.New(time.Now().Add(-keepTokens - time.Minute))})
	if err != nil {
		t.Fatal(err)
	}
	young, err := k.storeToken(t.Context(), &raftlogv1.Token{Id: "tk_young", Hash: []byte{1}, Role: "agent", Subject: "ann",
		Expires: timestamppb.New(time.Now().Add(-keepTokens + time.Hour))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.pruneTokens(ctx) }()
	k.until("old token gone", func() bool { return k.state.Read().Token(old.GetId()) == nil })
	cancel()
	<-done
	if k.state.Read().Token(young.GetId()) == nil {
		t.Error("a token was forgotten before its time")
	}
}
