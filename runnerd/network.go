package runnerd

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"skerry.internal/config"
	skerryv1 "skerry.internal/proto/skerry/v1"
	"skerry.internal/sandbox/egress"
)

// Network says what sandboxes may reach; see docs/security.md.
type Network struct {
	// Default is the policy of calls that name none: "none" or a public one.
	Default string `yaml:"default"`
	// MaxConnections of all executions together; 0: 1024.
	MaxConnections int `yaml:"max_connections"`
	// Policies by name. "none" always exists, and is not listed.
	Policies map[string]NetworkPolicy `yaml:"policies"`
	// UpstreamProxy is the site's own proxy, if servers can be reached by it only.
	UpstreamProxy UpstreamProxy `yaml:"upstream_proxy"`
	// DenyAddresses are prefixes that no name may lead to, though their addresses
	// are public: floating addresses of this host, the site's own networks.
	DenyAddresses []netip.Prefix `yaml:"deny_addresses"`
	// NAT64Prefixes are the site's own, beside 64:ff9b::/96 and 64:ff9b:1::/48.
	NAT64Prefixes []netip.Prefix `yaml:"nat64_prefixes"`
}

// NetworkPolicy is an allowlist with its limits, which hold for each execution.
type NetworkPolicy struct {
	// Allow has rules: name, name:port, *.suffix, *.suffix:port, address:port. A
	// rule without a port means 443 and 80. Addresses that are not public are
	// reached only where a rule has the very address and port.
	Allow []string `yaml:"allow"`
	// Public lets every token name the policy; else a token must list it.
	Public bool `yaml:"public"`
	// MaxConnections at once, 1 to 256; 0: 64.
	MaxConnections int `yaml:"max_connections"`
	// MaxBytesDown and MaxBytesUp in all; 0: 64GiB and 8GiB.
	MaxBytesDown config.Bytes `yaml:"max_bytes_down"`
	MaxBytesUp   config.Bytes `yaml:"max_bytes_up"`
	// IdleTimeout of a connection; 0: 5m. MaxDuration of one; 0: 12h.
	IdleTimeout config.Duration `yaml:"idle_timeout"`
	MaxDuration config.Duration `yaml:"max_duration"`
	// Headers that the gateway adds to plain http requests.
	Headers []AddedHeader `yaml:"headers"`
	// Secrets that commands under the policy get, at most 16.
	Secrets []GivenSecret `yaml:"secrets"`
}

// UpstreamProxy leads all requests that policies allow through another proxy.
type UpstreamProxy struct {
	// URL is http://host:port or https://host:port; empty: no proxy.
	URL string `yaml:"url"`
	// NoProxy has names, .suffixes and addresses that are reached directly.
	NoProxy []string `yaml:"no_proxy"`
	// AuthFile has USER:PASSWORD for the proxy.
	AuthFile string `yaml:"auth_file"`
	// AcceptUncheckedAddresses must be true with a URL: the proxy resolves names,
	// so that an allowed name that resolves to a private address is reached if the
	// proxy reaches it.
	AcceptUncheckedAddresses bool `yaml:"accept_unchecked_addresses"`
}

const (
	defaultBytesDown = 64 << 30
	defaultBytesUp   = 8 << 30
)

func (n Network) validate() error {
	if n.MaxConnections < 0 {
		return &config.FieldError{Field: "network.max_connections", Problem: "is negative", Remedy: "use 0 for the default, 1024"}
	}
	for _, name := range slices.Sorted(maps.Keys(n.Policies)) {
		if err := n.Policies[name].validate(name); err != nil {
			return err
		}
	}
	if p, ok := n.Policies[n.Default]; n.Default != skerryv1.NetworkNone && (!ok || !p.Public) {
		return &config.FieldError{Field: "network.default", Problem: fmt.Sprintf("%q is neither \"none\" nor a public policy", n.Default),
			Remedy: "use none, or mark the policy public: calls that name no policy get it whatever their token says"}
	}
	for i, p := range n.NAT64Prefixes {
		if err := egress.CheckNAT64(p); err != nil {
			return &config.FieldError{Field: fmt.Sprintf("network.nat64_prefixes[%d]", i), Problem: err.Error(), Remedy: "give the prefix of the site's DNS64, such as 2001:db8:64::/96"}
		}
	}
	return n.UpstreamProxy.validate()
}

func (p NetworkPolicy) validate(name string) error {
	field := "network.policies." + name
	switch {
	case name == skerryv1.NetworkNone:
		return &config.FieldError{Field: field, Problem: "is what every runner has, without network", Remedy: "choose another name"}
	case !namePattern.MatchString(name):
		return &config.FieldError{Field: field, Problem: "is not a policy's name", Remedy: "use 1 to 63 of a-z 0-9 . _ -, starting with a letter or digit"}
	case len(p.Allow) == 0:
		return &config.FieldError{Field: field + ".allow", Problem: "is empty", Remedy: "list what may be reached, or use the policy none"}
	case p.MaxConnections < 0 || p.MaxConnections > egress.MostConnections:
		return &config.FieldError{Field: field + ".max_connections", Problem: fmt.Sprintf("is not from 0 to %d", egress.MostConnections), Remedy: "use 0 for the default, 64"}
	case p.IdleTimeout < 0 || p.MaxDuration < 0:
		return &config.FieldError{Field: field + ".idle_timeout", Problem: "idle_timeout and max_duration must not be negative", Remedy: "use 0 for the defaults"}
	}
	for i, text := range p.Allow {
		if _, err := egress.ParseRule(text); err != nil {
			return &config.FieldError{Field: fmt.Sprintf("%s.allow[%d]", field, i), Problem: err.Error(),
				Remedy: "use a form such as pypi.example, pypi.example:443, *.example.org or 10.0.0.7:8443"}
		}
	}
	return p.validateCredentials(field)
}

func (u UpstreamProxy) validate() error {
	const field = "network.upstream_proxy"
	if u.URL == "" {
		if len(u.NoProxy) > 0 || u.AuthFile != "" {
			return &config.FieldError{Field: field + ".url", Problem: "is empty, though other keys of the proxy are set", Remedy: "set it, or remove them"}
		}
		return nil
	}
	if _, err := egress.ParseUpstream(u.URL, u.NoProxy, ""); err != nil {
		return &config.FieldError{Field: field, Problem: err.Error(), Remedy: "give url as http://host:port, credentials in auth_file, no_proxy as names, .suffixes or addresses"}
	}
	if !u.AcceptUncheckedAddresses {
		return &config.FieldError{Field: field + ".accept_unchecked_addresses", Problem: "must be true with a proxy, which resolves names itself",
			Remedy: "set it if the proxy keeps to public addresses or if allowed names are trusted; see docs/security.md"}
	}
	return nil
}

// gateway is the egress gateway's configuration.
func (n Network) gateway(dir, socket, runner string) (egress.Config, error) {
	c := egress.Config{Dir: dir, SocketName: socket, Runner: runner, MaxConnections: n.MaxConnections, Policies: map[string]*egress.Policy{},
		Site: egress.Site{Deny: n.DenyAddresses, NAT64: n.NAT64Prefixes}}
	for name, p := range n.Policies {
		policy := &egress.Policy{MaxConnections: p.MaxConnections, IdleTimeout: p.IdleTimeout.D(), MaxDuration: p.MaxDuration.D(),
			MaxBytesDown: orDefault(p.MaxBytesDown, defaultBytesDown), MaxBytesUp: orDefault(p.MaxBytesUp, defaultBytesUp)}
		for _, text := range p.Allow {
			r, err := egress.ParseRule(text)
			if err != nil {
				return c, fmt.Errorf("network.policies.%s: %w", name, err)
			}
			policy.Allow = append(policy.Allow, r)
		}
		for _, h := range p.Headers {
			r, err := egress.ParseRule(h.Host)
			if err != nil {
				return c, fmt.Errorf("network.policies.%s: %w", name, err)
			}
			policy.Headers = append(policy.Headers, egress.Header{Rule: r, Name: h.Name, Prefix: h.Prefix, File: h.ValueFile})
		}
		c.Policies[name] = policy
	}
	if n.UpstreamProxy.URL == "" {
		return c, nil
	}
	var auth string
	if file := n.UpstreamProxy.AuthFile; file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return c, fmt.Errorf("network.upstream_proxy.auth_file: %w", err)
		}
		auth = strings.TrimSpace(string(b))
	}
	var err error
	c.Upstream, err = egress.ParseUpstream(n.UpstreamProxy.URL, n.UpstreamProxy.NoProxy, auth)
	return c, err
}

func orDefault(b config.Bytes, unset int64) int64 {
	if b == 0 {
		return unset
	}
	return int64(b)
}

// public gives the policies that every token may name.
func (n Network) public() []string {
	var out []string
	for name, p := range n.Policies {
		if p.Public {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
