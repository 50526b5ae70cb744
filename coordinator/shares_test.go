package coordinator

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

func (s *shareSet) of(key string) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[key]
}

// One agent's waiting calls must not be all that there may be.
func TestAnAgentAndItsChildrenHaveAShareOfTheCalls(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Limits.MaxInFlight = 4 * leastShare
	k := startWith(t, cfg)
	ann, bob := k.token("agent", "ann"), k.token("agent", "bob")
	made, err := k.as(ann).tokens.CreateToken(t.Context(), connect.NewRequest(&skerryv1.CreateTokenRequest{Subject: "ann-child"}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for i := range leastShare {
		token := []string{ann, made.Msg.GetSecret()}[i%2]
		all.Go(func() {
			_, _ = k.as(token).inbox.ReadInbox(ctx, connect.NewRequest(&skerryv1.ReadInboxRequest{WaitMs: 30_000}))
		})
	}
	k.until("all wait", func() bool { return k.shares.of("agent ann") == leastShare })
	for name, token := range map[string]string{"agent": ann, "child": made.Msg.GetSecret()} {
		status, text := k.post(rpc.WorkspaceServiceListWorkspacesProcedure, token, `{}`)
		if status != 429 || !strings.Contains(text, "64 calls at once") || !strings.Contains(text, problem.LimitExceeded) {
			t.Errorf("%s beyond its share: %d %s", name, status, text)
		}
	}
	if status, text := k.post(rpc.WorkspaceServiceListWorkspacesProcedure, bob, `{}`); status != 200 {
		t.Errorf("another agent: %d %s", status, text)
	}
	cancel()
	all.Wait()
	k.until("the share is free", func() bool {
		status, _ := k.post(rpc.WorkspaceServiceListWorkspacesProcedure, ann, `{}`)
		return status == 200
	})
}

// Nobody needs a token to call Join and let its body wait.
func TestCallersWithoutATokenHaveAShareOfTheCalls(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Limits.MaxInFlight = 2 * leastShare
	k := startWith(t, cfg)
	ann := k.token("agent", "ann")
	in, out := io.Pipe()
	var all sync.WaitGroup
	defer all.Wait()
	defer func() { _ = out.Close() }()
	for range leastShare {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, k.url+rpc.JoinServiceJoinProcedure, io.NopCloser(in))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
		})
	}
	k.until("all wait", func() bool { return k.shares.of(anonymous) == leastShare })
	if status, text := k.post(rpc.JoinServiceJoinProcedure, "", `{}`); status != 429 || !strings.Contains(text, "without a certificate") {
		t.Errorf("beyond their share: %d %s", status, text)
	}
	if status, text := k.post(rpc.WorkspaceServiceListWorkspacesProcedure, ann, `{}`); status != 200 {
		t.Errorf("an agent: %d %s", status, text)
	}
	if openBodyTimeout > 10*time.Second {
		t.Error("open calls may wait for long")
	}
}
