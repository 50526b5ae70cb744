package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// proxy is an operator's proxy that notes what it is asked and leads everything
// to one server.
type proxy struct {
	mu    sync.Mutex
	asked []string
}

func (p *proxy) start(t *testing.T, server string) string {
	return raw(t, func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		p.mu.Lock()
		p.asked = append(p.asked, req.Method+" "+req.RequestURI+" "+req.Host+" "+req.Header.Get("Proxy-Authorization"))
		p.mu.Unlock()
		if strings.HasPrefix(req.Host, "refused.example") {
			_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		to, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer to.Close()
		if req.Method == http.MethodConnect {
			_, _ = io.WriteString(c, established)
		} else {
			_ = req.Write(to)
		}
		done := make(chan struct{})
		go func() { defer close(done); _, _ = io.Copy(to, c); to.Close() }()
		_, _ = io.Copy(c, to)
		c.Close()
		<-done
	})
}

func (p *proxy) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		return ""
	}
	return p.asked[len(p.asked)-1]
}

// With an upstream proxy the policy's names hold all the same, and no name is
// resolved here.
func TestUpstreamProxy(t *testing.T) {
	plain := web(t, hello)
	secure, pool := secureWeb(t, hello, "a.example")
	var forPlain, forTLS proxy
	plainProxy, tlsProxy := forPlain.start(t, plain), forTLS.start(t, secure)
	rules := []string{"a.example", "refused.example", "direct.example", "10.0.0.9:8080"}
	with := func(address string) *fixture {
		return newFixture(t, func(c *Config, _ *Policy) {
			u, err := ParseUpstream("http://"+address, []string{".direct.example", "direct.example"}, "user:secret")
			if err != nil {
				t.Fatal(err)
			}
			c.Upstream = u
		}, map[string][]string{"direct.example": {publicAddr}}, map[string]string{publicAddr + ":80": plain}, rules...)
	}
	const auth = " Basic dXNlcjpzZWNyZXQ="
	f := with(plainProxy)
	if answer := f.get(t, "http://a.example/x"); !strings.HasPrefix(answer, "HTTP/1.1 200 OK") || forPlain.last() != "GET http://a.example/x a.example"+auth {
		t.Errorf("%s, asked %s", answer, forPlain.last())
	}
	if answer := f.get(t, "http://direct.example/x"); !strings.HasPrefix(answer, "HTTP/1.1 200 OK") || !strings.Contains(f.dialled(), publicAddr) {
		t.Errorf("%s, dialled %s", answer, f.dialled())
	}
	if len(f.names.asked) != 1 {
		t.Errorf("resolved %v", f.names.asked)
	}
	f = with(tlsProxy)
	c, refused := f.tunnel(t, "a.example:443")
	if refused != "" {
		t.Fatal(refused)
	}
	s := tls.Client(c, &tls.Config{ServerName: "a.example", RootCAs: pool})
	fmt.Fprintf(s, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(s); err != nil || !strings.HasSuffix(string(b), "host=a.example uri=/") {
		t.Errorf("%s, %v", b, err)
	}
	s.Close()
	if forTLS.last() != "CONNECT a.example:443 a.example:443"+auth {
		t.Errorf("asked %s", forTLS.last())
	}
	for target, want := range map[string]int{"b.example:443": 403, "169.254.169.254:80": 403, "0xa9fea9fe:80": 403} {
		if _, refused := f.tunnel(t, target); !strings.HasPrefix(refused, fmt.Sprintf("HTTP/1.1 %d ", want)) {
			t.Errorf("%s: %s", target, refused)
		}
	}
	if n := len(forTLS.asked); n != 1 {
		t.Errorf("the proxy was asked %d times", n)
	}
}

func TestUpstreamProxyFails(t *testing.T) {
	var p proxy
	address := p.start(t, "127.0.0.1:1")
	for to, part := range map[string]string{address: "answered 407", "127.0.0.1:1": "can't be reached"} {
		f := newFixture(t, func(c *Config, _ *Policy) { c.Upstream, _ = ParseUpstream("http://"+to, nil, "") }, nil, nil, "refused.example:443")
		b := f.ask(t, "CONNECT refused.example:443 HTTP/1.1\r\nHost: refused.example\r\n\r\n")
		wantRefused(t, b, http.StatusBadGateway, reasonProxy)
		if !strings.Contains(b, part) {
			t.Errorf("no %q in %s", part, b)
		}
	}
}

func TestUpstreamsThatAreRefused(t *testing.T) {
	for _, text := range []string{"", "proxy:3128", "socks5://proxy:1080", "http://", "http://user:pw@proxy:3128", "http://:3128"} {
		if _, err := ParseUpstream(text, nil, ""); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if _, err := ParseUpstream("http://proxy", []string{"10.0.0.0/8"}, ""); err == nil {
		t.Error("a prefix in no_proxy is accepted")
	}
}
