package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Resolver finds the addresses of a complete name, which ends in a dot.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Bounds of reaching a server.
const (
	resolveTimeout = 10 * time.Second
	connectTimeout = 10 * time.Second
	reachTimeout   = 30 * time.Second
	maxAddresses   = 8 // tried of one answer
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// judge decides by the policy alone, before anything is looked up.
func judge(p *Policy, t target) *refusal {
	switch {
	case p.allows(t):
		return nil
	case len(p.Allow) == 0:
		return deny(reasonRemoved, "the policy is no longer in the runner's configuration, or allows nothing")
	case t.host == "":
		return deny(reasonAddress, "addresses are reached only where the policy lists the very address and port")
	}
	return deny(reasonNotAllowed, "this host and port are not on the allowlist")
}

// direct resolves the target, checks all its addresses and connects to one of
// them: there is no second look-up that could give another answer.
func (g *Gateway) direct(ctx context.Context, p *Policy, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	addrs := []netip.Addr{t.addr}
	if t.host != "" {
		var err error
		if addrs, err = g.resolve(ctx, p, t); err != nil {
			return nil, err
		}
	}
	var last error
	for _, addr := range addrs[:min(len(addrs), maxAddresses)] {
		conn, err := g.connect(ctx, netip.AddrPortFrom(addr, t.port))
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, last
}

// resolve gives checked addresses only. One special address among them refuses
// the whole answer: whoever controls the name is up to something, or the name is
// the operator's own and belongs on the list with its address.
func (g *Gateway) resolve(ctx context.Context, p *Policy, t target) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	// With the dot the name is complete: no search domain is tried.
	found, err := g.cfg.Resolver.LookupNetIP(ctx, "ip", t.host+".")
	if timedOut(ctx, err) {
		return nil, fail(http.StatusGatewayTimeout, reasonTimeout, "the name was not resolved within %s", resolveTimeout)
	}
	if err != nil {
		return nil, fail(http.StatusBadGateway, reasonResolve, "the name does not resolve on the runner")
	}
	own, err := g.ownAddresses()
	if err != nil {
		return nil, fail(http.StatusBadGateway, reasonConnect, "the runner can't tell which addresses are its own")
	}
	var out []netip.Addr
	for _, addr := range found {
		addr = addr.Unmap() // resolvers give IPv4 in both forms
		kind := g.cfg.Site.classify(addr)
		if kind == "" && own[addr] {
			kind = ownKind
		}
		if kind == "" || p.lists(addr, t.port) {
			out = append(out, addr)
			continue
		}
		// What a DNS64 made of a public address is left out, not held against the name.
		if inner, ok := g.cfg.Site.embedded(addr); !ok || g.cfg.Site.classify(inner) != "" {
			return nil, deny(reasonSpecial, "the name resolves to %s, an address of kind %q that the policy does not list", addr, kind)
		}
	}
	if len(out) == 0 {
		return nil, fail(http.StatusBadGateway, reasonResolve, "the name has no address that the runner can use")
	}
	return out, nil
}

// ownKind names an address of the runner's host that is public by its number.
// What comes to it from the host itself passes no firewall before the host.
const ownKind = "the runner's own"

// ownAddresses are asked for each time: they change while the daemon runs.
func (g *Gateway) ownAddresses() (map[netip.Addr]bool, error) {
	list, err := g.cfg.interfaces()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own, nil
}

func (g *Gateway) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := g.cfg.dial(ctx, "tcp", to.String())
	switch {
	case err == nil:
		return conn, nil
	case timedOut(ctx, err):
		return nil, fail(http.StatusGatewayTimeout, reasonTimeout, "no connection to %s within %s", to, connectTimeout)
	}
	return nil, fail(http.StatusBadGateway, reasonConnect, "no connection to %s: %s", to, cause(err))
}

func timedOut(ctx context.Context, err error) bool {
	var n net.Error
	return err != nil && (ctx.Err() != nil || (errors.As(err, &n) && n.Timeout()))
}

// cause is the system's own word for a failure, without addresses of the host.
func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	return "it failed"
}
