package link

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// dialTCP connects with target, by a proxy where proxy names one.
func dialTCP(ctx context.Context, target *url.URL, proxy func(*url.URL) (*url.URL, error)) (net.Conn, error) {
	dialer := &net.Dialer{KeepAlive: pingAfter, Timeout: connectTimeout}
	if proxy == nil {
		return dialer.DialContext(ctx, "tcp", target.Host)
	}
	via, err := proxy(target)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if via == nil {
		return dialer.DialContext(ctx, "tcp", target.Host)
	}
	conn, err := dialProxy(ctx, dialer, via)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", via.Redacted(), err)
	}
	stop := interrupt(ctx, conn)
	err = tunnel(conn, target.Host, via.User)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy %s: %w", via.Redacted(), err)
	}
	return conn, nil
}

func dialProxy(ctx context.Context, dialer *net.Dialer, via *url.URL) (net.Conn, error) {
	port := via.Port()
	switch {
	case via.Scheme == "http" && port == "":
		port = "80"
	case via.Scheme == "https" && port == "":
		port = "443"
	case via.Scheme != "http" && via.Scheme != "https":
		return nil, fmt.Errorf("want an http or https proxy, not %q", via.Scheme)
	}
	address := net.JoinHostPort(via.Hostname(), port)
	if via.Scheme == "http" {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}).DialContext(ctx, "tcp", address)
}

// tunnel asks a proxy for a connection with host:port. What it answers with
// success is the other end's, of which nothing has come yet: in TLS and in an
// HTTP upgrade the client speaks first.
func tunnel(conn net.Conn, address string, user *url.Userinfo) error {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("ask for a tunnel: %w", err)
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, req)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return fmt.Errorf("it refused a tunnel to %s: %s", address, res.Status)
	}
	if n := reader.Buffered(); n > 0 {
		return fmt.Errorf("it sent %d bytes before the other end could", n)
	}
	return nil
}
