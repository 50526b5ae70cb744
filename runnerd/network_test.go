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
    pypi: {allow: ["pypi.example:443", "*.files.example"], max_connections: 8, max_bytes_down: 1GiB, idle_timeout: 1m,
      headers: [{host: "pypi.example:80", name: Authorization, prefix: "Bearer ", value_file: `+auth+`}],
      secrets: [{env: TOKEN, value_file: `+auth+`}, {file: netrc, value_file: `+auth+`}]}
    docs: {allow: ["docs.example"], public: true}
  deny_addresses: [203.0.113.0/24]
  nat64_prefixes: ["2001:db8:64::/96"]
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
	if len(pypi.Headers) != 1 || pypi.Headers[0].Prefix != "Bearer " || len(g.Site.Deny) != 1 || len(g.Site.NAT64) != 1 {
		t.Errorf("%+v %+v", pypi.Headers, g.Site)
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
		"network.policies.p.headers[0].host":                "{policies: {p: {allow: [a.example], headers: [{host: '*', name: A, value_file: /f}]}}}",
		"network.policies.p.headers[0].name":                "{policies: {p: {allow: [a.example], headers: [{host: a.example, name: Host, value_file: /f}]}}}",
		"network.policies.p.headers[0].prefix":              `{policies: {p: {allow: [a.example], headers: [{host: a.example, name: A, prefix: "a\nb", value_file: /f}]}}}`,
		"network.policies.p.headers[0].value_file":          "{policies: {p: {allow: [a.example], headers: [{host: a.example, name: A, value_file: f}]}}}",
		"network.policies.p.secrets[0]":                     "{policies: {p: {allow: [a.example], secrets: [{env: A, file: a, value_file: /f}]}}}",
		"network.policies.p.secrets[1]":                     "{policies: {p: {allow: [a.example], secrets: [{env: A, value_file: /f}, {env: A, value_file: /g}]}}}",
		"network.policies.p.secrets[0].env":                 "{policies: {p: {allow: [a.example], secrets: [{env: 'A=B', value_file: /f}]}}}",
		"network.policies.p.secrets[0].file":                "{policies: {p: {allow: [a.example], secrets: [{file: ../a, value_file: /f}]}}}",
		"network.policies.p.secrets[0].value_file":          "{policies: {p: {allow: [a.example], secrets: [{file: a}]}}}",
		"network.nat64_prefixes[0]":                         "{nat64_prefixes: [10.0.0.0/8]}",
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
