package coordinator

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"

	pki "skerry.internal/proto/identity"
)

// servesTLS reports whether the API is served with TLS.
func (c *Config) servesTLS() bool { return c.TLS.Enabled() || c.TLS.Cluster || c.Cluster.Enabled() }

// hosts are the names and addresses that this coordinator's certificate is good
// for, beside the name that members ask for.
func (c *Config) hosts() []string {
	out := []string{"localhost", "127.0.0.1", "::1"}
	add := func(host string) {
		if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) || slices.Contains(out, host) {
			return
		}
		out = append(out, host)
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil {
		add(host)
	}
	if u, err := url.Parse(c.Advertise); err == nil {
		add(u.Hostname())
	}
	for _, host := range c.TLS.Names {
		add(host)
	}
	return out
}

// tlsConfig is what the API is served with; nil: clear text. Members of the
// cluster, who ask for identity.ServerName, are shown the cluster's certificate
// and asked for theirs; others see the operator's where there is one.
func (c *Coordinator) tlsConfig() (*tls.Config, error) {
	if !c.cfg.servesTLS() {
		return nil, nil
	}
	protocols := []string{"h2", "http/1.1"}
	members := c.identity.ServerTLS()
	members.NextProtos = protocols
	agents := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, GetCertificate: members.GetCertificate}
	if c.cfg.TLS.Enabled() {
		cert, err := tls.LoadX509KeyPair(c.cfg.TLS.CertFile, c.cfg.TLS.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.cert_file, tls.key_file: %w", err)
		}
		c.metrics.apiExpires.Store(cert.Leaf.NotAfter.Unix())
		agents.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	out := agents.Clone()
	out.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if hello.ServerName == pki.ServerName {
			return members, nil
		}
		return nil, nil
	}
	return out, nil
}
