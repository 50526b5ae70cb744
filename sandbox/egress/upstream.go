package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Upstream is the operator's own proxy, through which all but some targets are
// reached. The policy's names hold there as well; where they resolve to is the
// proxy's affair, so that addresses can't be checked: a weaker guarantee.
type Upstream struct {
	url     *url.URL
	auth    string // value of Proxy-Authorization; "" none
	noProxy []Rule
}

// ParseUpstream reads a proxy's URL (http or https, with a port or the scheme's
// own) and the targets to reach without it: names, *.suffixes and addresses.
// userPassword, if not empty, is "USER:PASSWORD".
func ParseUpstream(address string, noProxy []string, userPassword string) (*Upstream, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return nil, errors.New("want http://host:port or https://host:port")
	case u.User != nil:
		return nil, errors.New("credentials do not belong into the URL")
	case u.Port() == "" && u.Scheme == "http":
		u.Host += ":80"
	case u.Port() == "":
		u.Host += ":443"
	}
	up := &Upstream{url: u}
	if userPassword != "" {
		up.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(userPassword))
	}
	for _, text := range noProxy {
		r, err := parseNoProxy(text)
		if err != nil {
			return nil, fmt.Errorf("no_proxy: %w", err)
		}
		up.noProxy = append(up.noProxy, r)
	}
	return up, nil
}

// parseNoProxy takes what the variable NO_PROXY has: a name or ".suffix", which
// hold for any port.
func parseNoProxy(text string) (Rule, error) {
	if strings.HasPrefix(text, ".") {
		text = "*" + text
	}
	host, suffix := strings.CutPrefix(text, "*.")
	t, err := parseTarget(host, 1)
	if err != nil {
		return Rule{}, fmt.Errorf("%q %w", text, err)
	}
	return Rule{host: t.host, addr: t.addr, suffix: suffix}, nil
}

// skips says whether the target is reached without the proxy.
func (u *Upstream) skips(t target) bool {
	for _, r := range u.noProxy {
		r.port = t.port
		if r.allows(t) {
			return true
		}
	}
	return false
}

// dial connects to the proxy itself.
func (u *Upstream) dial(ctx context.Context, dial dialFunc) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := dial(ctx, "tcp", u.url.Host)
	if err == nil && u.url.Scheme == "https" {
		secure := tls.Client(conn, &tls.Config{ServerName: u.url.Hostname(), MinVersion: tls.VersionTLS12})
		if err = secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
		}
		conn = secure
	}
	switch {
	case err == nil:
		return conn, nil
	case timedOut(ctx, err):
		return nil, fail(http.StatusGatewayTimeout, reasonTimeout, "the runner's upstream proxy does not answer")
	}
	return nil, fail(http.StatusBadGateway, reasonProxy, "the runner's upstream proxy can't be reached: %s", cause(err))
}

// tunnel asks the proxy for a tunnel to the target.
func (u *Upstream) tunnel(ctx context.Context, dial dialFunc, t target) (net.Conn, error) {
	conn, err := u.dial(ctx, dial)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(reachTimeout))
	out, err := u.ask(conn, t)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return out, nil
}

func (u *Upstream) ask(conn net.Conn, t target) (net.Conn, error) {
	unreachable := fail(http.StatusBadGateway, reasonProxy, "the runner's upstream proxy broke off")
	ask := "CONNECT " + t.String() + " HTTP/1.1\r\nHost: " + t.String() + "\r\n" + u.credentials() + "\r\n"
	if _, err := conn.Write([]byte(ask)); err != nil {
		return nil, unreachable
	}
	head := &cappedReader{r: conn, left: maxHeadBytes}
	r := bufio.NewReader(head)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // its body is the tunnel
	if err != nil {
		return nil, unreachable
	}
	if res.StatusCode/100 != 2 {
		return nil, fail(http.StatusBadGateway, reasonProxy, "the runner's upstream proxy answered %d", res.StatusCode)
	}
	head.left = -1
	return bufferedConn{conn, r}, nil
}

// credentials is a header line, or nothing.
func (u *Upstream) credentials() string {
	if u.auth == "" {
		return ""
	}
	return "Proxy-Authorization: " + u.auth + "\r\n"
}

// bufferedConn reads what came with the answer first.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c bufferedConn) CloseWrite() error { return closeWrite(c.Conn) }
