package runnerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"skerry.internal/config"
	"skerry.internal/proto/enroll"
	"skerry.internal/proto/identity"
	"skerry.internal/proto/link"
)

// coordinatorsFile, in the data directory, has the endpoints that a coordinator
// told of, so that a runner finds its cluster though all that its configuration
// names have been replaced.
const coordinatorsFile = "coordinators.json"

// membership is how a runner enters its cluster and finds it again.
type membership struct {
	d     *Daemon
	proxy func(*url.URL) (*url.URL, error)

	mu sync.Mutex
	// Endpoints beside the configured ones.
	learned []string
}

func (d *Daemon) newMembership() (*membership, error) {
	proxy, err := d.cfg.proxy()
	if err != nil {
		return nil, err
	}
	m := &membership{d: d, proxy: proxy}
	text, err := os.ReadFile(m.path())
	if err == nil {
		err = json.Unmarshal(text, &m.learned)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// They are a convenience: the configured ones may do.
		d.deps.Logger.Warn("learned coordinators not read", "error", err)
	}
	return m, nil
}

func (m *membership) path() string { return filepath.Join(m.d.cfg.DataDir, coordinatorsFile) }

func (m *membership) endpoints() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.Clone(m.d.cfg.Coordinators)
	for _, endpoint := range m.learned {
		if !slices.Contains(out, endpoint) {
			out = append(out, endpoint)
		}
	}
	return out
}

// told gives the endpoints beside the configured ones.
func (m *membership) told() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.learned)
}

// learn keeps what a coordinator told of the others.
func (m *membership) learn(endpoints []string) {
	if len(endpoints) == 0 {
		return
	}
	m.mu.Lock()
	m.learned = endpoints
	m.mu.Unlock()
	text, err := json.Marshal(endpoints)
	if err == nil {
		err = replaceFile(m.path(), text)
	}
	if err != nil {
		m.d.deps.Logger.Warn("learned coordinators not kept", "error", err)
	}
}

func replaceFile(path string, text []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// enter gives what links are dialled with, and what keeps that fresh. A runner
// that has a certificate, or may join, goes by that; else by its token.
func (m *membership) enter(ctx context.Context, token func() (string, error)) (link.RunConfig, func(context.Context), error) {
	cfg := link.RunConfig{Endpoints: m.d.cfg.Coordinators, Learned: m.told, OnCoordinators: m.learn, Proxy: m.proxy}
	if !m.d.identity.Ready() && m.d.cfg.JoinTokenFile == "" {
		trust, err := m.d.cfg.TLS.config()
		cfg.TLS, cfg.Token = trust, token
		return cfg, func(context.Context) {}, err
	}
	for _, endpoint := range m.d.cfg.Coordinators {
		if !strings.HasPrefix(endpoint, "https://") {
			return cfg, nil, &config.FieldError{Field: "coordinators", Problem: fmt.Sprintf("%q is not https", endpoint),
				Remedy: "a runner with a certificate or join token needs https coordinators"}
		}
	}
	enrolling := enroll.Config{Endpoints: m.endpoints, Name: m.d.cfg.Name, Proxy: m.proxy, Logger: m.d.deps.Logger, Token: m.joinToken}
	if !m.d.identity.Ready() {
		secret, err := m.joinToken()
		if err == nil {
			err = enroll.Join(ctx, m.d.identity, secret, enrolling)
		}
		if err != nil {
			return cfg, nil, fmt.Errorf("join the cluster: %w", err)
		}
		m.d.deps.Logger.InfoContext(ctx, "joined the cluster", "cluster", m.d.identity.Leaf().Cluster, "expires", m.d.identity.NotAfter())
	}
	if name := m.d.identity.Leaf().Name; name != m.d.cfg.Name {
		return cfg, nil, &config.FieldError{Field: "name", Problem: fmt.Sprintf("is %q, the certificate in data_dir is for %q", m.d.cfg.Name, name),
			Remedy: "keep the name, or join anew with an empty data_dir"}
	}
	cfg.TLS = m.d.identity.ClientTLS(identity.RoleCoordinator)
	// A certificate that was denied does for nothing; there may be a new token.
	cfg.OnDenied = m.d.refreshCertificate
	return cfg, func(ctx context.Context) { enroll.Keep(ctx, m.d.identity, enrolling, m.d.refresh) }, nil
}

// joinToken reads the configured file at each use, so that a new one is found.
func (m *membership) joinToken() (string, error) {
	if m.d.cfg.JoinTokenFile == "" {
		return "", errors.New("join_token_file is not set")
	}
	text, err := os.ReadFile(m.d.cfg.JoinTokenFile)
	if err != nil {
		return "", fmt.Errorf("join_token_file: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// refreshCertificate has Keep ask for the next certificate.
func (d *Daemon) refreshCertificate() {
	select {
	case d.refresh <- struct{}{}:
	default: // it is going to
	}
}
