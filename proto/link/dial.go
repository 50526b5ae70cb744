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
	// Token is a bearer token with role "runner" whose subject is Name.
	Token string
	// TLS is used for https; nil: the system's roots.
	TLS *tls.Config
	// Name of the runner.
	Name string
}

// StatusError is a coordinator's refusal of a link.
type StatusError struct {
	Status int
	// Message is the coordinator's own text, bounded.
	Message string
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
func Dial(ctx context.Context, cfg DialConfig) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	target, err := parseEndpoint(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	raw, err := dialTarget(ctx, target, cfg.TLS)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", cfg.Endpoint, err)
	}
	stop := interrupt(ctx, raw)
	conn, err := upgrade(ctx, raw, target, cfg)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("link with %s: %w", cfg.Endpoint, err)
	}
	return conn, nil
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

func dialTarget(ctx context.Context, target *url.URL, base *tls.Config) (net.Conn, error) {
	dialer := &net.Dialer{KeepAlive: pingAfter}
	if target.Scheme == "http" {
		return dialer.DialContext(ctx, "tcp", target.Host)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if base != nil {
		cfg = base.Clone()
	}
	// An upgrade exists in HTTP/1.1 only, so HTTP/2 must not be negotiated.
	cfg.NextProtos = []string{"http/1.1"}
	return (&tls.Dialer{NetDialer: dialer, Config: cfg}).DialContext(ctx, "tcp", target.Host)
}

func upgrade(ctx context.Context, conn net.Conn, target *url.URL, cfg DialConfig) (net.Conn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	req.Header.Set("Authorization", "Bearer "+cfg.Token)
	req.Header.Set(HeaderRunner, cfg.Name)
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("send upgrade: %w", err)
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, req)
	if err != nil {
		return nil, fmt.Errorf("read answer to upgrade: %w", err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = res.Body.Close() }()
		return nil, &StatusError{Status: res.StatusCode, Message: refusalText(res.Body)}
	}
	if got := res.Header.Get("Upgrade"); got != Protocol {
		return nil, fmt.Errorf("coordinator speaks %q, this runner %q", got, Protocol)
	}
	if reader.Buffered() == 0 {
		return watch(conn, nil), nil
	}
	return watch(conn, io.LimitReader(reader, int64(reader.Buffered()))), nil
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
