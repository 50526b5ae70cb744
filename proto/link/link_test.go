package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// acceptor is the coordinator's end: it authenticates one token and hands links over.
func acceptor(t *testing.T, links chan<- *ClientConn) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/plain", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"code":"unauthenticated","message":"token is unknown"}`)
			return
		}
		conn, err := Accept(w, r, Welcome{Coordinators: []string{"http://127.0.0.1:1", "no endpoint"}})
		if errors.Is(err, ErrNoUpgrade) {
			http.Error(w, err.Error(), http.StatusUpgradeRequired)
			return
		}
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		client, err := NewClientConn(context.WithoutCancel(r.Context()), conn)
		if err != nil {
			t.Errorf("client conn: %v", err)
			return
		}
		links <- client
	})
	return mux
}

// serveBoth is one port with HTTP/1.1, HTTP/2 and the upgrade.
func serveBoth(t *testing.T, handler http.Handler, withTLS bool) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	server.Config.Protocols = &p
	server.EnableHTTP2 = withTLS
	if withTLS {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Seen-Proto", r.Proto)
	_, _ = io.Copy(w, r.Body)
}

func call(t *testing.T, c *ClientConn, body string) (string, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, BaseURL+"/echo", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("call over link: %v", err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), res.Header.Get("Seen-Proto")
}

func TestLinkCarriesCalls(t *testing.T) {
	for _, withTLS := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "tls"}[withTLS]
		t.Run(name, func(t *testing.T) {
			links := make(chan *ClientConn, 1)
			server := serveBoth(t, acceptor(t, links), withTLS)
			cfg := DialConfig{Endpoint: server.URL, Token: "good", Name: "r1"}
			if withTLS {
				roots := x509.NewCertPool()
				roots.AddCert(server.Certificate())
				cfg.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
			}
			conn, _, err := Dial(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- Serve(ctx, conn, http.HandlerFunc(echo)) }()

			client := <-links
			big := strings.Repeat("x", 3<<20)
			body, proto := call(t, client, big)
			if body != big || proto != "HTTP/2.0" {
				t.Errorf("got %d bytes by %s, want %d by HTTP/2.0", len(body), proto, len(big))
			}
			if time.Since(client.LastSeen()) > time.Minute {
				t.Errorf("last seen %v", client.LastSeen())
			}
			cancel()
			if err := <-served; err != nil {
				t.Errorf("serve after cancel: %v", err)
			}
			<-client.Done()
		})
	}
}

func TestOnePortAlsoAnswersPlainCalls(t *testing.T) {
	server := serveBoth(t, acceptor(t, nil), false)
	for _, tt := range []struct {
		want  string
		proto func(*http.Protocols)
	}{
		{"HTTP/1.1", func(p *http.Protocols) { p.SetHTTP1(true) }},
		{"HTTP/2.0", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }},
	} {
		var p http.Protocols
		tt.proto(&p)
		transport := &http.Transport{Protocols: &p}
		res, err := (&http.Client{Transport: transport}).Get(server.URL + "/plain")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(got) != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
		transport.CloseIdleConnections()
	}
}

func TestDialRefusals(t *testing.T) {
	server := serveBoth(t, acceptor(t, nil), false)
	var status *StatusError
	_, _, err := Dial(t.Context(), DialConfig{Endpoint: server.URL, Token: "bad", Name: "r1"})
	if !errors.As(err, &status) || status.Status != 401 || status.Message != "token is unknown" || !denied(err) {
		t.Errorf("wrong token: %v", err)
	}
	for _, endpoint := range []string{"", "ftp://h:1", "http://", "http://h:1/path", "://"} {
		if _, _, err := Dial(t.Context(), DialConfig{Endpoint: endpoint}); err == nil {
			t.Errorf("endpoint %q: no error", endpoint)
		}
	}
	req, _ := http.NewRequest(http.MethodGet, server.URL+Path, nil)
	req.Header.Set("Authorization", "Bearer good")
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("no upgrade header: %d", res.StatusCode)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// A coordinator that accepts and says nothing must not hold the dial for ever.
func TestDialStopsWithContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := ln.Accept(); err == nil {
			accepted <- conn
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, _, err := Dial(ctx, DialConfig{Endpoint: "http://" + ln.Addr().String(), Token: "good", Name: "r1"})
		failed <- err
	}()
	conn := <-accepted
	cancel()
	if err := <-failed; err == nil {
		t.Error("dial succeeded without an answer")
	}
	_ = conn.Close()
}

func TestCallFailsWhenLinkBreaks(t *testing.T) {
	links := make(chan *ClientConn, 1)
	server := serveBoth(t, acceptor(t, links), false)
	conn, _, err := Dial(t.Context(), DialConfig{Endpoint: server.URL, Token: "good", Name: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	gone := make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(gone)
	})
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), conn, handler) }()
	client := <-links
	failed := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, BaseURL+"/", nil)
		_, err := client.Do(req)
		failed <- err
	}()
	<-started
	_ = conn.Close()
	if err := <-failed; err == nil {
		t.Error("call succeeded over a broken link")
	}
	<-client.Done()
	<-gone
	if err := <-served; err == nil {
		t.Error("serve gave no reason")
	}
	_ = client.Close()
}

// Calls that run when the runner stops in order are answered.
func TestServeLetsRunningCallsEnd(t *testing.T) {
	links := make(chan *ClientConn, 1)
	server := serveBoth(t, acceptor(t, links), false)
	conn, _, err := Dial(t.Context(), DialConfig{Endpoint: server.URL, Token: "good", Name: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	release := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "done")
	})
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, conn, handler) }()
	client := <-links
	answer := make(chan string, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, BaseURL+"/", nil)
		res, err := client.Do(req)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer func() { _ = res.Body.Close() }()
		data, _ := io.ReadAll(res.Body)
		answer <- string(data)
	}()
	<-started
	cancel()
	close(release)
	if got := <-answer; got != "done" {
		t.Errorf("answer %q, want done", got)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	_ = client.Close()
}

func TestRunDialsAgainAndTakesTurns(t *testing.T) {
	links := make(chan *ClientConn, 1)
	server := serveBoth(t, acceptor(t, links), false)
	ctx, cancel := context.WithCancel(t.Context())
	var ups, downs atomic.Int32
	cfg := RunConfig{
		Endpoints: []string{"http://127.0.0.1:1", server.URL},
		Token:     func() (string, error) { return "good", nil },
		Name:      "r1",
		OnLink: func(_ string, up bool) {
			if up {
				ups.Add(1)
			} else {
				downs.Add(1)
			}
		},
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, http.HandlerFunc(echo), slog.New(slog.DiscardHandler)) }()
	for i := range 3 {
		client := <-links
		if body, _ := call(t, client, "hi"); body != "hi" {
			t.Errorf("link %d: %q", i, body)
		}
		_ = client.Close()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case client := <-links: // a fourth link may have opened before cancel
		_ = client.Close()
	default:
	}
	if ups.Load() < 3 || downs.Load() != ups.Load() {
		t.Errorf("ups %d downs %d", ups.Load(), downs.Load())
	}
	if err := Run(t.Context(), RunConfig{}, nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no endpoint: no error")
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		want *= time.Millisecond
		if got := backoff(n, func() float64 { return 1 }); got != want {
			t.Errorf("backoff(%d) = %v, want %v", n, got, want)
		}
		if got := backoff(n, func() float64 { return 0 }); got != want/2 {
			t.Errorf("least backoff(%d) = %v, want %v", n, got, want/2)
		}
	}
}

// Endpoints that fail are left until the others do as well.
func TestPickPassesOverWhatFailed(t *testing.T) {
	failed := map[string]int{"a": 2, "b": 1}
	var got []string
	for turn := range 4 {
		got = append(got, pick([]string{"a", "b", "c", "d"}, turn, failed))
	}
	if want := "c c c d"; strings.Join(got, " ") != want {
		t.Errorf("picked %v, want %s", got, want)
	}
	for _, e := range []string{"c", "d"} {
		failed[e] = 1
	}
	if got := pick([]string{"a", "b", "c", "d"}, 0, failed); got != "b" {
		t.Errorf("all have failed: picked %s", got)
	}
}
