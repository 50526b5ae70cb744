package peerrpc

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"skerry.internal/cas"
	"skerry.internal/cas/peer"
	"skerry.internal/proto/link"
	"skerry.internal/proto/problem"
	peerv1 "skerry.internal/proto/skerry/peer/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a store with a tree of 8 MB, and a server of it.
type source struct {
	store   *cas.Store
	root    cas.Digest
	key     ed25519.PrivateKey
	handler http.Handler
}

func openStore(t *testing.T) *cas.Store {
	t.Helper()
	s, err := cas.Open(t.Context(), filepath.Join(t.TempDir(), "store"), cas.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newSource(t *testing.T, limits peer.Limits, receiver string) *source {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	src := &source{store: openStore(t), key: key}
	work := t.TempDir()
	for _, name := range []string{"a", "b", "c", "d"} {
		content := make([]byte, 2_000_000)
		_, _ = rand.Read(content)
		if err := errors.Join(os.MkdirAll(filepath.Join(work, name), 0o755), os.WriteFile(filepath.Join(work, name, "f"), content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.Open(work)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	res, err := src.store.Snapshot(t.Context(), dir, cas.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src.root = res.Tree
	server := peer.NewServer(src.store, peer.ServerConfig{Verifier: peer.Verifier{Keys: []ed25519.PublicKey{public}, Source: "src"}, Limits: limits})
	t.Cleanup(server.Close)
	mux := http.NewServeMux()
	mux.Handle(NewHandler(server, func(*http.Request) string { return receiver }, slog.New(slog.DiscardHandler)))
	src.handler = mux
	return src
}

func (s *source) token(t *testing.T) string {
	t.Helper()
	g := peer.NewGrant(s.root, "src", "rcv", time.Now(), time.Hour)
	token, err := g.Sign(s.key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// listen serves the source on loopback and returns its URL.
func (s *source) listen(t *testing.T) string {
	t.Helper()
	return listen(t, s.handler)
}

func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.Protocols.SetHTTP1(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

func newHTTP(t *testing.T) *http.Client {
	t.Helper()
	transport := NewTransport(nil)
	t.Cleanup(transport.CloseIdleConnections)
	return HTTPClient(transport)
}

// reverse makes a link over which the dialling side serves h.
func reverse(t *testing.T, h http.Handler) *link.ClientConn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- link.Serve(ctx, dialled, h) }()
	client, err := link.NewClientConn(t.Context(), accepted)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); cancel(); <-ended })
	return client
}

// TestPull goes direct, through the connection that the source dialled, and
// through a relay between the two.
func TestPull(t *testing.T) {
	for name, connectTo := range map[string]func(t *testing.T, s *source) (connect.HTTPClient, string){
		"direct": func(t *testing.T, s *source) (connect.HTTPClient, string) { return newHTTP(t), s.listen(t) },
		"reverse connection": func(t *testing.T, s *source) (connect.HTTPClient, string) {
			return HTTPClient(reverse(t, s.handler)), "http://runner"
		},
		"relay": func(t *testing.T, s *source) (connect.HTTPClient, string) {
			target, _ := url.Parse("http://runner")
			proxy := httputil.NewSingleHostReverseProxy(target)
			proxy.Transport, proxy.FlushInterval = reverse(t, s.handler), -1
			return newHTTP(t), listen(t, proxy)
		},
	} {
		t.Run(name, func(t *testing.T) {
			src, to := newSource(t, peer.Limits{}, "rcv"), openStore(t)
			doer, at := connectTo(t, src)
			res, err := peer.Pull(t.Context(), to, NewClient(doer, at, src.token(t)), src.root, peer.PullOptions{Pin: "tree"})
			if err != nil || res.Directories != 5 || res.Blobs != 4 || res.Bytes < 8_000_000 {
				t.Fatalf("%+v, %v", res, err)
			}
			var files int
			err = to.Walk(t.Context(), src.root, "", func(path string, x cas.Entry) error {
				if x.Type != cas.TypeFile {
					return nil
				}
				files++
				content, err := to.GetBytes(t.Context(), x.Digest)
				if len(content) != 2_000_000 {
					t.Errorf("%s has %d bytes", path, len(content))
				}
				return err
			})
			if err != nil || files != 4 {
				t.Errorf("%d files, %v", files, err)
			}
		})
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	src := newSource(t, peer.Limits{Batch: 2}, "rcv")
	other := newSource(t, peer.Limits{}, "mallory")
	doer := newHTTP(t)
	at, otherAt := src.listen(t), other.listen(t)
	x, y, z := cas.DigestOf([]byte("x")), cas.DigestOf([]byte("y")), cas.DigestOf([]byte("z"))
	for name, c := range map[string]struct {
		at, token string
		batch     peer.Batch
		want      peer.Reason
	}{
		"no grant":       {at, "", peer.Batch{Blobs: []cas.Digest{x}}, peer.GrantInvalid},
		"other receiver": {otherAt, other.token(t), peer.Batch{Blobs: []cas.Digest{x}}, peer.GrantAudience},
		"too many":       {at, src.token(t), peer.Batch{Blobs: []cas.Digest{x, y, z}}, peer.Limit},
		"none":           {at, src.token(t), peer.Batch{}, peer.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewClient(doer, c.at, c.token).Fetch(t.Context(), c.batch)
			if err == nil {
				defer s.Close()
				_, err = s.Next()
			}
			var e *peer.Error
			if !errors.As(err, &e) || e.Reason != c.want || (c.want == peer.Limit) != (e.Limit != "") {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestMalformedRequests(t *testing.T) {
	src := newSource(t, peer.Limits{}, "rcv")
	client := NewClient(newHTTP(t), src.listen(t), "")
	for name, c := range map[string]struct {
		req    *peerv1.FetchRequest
		code   connect.Code
		reason string
	}{
		"half a digest": {&peerv1.FetchRequest{Grant: src.token(t), Blobs: make([]byte, 33)}, connect.CodeInvalidArgument, problem.InvalidArgument},
		"huge":          {&peerv1.FetchRequest{Grant: src.token(t), Blobs: make([]byte, 1<<20)}, connect.CodeResourceExhausted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := client.rpc.Fetch(t.Context(), connect.NewRequest(c.req))
			if err == nil {
				defer s.Close()
				if s.Receive() {
					t.Fatal("was answered")
				}
				err = s.Err()
			}
			if connect.CodeOf(err) != c.code || c.reason != "" && problem.Of(err).GetReason() != c.reason {
				t.Errorf("%v", err)
			}
		})
	}
}

// blobs asks for all the tree's files.
func (s *source) blobs(t *testing.T) (b peer.Batch) {
	t.Helper()
	err := s.store.Walk(t.Context(), s.root, "", func(_ string, x cas.Entry) error {
		if x.Type == cas.TypeFile {
			b.Blobs = append(b.Blobs, x.Digest)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// freed waits until the grant's only place is free.
func freed(t *testing.T, c *Client, root cas.Digest) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) { // the place is the server's
		s, err := c.Fetch(t.Context(), peer.Batch{Directories: []cas.Digest{root}})
		if err == nil {
			_, err = s.Next()
			_ = s.Close()
		}
		if err == nil {
			return
		}
		if peer.ReasonOf(err) != peer.Busy {
			t.Fatal(err)
		}
	}
	t.Fatal("the place is still taken")
}

// TestSlowReaderLosesItsPlace: a receiver that stops reading is cut off.
func TestSlowReaderLosesItsPlace(t *testing.T) {
	src := newSource(t, peer.Limits{PerGrant: 1, Send: 300 * time.Millisecond}, "")
	at, token := src.listen(t), src.token(t)
	transport := NewTransport(nil)
	transport.HTTP2.MaxReceiveBufferPerStream, transport.HTTP2.MaxReceiveBufferPerConnection = 64<<10, 128<<10
	defer transport.CloseIdleConnections()
	slow, err := NewClient(HTTPClient(transport), at, token).Fetch(t.Context(), src.blobs(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Next(); err != nil {
		t.Fatal(err)
	}
	freed(t, NewClient(newHTTP(t), at, token), src.root)
	for err == nil {
		_, err = slow.Next()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the slow reader's answer ended well")
	}
	_ = slow.Close()
}

// TestSourceMayTakeItsTime: the deadline is the receiver's, for taking what
// is sent. A source that sends slowly does not run into it.
func TestSourceMayTakeItsTime(t *testing.T) {
	src := newSource(t, peer.Limits{Send: 100 * time.Millisecond}, "")
	slow := peer.NewServer(src.store, peer.ServerConfig{Verifier: peer.Verifier{Keys: []ed25519.PublicKey{src.key.Public().(ed25519.PublicKey)}, Source: "src"},
		Limits: peer.Limits{Send: 100 * time.Millisecond}, Bandwidth: peer.NewLimiter(400)}) // 4 KiB at once, and then 10 s for as many
	defer slow.Close()
	mux := http.NewServeMux()
	mux.Handle(NewHandler(slow, func(*http.Request) string { return "" }, slog.New(slog.DiscardHandler)))
	s, err := NewClient(newHTTP(t), listen(t, mux), src.token(t)).Fetch(t.Context(), src.blobs(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 { // the plan, and what may come at once
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	type next struct{ err error }
	came := make(chan next, 1)
	go func() {
		_, err := s.Next()
		came <- next{err}
	}()
	select {
	case n := <-came:
		t.Errorf("the answer went on, or ended, early: %v", n.err)
	case <-time.After(time.Second): // ten times the receiver's time
	}
}

// TestCancelReachesTheSource: when a receiver goes, its answer ends at once.
func TestCancelReachesTheSource(t *testing.T) {
	src := newSource(t, peer.Limits{PerGrant: 1, Send: time.Hour}, "")
	at, token := src.listen(t), src.token(t)
	ctx, cancel := context.WithCancel(t.Context())
	transport := NewTransport(nil)
	transport.HTTP2.MaxReceiveBufferPerStream, transport.HTTP2.MaxReceiveBufferPerConnection = 64<<10, 128<<10
	defer transport.CloseIdleConnections()
	s, err := NewClient(HTTPClient(transport), at, token).Fetch(ctx, src.blobs(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	cancel()
	freed(t, NewClient(newHTTP(t), at, token), src.root)
	_ = s.Close()
}
