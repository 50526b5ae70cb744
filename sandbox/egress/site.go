package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Site is what the operator knows of the network that addresses alone don't tell.
type Site struct {
	// Deny are addresses that no allowed name may lead to, though they are
	// public by their number: floating addresses of the host, a site's own
	// public networks. A policy's rule for the very address and port still holds.
	Deny []netip.Prefix
	// NAT64 are the site's own prefixes for translation to IPv4 (RFC 6052);
	// the well-known ones need not be listed.
	NAT64 []netip.Prefix
}

var nat64Lengths = []int{32, 40, 48, 56, 64, 96}

// ErrNAT64 says that a prefix can't be one for translation.
var ErrNAT64 = errors.New("is not an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits")

// CheckNAT64 says whether RFC 6052 knows such a prefix.
func CheckNAT64(p netip.Prefix) error {
	if !p.Addr().Is6() || p.Addr().Is4In6() || !slices.Contains(nat64Lengths, p.Bits()) {
		return fmt.Errorf("%s %w", p, ErrNAT64)
	}
	return nil
}

const (
	denyKind  = "refused by the runner's configuration"
	nat64Kind = "site NAT64"
)

// classify is the package's classify with what the site adds.
func (s Site) classify(addr netip.Addr) string {
	if name := classify(addr); name != "" {
		return name
	}
	if inner, ok := s.translated(addr); ok {
		if worse := s.classify(inner); worse != "" {
			return worse + " in " + nat64Kind
		}
		return nat64Kind
	}
	for _, p := range s.Deny {
		if p.Contains(addr) {
			return denyKind
		}
	}
	return ""
}

// embedded is the package's embedded with the site's prefixes.
func (s Site) embedded(addr netip.Addr) (netip.Addr, bool) {
	if inner, ok := s.translated(addr); ok {
		return inner, true
	}
	return embedded(addr)
}

// translated takes the IPv4 address out of one below a prefix of the site's: its
// bytes follow the prefix, but for byte 8, which is left out.
func (s Site) translated(addr netip.Addr) (netip.Addr, bool) {
	for _, p := range s.NAT64 {
		if !p.Contains(addr) {
			continue
		}
		b := addr.As16()
		var four [4]byte
		at := p.Bits() / 8
		for i := range four {
			if at == 8 {
				at++
			}
			four[i] = b[at]
			at++
		}
		return netip.AddrFrom4(four), true
	}
	return netip.Addr{}, false
}
