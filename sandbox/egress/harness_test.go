package egress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"skerry.internal/sandbox"
	"skerry.internal/sandbox/sandboxtest"
)

// shimBinary is built once for all tests.
var shimBinary string

func TestMain(m *testing.M) {
	code, err := sandboxtest.Main(m, &shimBinary)
	if err == nil && code == 0 {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// names is a resolver whose answers are taken in turn, the last one for ever.
type names struct {
	mu      sync.Mutex
	answers map[string][]string
	asked   []string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	list := n.answers[strings.TrimSuffix(host, ".")]
	if len(list) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(list) > 1 {
		n.answers[strings.TrimSuffix(host, ".")] = list[1:]
	}
	var out []netip.Addr
	for a := range strings.FieldsSeq(list[0]) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

// fixture is a gateway with one execution's socket.
type fixture struct {
	*Gateway
	dir   string
	names *names
	log   *syncBuffer
	reg   *prometheus.Registry
	mu    sync.Mutex
	dials []string
}

const testSocket = sandbox.EgressSocket

// newFixture opens a gateway whose policy "test" has the given rules. Names
// resolve as answers say. Connections to the addresses in public, which stand
// for the internet, go to servers of the test.
func newFixture(t testing.TB, change func(*Config, *Policy), answers map[string][]string, public map[string]string, rules ...string) *fixture {
	t.Helper()
	f := &fixture{names: &names{answers: answers}, log: &syncBuffer{}, reg: prometheus.NewRegistry()}
	p := &Policy{Allow: mustRules(t, rules...), MaxConnections: 16}
	cfg := Config{Dir: filepath.Join(t.TempDir(), "egress"), SocketName: testSocket, Runner: "node1", Policies: map[string]*Policy{"test": p}, Resolver: f.names}
	cfg.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		f.mu.Lock()
		f.dials = append(f.dials, address)
		f.mu.Unlock()
		if to := public[address]; to != "" {
			address = to
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	if change != nil {
		change(&cfg, p)
	}
	g, err := New(cfg, slog.New(slog.NewTextHandler(f.log, nil)), f.reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	f.Gateway = g
	if f.dir, err = g.Open("ex_1", "test", os.Getgid()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) dialled() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.dials, " ")
}

func dialUnix(t testing.TB, dir string) net.Conn {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), testSocket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// ask sends raw text and gives the whole answer.
func (f *fixture) ask(t testing.TB, text string) string {
	t.Helper()
	c := dialUnix(t, f.dir)
	defer c.Close()
	_, _ = io.WriteString(c, text) // the answer may come before all was taken
	b, err := io.ReadAll(c)
	if err != nil && len(b) == 0 {
		t.Fatal(err)
	}
	return string(b)
}

func (f *fixture) get(t testing.TB, uri string) string {
	t.Helper()
	rest := strings.TrimPrefix(uri, "http://")
	host, _, _ := strings.Cut(rest, "/")
	return f.ask(t, "GET "+uri+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
}

// tunnel opens a tunnel; the answer is "" if it was granted.
func (f *fixture) tunnel(t testing.TB, target string) (net.Conn, string) {
	t.Helper()
	c := dialUnix(t, f.dir)
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(line, "HTTP/1.1 200 ") {
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return c, ""
	}
	rest, _ := io.ReadAll(r)
	return nil, line + string(rest)
}

// wantRefused checks the parts of a refusal that an agent needs.
func wantRefused(t testing.TB, answer string, status int, reason string) {
	t.Helper()
	want := fmt.Sprintf("HTTP/1.1 %d ", status)
	if !strings.HasPrefix(answer, want) || !strings.Contains(answer, "reason="+reason+";") {
		t.Fatalf("answer is\n%s\nwant %s... with reason %s", answer, want, reason)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// await waits for a line of the gateway's log.
func (s *syncBuffer) await(t testing.TB, parts ...string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for line := range strings.Lines(s.String()) {
			all := true
			for _, part := range parts {
				all = all && strings.Contains(line, part)
			}
			if all {
				return
			}
		}
	}
	t.Fatalf("no line with %q in the log:\n%s", parts, s.String())
}

// web serves HTTP on loopback.
func web(t testing.TB, h http.HandlerFunc) (address string) {
	t.Helper()
	return serveOn(t, listenTCP(t), h)
}

func listenTCP(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func serveOn(t testing.TB, l net.Listener, h http.Handler) string {
	s := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().String()
}

// raw serves connections by hand.
func raw(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l := listenTCP(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// certificate is a new one for the names, and a pool that trusts it.
func certificate(t testing.TB, dnsNames ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: dnsNames, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

// secureWeb serves HTTPS on loopback.
func secureWeb(t testing.TB, h http.HandlerFunc, dnsNames ...string) (address string, pool *x509.CertPool) {
	t.Helper()
	cert, pool := certificate(t, dnsNames...)
	return serveOn(t, tls.NewListener(listenTCP(t), &tls.Config{Certificates: []tls.Certificate{cert}}), h), pool
}

func tlsListener(t testing.TB, cert tls.Certificate) net.Listener {
	t.Helper()
	return tls.NewListener(listenTCP(t), &tls.Config{Certificates: []tls.Certificate{cert}})
}
