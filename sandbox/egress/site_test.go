package egress

import (
	"net/netip"
	"strings"
	"testing"
)

// The examples of RFC 6052, 2.4, all of 192.0.2.33.
func TestTranslatedAddressesOfRFC6052(t *testing.T) {
	for prefix, addr := range map[string]string{
		"2001:db8::/32":         "2001:db8:c000:221::",
		"2001:db8:100::/40":     "2001:db8:1c0:2:21::",
		"2001:db8:122::/48":     "2001:db8:122:c000:2:2100::",
		"2001:db8:122:300::/56": "2001:db8:122:3c0:0:221::",
		"2001:db8:122:344::/64": "2001:db8:122:344:c0:2:2100::",
		"2001:db8:122:344::/96": "2001:db8:122:344::192.0.2.33",
	} {
		s := Site{NAT64: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		got, ok := s.translated(netip.MustParseAddr(addr))
		if !ok || got.String() != "192.0.2.33" {
			t.Errorf("%s in %s: %v %v", addr, prefix, got, ok)
		}
	}
	for _, bad := range []string{"10.0.0.0/8", "2001:db8::/33", "::ffff:0:0/96"} {
		if CheckNAT64(netip.MustParsePrefix(bad)) == nil {
			t.Errorf("%s passes", bad)
		}
	}
}

// Names that lead to addresses which only the site knows to be its own.
func TestSiteAddresses(t *testing.T) {
	site := Site{
		Deny:  []netip.Prefix{netip.MustParsePrefix("203.0.114.0/24"), netip.MustParsePrefix("2a00:1::/32")},
		NAT64: []netip.Prefix{netip.MustParsePrefix("2a00:2:2:2::/96")},
	}
	answers := map[string][]string{
		"floating.example": {"203.0.114.9"}, "six.example": {"2a00:1::5"}, "public.example": {"198.51.99.1"},
		"mapped.example":    {"2a00:2:2:2::10.0.0.7"}, // a private address behind the site's translator
		"floating4.example": {"2a00:2:2:2::203.0.114.9"},
		"dns64.example":     {"2a00:2:2:2::198.51.99.1 198.51.99.1"}, // what DNS64 adds is left out
		"listed.example":    {"203.0.114.10"},
	}
	server := web(t, hello)
	f := newFixture(t, func(c *Config, _ *Policy) { c.Site = site }, answers,
		map[string]string{"198.51.99.1:80": server, "203.0.114.10:80": server}, "floating.example", "six.example", "public.example", "mapped.example", "floating4.example", "dns64.example", "listed.example", "203.0.114.10:80")
	for name, ok := range map[string]bool{"floating": false, "six": false, "mapped": false, "floating4": false, "public": true, "dns64": true, "listed": true} {
		answer := f.get(t, "http://"+name+".example/")
		if ok {
			if want := "HTTP/1.1 200 "; len(answer) < len(want) || answer[:len(want)] != want {
				t.Errorf("%s: %s", name, answer)
			}
			continue
		}
		wantRefused(t, answer, 403, reasonSpecial)
	}
	for _, dialled := range strings.Fields(f.dialled()) {
		if dialled != "198.51.99.1:80" && dialled != "203.0.114.10:80" {
			t.Errorf("dialled %s", dialled)
		}
	}
}
