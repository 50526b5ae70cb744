package link

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// DialConfig says where a runner dials and who it is.
type DialConfig struct {
	// Endpoint is http(s)://host[:port] of a coordinator.
	Endpoint string
	// Token is a bearer token with role "runner" whose subject is Name; empty: the
	// client certificate in TLS says who dials.
	Token string
	// TLS is used for https; nil: the system's roots.
	TLS *tls.Config
	// Name of the runner.
	Name string
	// Proxy gives the HTTP proxy to reach a URL by, nil: none; nil: never one.
	Proxy func(*url.URL) (*url.URL, error)
	// Direct asks a coordinator that does not lead to say who does instead of
	// relaying the link.
	Direct bool
}

// Welcome is what a coordinator tells with a link.
type Welcome struct {
	// Coordinators are all endpoints of the cluster, as far as they are known.
	Coordinators []string
}

// StatusError is a coordinator's refusal of a link.
type StatusError struct {
	Status int
	// Message is the coordinator's own text, bounded.
	Message string
	// Leader is the endpoint of the coordinator that leads, where it is another.
	Leader string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("coordinator refused the link: %d %s: %s", e.Status, http.StatusText(e.Status), e.Message)
}

// Denied reports whether the token was refused, which repeating does not cure.
func (e *StatusError) Denied() bool {
	return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// Dial opens one link. The caller owns the connection and gives it to Serve.
// A refusal is a *StatusError.
func Dial(ctx context.Context, cfg DialConfig) (net.Conn, Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	target, err := parseEndpoint(cfg.Endpoint)
	if err != nil {
		return nil, Welcome{}, err
	}
	raw, err := dialTarget(ctx, target, cfg)
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("dial %s: %w", cfg.Endpoint, err)
	}
	stop := interrupt(ctx, raw)
	conn, welcome, err := upgrade(ctx, raw, target, cfg)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, Welcome{}, fmt.Errorf("link with %s: %w", cfg.Endpoint, err)
	}
	return conn, welcome, nil
}

func parseEndpoint(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("coordinator endpoint: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("coordinator endpoint %q: want http(s)://host:port without a path", endpoint)
	}
	if u.Port() == "" {
		port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	u.Path = Path
	return u, nil
}

func dialTarget(ctx context.Context, target *url.URL, cfg DialConfig) (net.Conn, error) {
	raw, err := dialTCP(ctx, target, cfg.Proxy)
	if err != nil || target.Scheme == "http" {
		return raw, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLS != nil {
		config = cfg.TLS.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = target.Hostname()
	}
	// An upgrade exists in HTTP/1.1 only, so HTTP/2 must not be negotiated.
	config.NextProtos = []string{"http/1.1"}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

func upgrade(ctx context.Context, conn net.Conn, target *url.URL, cfg DialConfig) (net.Conn, Welcome, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, Welcome{}, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	if cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+cfg.Token)
	}
	if cfg.Direct {
		req.Header.Set(HeaderDirect, "1")
	}
	req.Header.Set(HeaderRunner, cfg.Name)
	if err := req.Write(conn); err != nil {
		return nil, Welcome{}, fmt.Errorf("send upgrade: %w", err)
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, req)
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("read answer to upgrade: %w", err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = res.Body.Close() }()
		return nil, Welcome{}, &StatusError{Status: res.StatusCode, Message: refusalText(res.Body), Leader: res.Header.Get(HeaderLeader)}
	}
	if got := res.Header.Get("Upgrade"); got != Protocol {
		return nil, Welcome{}, fmt.Errorf("coordinator speaks %q, this runner %q", got, Protocol)
	}
	welcome := Welcome{Coordinators: splitEndpoints(res.Header.Get(HeaderCoordinators))}
	if reader.Buffered() == 0 {
		return watch(conn, nil), welcome, nil
	}
	return watch(conn, io.LimitReader(reader, int64(reader.Buffered()))), welcome, nil
}

// splitEndpoints reads a list of endpoints.
func splitEndpoints(text string) []string { return Endpoints(strings.Split(text, ",")) }

// Endpoints keeps of what a coordinator told those that are endpoints.
func Endpoints(told []string) (out []string) {
	for _, part := range told {
		part = strings.TrimSpace(part)
		if _, err := parseEndpoint(part); err == nil && len(out) < mostEndpoints {
			out = append(out, part)
		}
	}
	return out
}

// refusalText is the message of a Connect error, or the start of any other body.
func refusalText(body io.Reader) string {
	const most = 4 << 10
	data, err := io.ReadAll(io.LimitReader(body, most))
	if err != nil && len(data) == 0 {
		return "no reason given"
	}
	var wire struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(data, &wire) == nil && wire.Message != "" {
		return wire.Message
	}
	return strings.TrimSpace(string(data))
}

// denied reports whether err is a refusal of the token.
func denied(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Denied()
}

// backoff is the pause before the n-th retry, from 0: exponential with jitter.
func backoff(n int, random func() float64) time.Duration {
	const first, most = 100 * time.Millisecond, 5 * time.Second
	d := most
	if n < 6 {
		d = first << n
	}
	d = min(d, most)
	return time.Duration(float64(d) * (0.5 + random()/2))
}
