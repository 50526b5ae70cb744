package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

// soon is how fast a revocation must be in force.
const soon = 5 * time.Second

// bearer adds a token to each call.
type bearer struct {
	secret string
	next   http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.secret)
	return b.next.RoundTrip(r)
}

// http2 is a client for streams.
func (b *testbed) http2(secret string) *http.Client {
	b.t.Helper()
	pem, err := os.ReadFile(b.CAFile)
	if err != nil {
		b.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	b.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: bearer{secret, transport}}
}

// held is a call that lasts as long as it may.
type held struct {
	what string
	end  func() (time.Time, error)
}

// hold opens calls of every lasting kind at one coordinator; each has begun.
func (b *testbed) hold(ctx context.Context, name, secret, execution string) (all []held) {
	client, endpoint := b.http2(secret), b.endpointOf(name)
	executions, inbox := rpc.NewExecutionServiceClient(client, endpoint), rpc.NewInboxServiceClient(client, endpoint)
	add := func(what string, call func() error) {
		var end time.Time
		var err error
		over := make(chan struct{})
		go func() { defer close(over); err = call(); end = time.Now() }()
		all = append(all, held{name + " " + what, func() (time.Time, error) { <-over; return end, err }})
	}
	wait := uint32(30000)
	add("wait", func() error {
		_, err := executions.GetExecution(ctx, connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: execution, WaitMs: &wait}))
		return err
	})
	add("inbox", func() error {
		_, err := inbox.ReadInbox(ctx, connect.NewRequest(&skerryv1.ReadInboxRequest{WaitMs: wait}))
		return err
	})
	follow, err := executions.FollowExecutionLogs(ctx, connect.NewRequest(&skerryv1.FollowExecutionLogsRequest{ExecutionId: execution}))
	if err != nil || !follow.Receive() {
		b.t.Errorf("%s: follow: %v %v", name, err, follow.Err())
		return all
	}
	add("follow", func() error {
		for follow.Receive() {
		}
		return follow.Err()
	})
	watch, err := inbox.WatchInbox(ctx, connect.NewRequest(&skerryv1.WatchInboxRequest{}))
	if err != nil || !watch.Receive() {
		b.t.Errorf("%s: watch: %v %v", name, err, watch.Err())
		return all
	}
	add("watch", func() error {
		for watch.Receive() {
		}
		return watch.Err()
	})
	port := executions.PortForward(ctx)
	err = port.Send(&skerryv1.PortForwardRequest{ExecutionId: execution, Port: 8000})
	if err == nil {
		err = port.Send(&skerryv1.PortForwardRequest{Data: []byte("hello\n")})
	}
	echo, rerr := port.Receive()
	for rerr == nil && len(echo.GetData()) == 0 { // the first message says that it is connected
		echo, rerr = port.Receive()
	}
	if err != nil || rerr != nil || string(echo.GetData()) != "hello\n" {
		b.t.Errorf("%s: port forward: %v %v %q", name, err, rerr, echo.GetData())
		return all
	}
	add("port forward", func() error {
		for {
			if _, err := port.Receive(); err != nil {
				return err
			}
		}
	})
	return all
}

const echoServer = `exec python3 -c '
import socket, threading
s = socket.create_server(("127.0.0.1", 8000))
print("listening", flush=True)
def serve(c):
    while data := c.recv(4096):
        c.sendall(data)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
'`

// A token that is revoked, or expires, ends what goes on with it within seconds,
// at the leader and at the others; and so does the denial of a runner or of a
// coordinator end its part in the cluster.
func TestRevocationEndsWhatGoesOn(t *testing.T) {
	t.Parallel()
	b := up(t, "--runners", "2")
	b.revokedTokens()
	b.deniedRunner("r2")
	b.deniedCoordinator(b.followers()[0])
}

func (b *testbed) revokedTokens() {
	t := b.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type token struct {
		Secret string
		Token  struct{ ID string }
	}
	// The expiry leaves time to open all calls.
	const valid = 7 * time.Second
	var revoked, expiring token
	b.admin("TokenService/CreateToken", map[string]any{"subject": "alice"}, &revoked)
	server := b.start(revoked.Secret, echoServer, map[string]any{"runner": "r1"})
	b.until("server", func() bool {
		var out struct{ Records []struct{ Data []byte } }
		b.as(revoked.Secret, "ExecutionService/ReadExecutionLogs", map[string]any{"executionId": server.ID}, &out)
		return len(out.Records) > 0
	})
	b.admin("TokenService/CreateToken", map[string]any{"subject": "alice", "expiresS": int(valid.Seconds())}, &expiring)
	expiry := time.Now().Add(valid)
	calls := map[string][]held{}
	for _, name := range b.withRole("coordinator") {
		for _, tok := range []token{revoked, expiring} {
			calls[tok.Secret] = append(calls[tok.Secret], b.hold(ctx, name, tok.Secret, server.ID)...)
		}
	}
	if left := time.Until(expiry); left < time.Second {
		t.Logf("opening all calls left %v", left)
	}
	time.Sleep(500 * time.Millisecond)
	at := time.Now()
	b.admin("TokenService/RevokeToken", map[string]any{"tokenId": revoked.Token.ID}, nil)
	var all sync.WaitGroup
	expect := func(tok token, from time.Time) {
		for _, h := range calls[tok.Secret] {
			all.Go(func() {
				end, err := h.end()
				if late := end.Sub(from); err == nil || late > soon || late < -500*time.Millisecond {
					t.Errorf("%s ended %v after, with %v", h.what, late, err)
				}
			})
		}
	}
	expect(revoked, at)
	expect(expiring, expiry)
	all.Wait()
	for _, name := range b.withRole("coordinator") {
		for _, tok := range []token{revoked, expiring} {
			if o := b.agents.call(ctx, b.endpointOf(name), tok.Secret, "TimerService/ListTimers", map[string]any{}, nil); o.reason != "UNAUTHENTICATED" {
				t.Errorf("%s answers afterwards: %s", name, o)
			}
		}
	}
}

// deniedRunner: it goes at once, cannot come back with what it has, and can with
// a new join token and an empty directory.
func (b *testbed) deniedRunner(name string) {
	t := b.t
	t.Helper()
	at := time.Now()
	b.admin("JoinService/DenyMember", map[string]any{"role": "runner", "name": name}, nil)
	b.awaitRunner(name, "down")
	if took := time.Since(at); took > soon {
		t.Errorf("the denied runner was there for %v", took)
	}
	b.run("kill", name)
	_ = b.try("start", name) // whether it stays up is its own affair
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if b.runnerState(name) == "up" {
			t.Fatal("the denied runner is back")
		}
	}
	var join struct{ Secret string }
	b.admin("JoinService/CreateJoinToken", map[string]any{"role": "runner", "name": name}, &join)
	b.run("status")
	if !contains(b.stopped(), name) {
		b.run("kill", name)
	}
	dir := b.nodeDir(name)
	if err := os.RemoveAll(filepath.Join(dir, "data", "tls")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "join.token"), []byte(join.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run("start", name)
	b.awaitRunner(name, "up")
}

// deniedCoordinator: it has no part in the cluster any more, and can be removed.
func (b *testbed) deniedCoordinator(name string) {
	t := b.t
	t.Helper()
	b.awaitHealthy()
	at := time.Now()
	b.admin("JoinService/DenyMember", map[string]any{"role": "coordinator", "name": name}, nil)
	healthy := func() bool {
		for _, m := range b.status().Members {
			if m.Name == name {
				return m.Healthy
			}
		}
		return true
	}
	b.until(name+" without a part", func() bool { return !healthy() })
	t.Logf("denied coordinator is out after %v", time.Since(at).Round(100*time.Millisecond))
	if took := time.Since(at); took > 2*soon {
		t.Errorf("the denied coordinator took part for %v", took)
	}
	leader := b.awaitLeader()
	time.Sleep(3 * time.Second) // longer than it takes to ask for an election
	if now := b.awaitLeader(); now != leader || healthy() {
		t.Errorf("%s leads, before %s; the denied one is healthy: %v", now, leader, healthy())
	}
	b.admin("ClusterService/RemoveMember", map[string]any{"name": name}, nil)
	if s := b.status(); len(s.Members) != 2 || strings.Contains(fmt.Sprint(s.Members), name+" ") {
		t.Errorf("after its removal: %+v", s.Members)
	}
}

func (b *testbed) status() (s clusterStatus) {
	b.t.Helper()
	b.admin("ClusterService/GetClusterStatus", map[string]any{}, &s)
	return s
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
