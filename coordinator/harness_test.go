package coordinator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"skerry.internal/config"
	"skerry.internal/coordinator/coordinatortest"
	skerryv1 "skerry.internal/proto/skerry/v1"
	rpc "skerry.internal/proto/skerry/v1/skerryv1connect"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		runChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// cluster is a coordinator that serves on loopback.
type cluster struct {
	*Coordinator
	t    testing.TB
	url  string
	stop func()
	// http1 and h2 are plain clients of url.
	http1, h2 *http.Client
}

func testConfig(dir string) Config {
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Listen, cfg.MetricsListen = dir, "127.0.0.1:0", ""
	cfg.Raft.HeartbeatTimeout = config.Duration(10 * time.Millisecond)
	cfg.Raft.ElectionTimeout = config.Duration(10 * time.Millisecond)
	cfg.RunnerGrace = config.Duration(100 * time.Millisecond)
	cfg.Limits.ShutdownGrace = config.Duration(time.Second)
	return cfg
}

func start(t testing.TB) *cluster { return startWith(t, testConfig(t.TempDir())) }

func startWith(t testing.TB, cfg Config) *cluster {
	return startWithDeps(t, cfg, Deps{Logger: testLogger(t)})
}

func startWithDeps(t testing.TB, cfg Config, deps Deps) *cluster {
	t.Helper()
	c, err := New(t.Context(), cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx, ln) }()
	k := &cluster{Coordinator: c, t: t, url: "http://" + ln.Addr().String(),
		http1: plainClient(t, false), h2: plainClient(t, true)}
	stopped := false
	k.stop = func() {
		if stopped {
			return
		}
		stopped = true
		// A server that stops waits a second for idle HTTP/2 clients to leave.
		k.http1.CloseIdleConnections()
		k.h2.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		closing, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := c.Close(closing); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	t.Cleanup(k.stop)
	return k
}

func testLogger(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	return slog.New(slog.DiscardHandler)
}

func plainClient(t testing.TB, h2 bool) *http.Client {
	var p http.Protocols
	p.SetHTTP1(!h2)
	p.SetUnencryptedHTTP2(h2)
	transport := &http.Transport{Protocols: &p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// token makes a token and gives its secret.
func (k *cluster) token(role, subject string) string {
	k.t.Helper()
	secret, _, err := k.CreateToken(k.t.Context(), &skerryv1.CreateTokenRequest{Role: role, Subject: subject})
	if err != nil {
		k.t.Fatal(err)
	}
	return secret
}

// bearer adds the token to every request of a client.
type bearer struct {
	http  connect.HTTPClient
	token string
}

func (b bearer) Do(req *http.Request) (*http.Response, error) {
	if b.token != "" {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.http.Do(req)
}

// api is one caller's clients.
type api struct {
	executions rpc.ExecutionServiceClient
	files      rpc.FileServiceClient
	workspaces rpc.WorkspaceServiceClient
	runners    rpc.RunnerServiceClient
	tokens     rpc.TokenServiceClient
	agents     rpc.AgentServiceClient
	timers     rpc.TimerServiceClient
	inbox      rpc.InboxServiceClient
}

func (k *cluster) as(token string, opts ...connect.ClientOption) api {
	b := bearer{k.h2, token}
	return api{
		executions: rpc.NewExecutionServiceClient(b, k.url, opts...),
		files:      rpc.NewFileServiceClient(b, k.url, opts...),
		workspaces: rpc.NewWorkspaceServiceClient(b, k.url, opts...),
		runners:    rpc.NewRunnerServiceClient(b, k.url, opts...),
		tokens:     rpc.NewTokenServiceClient(b, k.url, opts...),
		agents:     rpc.NewAgentServiceClient(b, k.url, opts...),
		timers:     rpc.NewTimerServiceClient(b, k.url, opts...),
		inbox:      rpc.NewInboxServiceClient(b, k.url, opts...),
	}
}

// post sends JSON as curl would.
func (k *cluster) post(procedure, token, body string) (int, string) {
	k.t.Helper()
	req, err := http.NewRequestWithContext(k.t.Context(), http.MethodPost, k.url+procedure, strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := bearer{k.http1, token}.Do(req)
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// runner starts a fake runner and waits until it is up.
func (k *cluster) runner(name string) *coordinatortest.Runner {
	r := coordinatortest.NewRunner(name)
	k.run(r)
	return r
}

// run starts r; the result stops it and waits.
func (k *cluster) run(r *coordinatortest.Runner) (stop func()) {
	k.t.Helper()
	name := r.Info.GetName()
	token := k.token(skerryv1.RoleRunner, name)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, k.url, token) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			k.t.Errorf("runner %s: %v", name, err)
		}
	})
	k.t.Cleanup(stop)
	k.until("runner "+name+" up", func() bool {
		return k.state.Read().Runner(name).GetState() == skerryv1.RunnerUp && k.links.get(name) != nil
	})
	return stop
}

// until waits for a condition that other goroutines bring about.
func (k *cluster) until(what string, cond func() bool) {
	k.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			k.t.Fatalf("still waiting for: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func shell(command string) *connect.Request[skerryv1.RunShellRequest] {
	return connect.NewRequest(&skerryv1.RunShellRequest{Command: command})
}

func shellOn(runner, key string) *connect.Request[skerryv1.RunShellRequest] {
	return connect.NewRequest(&skerryv1.RunShellRequest{Command: "true",
		Options: &skerryv1.RunOptions{Runner: runner, IdempotencyKey: key}})
}

func get(id string) *connect.Request[skerryv1.GetExecutionRequest] {
	return connect.NewRequest(&skerryv1.GetExecutionRequest{ExecutionId: id})
}

func must[T any](t testing.TB) func(*connect.Response[T], error) *T {
	return func(res *connect.Response[T], err error) *T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
}

func sprint(v any) string { return fmt.Sprint(v) }

func newNamed(name string) *coordinatortest.Runner { return coordinatortest.NewRunner(name) }
