package runnerd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.internal/config"
)

func load(t *testing.T, yaml string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runnerd.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	c.Name = "node1"
	return c, config.Load(&c, config.Source{Path: path})
}

func TestNetworkConfig(t *testing.T) {
	auth := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(auth, []byte("user:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, `
network:
  default: docs
  policies:
    pypi: {allow: ["pypi.example:443", "*.files.example"], max_connections: 8, max_bytes_down: 1GiB, idle_timeout: 1m}
    docs: {allow: ["docs.example"], public: true}
  upstream_proxy: {url: "http://proxy.example:3128", no_proxy: [".corp.example"], auth_file: `+auth+`, accept_unchecked_addresses: true}
`)
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Network.gateway("/d", "s", "node1")
	if err != nil {
		t.Fatal(err)
	}
	pypi, docs := g.Policies["pypi"], g.Policies["docs"]
	if pypi.MaxConnections != 8 || pypi.MaxBytesDown != 1<<30 || pypi.MaxBytesUp != defaultBytesUp || len(pypi.Allow) != 2 || docs.MaxBytesDown != defaultBytesDown || g.Upstream == nil {
		t.Errorf("%+v %+v %+v", pypi, docs, g.Upstream)
	}
	var printed strings.Builder
	if err := config.Print(&printed, c); err != nil {
		t.Fatal(err)
	}
	again, err := load(t, printed.String())
	if err != nil || again.Network.Policies["pypi"].MaxBytesDown != 1<<30 || strings.Contains(printed.String(), "user:") {
		t.Errorf("%v: %s", err, printed.String())
	}
}

func TestNetworkConfigIsChecked(t *testing.T) {
	for field, yaml := range map[string]string{
		"network.default":                                   "{default: pypi, policies: {pypi: {allow: [a.example]}}}",
		"network.max_connections":                           "{max_connections: -1}",
		"network.policies.none":                             "{policies: {none: {allow: [a.example]}}}",
		"network.policies.a,b":                              `{policies: {"a,b": {allow: [a.example]}}}`,
		"network.policies.p.allow":                          "{policies: {p: {}}}",
		"network.policies.p.allow[1]":                       `{policies: {p: {allow: [a.example, "*.org"]}}}`,
		"network.policies.p.allow[0]":                       `{policies: {p: {allow: ["10.0.0.0/8"]}}}`,
		"network.policies.p.max_connections":                "{policies: {p: {allow: [a.example], max_connections: 257}}}",
		"network.upstream_proxy.url":                        "{upstream_proxy: {no_proxy: [a.example]}}",
		"network.upstream_proxy":                            "{upstream_proxy: {url: 'http://u:p@proxy:3128', accept_unchecked_addresses: true}}",
		"network.upstream_proxy.accept_unchecked_addresses": "{upstream_proxy: {url: 'http://proxy:3128'}}",
	} {
		_, err := load(t, "network: "+yaml)
		var typed *config.FieldError
		if !errors.As(err, &typed) || typed.Field != field || typed.Remedy == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := load(t, "network: {policies: {p: {allow: [a.example], allways: true}}}"); err == nil {
		t.Error("an unknown key passes")
	}
}
