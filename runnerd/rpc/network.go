package rpc

import (
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

// Networks are the runner's network policies.
type Networks struct {
	// Default is the policy of calls that name none.
	Default string
	// All are the names of all policies but "none", Public those that every token
	// may name.
	All, Public []string
	// Missing says why this host can't serve any, and what to do; nil: it can.
	Missing error
}

// network gives the policy that a call runs under. One that exists but that the
// caller's token may not name is answered like one that doesn't exist.
func (s *Services) network(h http.Header, name string) (string, error) {
	n := s.cfg.Networks
	if name == "" {
		name = n.Default
	}
	if name == "" || name == skerryv1.NetworkNone {
		return skerryv1.NetworkNone, nil
	}
	allowed := n.of(h.Get(skerryv1.HeaderNetworks))
	if !slices.Contains(allowed, name) {
		e := problem.New(connect.CodeFailedPrecondition, problem.Unsupported,
			"use one of: "+strings.Join(append([]string{skerryv1.NetworkNone}, allowed...), ", ")+"; the operator can allow your token more (skerry token create --network)",
			"this runner has no network policy %.64q for your token", name)
		e.Field = "options.network"
		return "", e
	}
	if n.Missing != nil {
		e := problem.New(connect.CodeFailedPrecondition, problem.TierUnavailable, `use "none", or another runner; skerry doctor tells how to get it`,
			"this runner's sandboxes can't have a network policy: %v", n.Missing)
		e.Field = "options.network"
		return "", e
	}
	return name, nil
}

// of gives the policies that a token may name, by what the coordinator says of it.
func (n Networks) of(token string) []string {
	if token == skerryv1.AllNetworks {
		return n.All
	}
	names := strings.Split(token, ",")
	var out []string
	for _, name := range n.All {
		if slices.Contains(n.Public, name) || slices.Contains(names, name) {
			out = append(out, name)
		}
	}
	return out
}
