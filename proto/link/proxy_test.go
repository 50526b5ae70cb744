package link

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// tunnels is an HTTP proxy that connects callers with the password, and counts them.
type tunnels struct {
	password string
	count    atomic.Int32
}

func (p *tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+p.password))
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != want {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	p.count.Add(1)
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = to.Close()
		return
	}
	_, _ = io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
	_, _ = io.Copy(from, to)
	_ = from.Close()
}

func proxyFunc(t *testing.T, text string) func(*url.URL) (*url.URL, error) {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(*url.URL) (*url.URL, error) { return u, nil }
}

func TestLinkThroughAProxy(t *testing.T) {
	for _, withTLS := range []bool{false, true} {
		links := make(chan *ClientConn, 1)
		server := serveBoth(t, acceptor(t, links), withTLS)
		p := &tunnels{password: "secret"}
		proxy := httptest.NewServer(p)
		defer proxy.Close()
		at := strings.Replace(proxy.URL, "http://", "http://me:secret@", 1)
		cfg := DialConfig{Endpoint: server.URL, Token: "good", Name: "r1", Proxy: proxyFunc(t, at)}
		if withTLS {
			roots := x509.NewCertPool()
			roots.AddCert(server.Certificate())
			cfg.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		}
		conn, welcome, err := Dial(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if p.count.Load() != 1 {
			t.Errorf("%d connections by the proxy", p.count.Load())
		}
		if len(welcome.Coordinators) != 1 || welcome.Coordinators[0] != "http://127.0.0.1:1" {
			t.Errorf("learned %q", welcome.Coordinators)
		}
		client := <-links
		_ = client.Close()
		_ = conn.Close()

		cfg.Proxy = proxyFunc(t, strings.Replace(at, "secret", "wrong", 1))
		_, _, err = Dial(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "wrong") {
			t.Errorf("with a wrong password: %v", err)
		}
	}
}

func TestProxyThatTalksOutOfTurn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 Switching Protocols\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}()
	_, _, err = Dial(t.Context(), DialConfig{Endpoint: "http://127.0.0.1:1", Name: "r1", Proxy: proxyFunc(t, "http://"+ln.Addr().String())})
	if err == nil || !strings.Contains(err.Error(), "before the other end could") {
		t.Errorf("error %v", err)
	}
	<-done
}

// follower refers to the leader, and relays who cannot reach it.
func follower(t *testing.T, leader, says string, relayed *atomic.Int32) *httptest.Server {
	t.Helper()
	to, err := url.Parse(leader)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(HeaderDirect) != "" {
			w.Header().Set(HeaderLeader, says)
			w.WriteHeader(http.StatusMisdirectedRequest)
			return
		}
		relayed.Add(1)
		httputil.NewSingleHostReverseProxy(to).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestRunPrefersTheLeader(t *testing.T) {
	for name, reachable := range map[string]bool{"reachable": true, "behind the follower": false} {
		t.Run(name, func(t *testing.T) {
			links := make(chan *ClientConn, 1)
			leader := serveBoth(t, acceptor(t, links), false)
			says := leader.URL
			if !reachable {
				says = "http://127.0.0.1:1"
			}
			var relayed atomic.Int32
			near := follower(t, leader.URL, says, &relayed)
			ups := make(chan string, 1)
			stop := background(t, RunConfig{Endpoints: []string{near.URL}, Name: "r1", Token: func() (string, error) { return "good", nil },
				OnLink: func(endpoint string, up bool) {
					if up {
						ups <- endpoint
					}
				}})
			defer stop()
			want := near.URL
			if reachable {
				want = leader.URL
			}
			if got := <-ups; got != want || (relayed.Load() == 0) != reachable {
				t.Errorf("link with %s (relayed %d), want %s", got, relayed.Load(), want)
			}
			client := <-links
			if body, _ := call(t, client, "hello"); body != "hello" {
				t.Errorf("answer %q", body)
			}
			_ = client.Close()
		})
	}
}

// A coordinator that the runner was told of takes over when the one that it was
// configured with is gone.
func TestRunLearnsCoordinators(t *testing.T) {
	links := make(chan *ClientConn, 1)
	second := serveBoth(t, acceptor(t, links), false)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := Accept(w, r, Welcome{Coordinators: []string{second.URL}})
		if err == nil {
			_ = conn.Close()
		}
	}))
	told := make(chan []string, 2)
	stop := background(t, RunConfig{Endpoints: []string{first.URL}, Name: "r1", Token: func() (string, error) { return "good", nil },
		OnCoordinators: func(list []string) { told <- list }})
	defer stop()
	if got := <-told; len(got) != 1 || got[0] != second.URL {
		t.Errorf("told of %q", got)
	}
	first.Close()
	select {
	case client := <-links:
		_ = client.Close()
	case <-time.After(10 * time.Second):
		t.Fatal("no link with the second")
	}
}

// Who dials is told that it is refused, so that it can get a better certificate.
func TestRunTellsOfARefusal(t *testing.T) {
	server := serveBoth(t, acceptor(t, make(chan *ClientConn, 1)), false)
	refused := make(chan struct{}, 100)
	stop := background(t, RunConfig{Endpoints: []string{server.URL}, Name: "r1", Token: func() (string, error) { return "bad", nil },
		OnDenied: func() { refused <- struct{}{} }})
	defer stop()
	select {
	case <-refused:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told")
	}
}

// background runs Run until stop.
func background(t *testing.T, cfg RunConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, cfg, http.HandlerFunc(echo), slog.New(slog.DiscardHandler))
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
}
