package egress

import "net/netip"

// special are the blocks that no request may reach unless the operator lists
// the very address. They are the IANA IPv4 and IPv6 special-purpose address
// registries (RFC 6890 and its updates), all of them, also those few that are
// marked globally reachable (no server of packages lives there), and the
// multicast and deprecated blocks that have registries of their own. The most
// specific block that contains an address names it.
var special = []struct {
	block string
	name  string
	from  string
}{
	// https://www.iana.org/assignments/iana-ipv4-special-registry
	{"0.0.0.0/8", "this-network", "RFC 791"},
	{"0.0.0.0/32", "unspecified", "RFC 1122"},
	{"10.0.0.0/8", "private", "RFC 1918"},
	{"100.64.0.0/10", "shared (CGNAT)", "RFC 6598"},
	{"127.0.0.0/8", "loopback", "RFC 1122"},
	{"169.254.0.0/16", "link-local", "RFC 3927"},
	{"172.16.0.0/12", "private", "RFC 1918"},
	{"192.0.0.0/24", "protocol assignments", "RFC 6890"},
	{"192.0.0.0/29", "service continuity", "RFC 7335"},
	{"192.0.0.8/32", "dummy", "RFC 7600"},
	{"192.0.0.9/32", "port control anycast", "RFC 7723"},
	{"192.0.0.10/32", "TURN anycast", "RFC 8155"},
	{"192.0.0.170/32", "NAT64 discovery", "RFC 8880"},
	{"192.0.0.171/32", "NAT64 discovery", "RFC 8880"},
	{"192.0.2.0/24", "documentation", "RFC 5737"},
	{"192.31.196.0/24", "AS112", "RFC 7535"},
	{"192.52.193.0/24", "AMT", "RFC 7450"},
	{"192.88.99.0/24", "6to4 relay", "RFC 7526"},
	{"192.88.99.2/32", "6a44 relay", "RFC 6751"},
	{"192.168.0.0/16", "private", "RFC 1918"},
	{"192.175.48.0/24", "AS112", "RFC 7534"},
	{"198.18.0.0/15", "benchmarking", "RFC 2544"},
	{"198.51.100.0/24", "documentation", "RFC 5737"},
	{"203.0.113.0/24", "documentation", "RFC 5737"},
	{"240.0.0.0/4", "reserved", "RFC 1112"},
	{"255.255.255.255/32", "broadcast", "RFC 8190"},
	// https://www.iana.org/assignments/multicast-addresses
	{"224.0.0.0/4", "multicast", "RFC 5771"},

	// https://www.iana.org/assignments/iana-ipv6-special-registry
	{"::/128", "unspecified", "RFC 4291"},
	{"::1/128", "loopback", "RFC 4291"},
	{"::ffff:0:0/96", "IPv4-mapped", "RFC 4291"},
	{"64:ff9b::/96", "NAT64", "RFC 6052"},
	{"64:ff9b:1::/48", "NAT64", "RFC 8215"},
	{"100::/64", "discard-only", "RFC 6666"},
	{"100:0:0:1::/64", "dummy", "RFC 9780"},
	{"2001::/23", "protocol assignments", "RFC 2928"},
	{"2001::/32", "Teredo", "RFC 4380"},
	{"2001:1::1/128", "port control anycast", "RFC 7723"},
	{"2001:1::2/128", "TURN anycast", "RFC 8155"},
	{"2001:1::3/128", "DNS-SD anycast", "RFC 9665"},
	{"2001:2::/48", "benchmarking", "RFC 5180"},
	{"2001:3::/32", "AMT", "RFC 7450"},
	{"2001:4:112::/48", "AS112", "RFC 7535"},
	{"2001:10::/28", "ORCHID", "RFC 4843"},
	{"2001:20::/28", "ORCHIDv2", "RFC 7343"},
	{"2001:30::/28", "drone identifiers", "RFC 9374"},
	{"2001:db8::/32", "documentation", "RFC 3849"},
	{"2002::/16", "6to4", "RFC 3056"},
	{"2620:4f:8000::/48", "AS112", "RFC 7534"},
	{"3fff::/20", "documentation", "RFC 9637"},
	{"5f00::/16", "segment routing", "RFC 9602"},
	{"fc00::/7", "unique-local", "RFC 4193"},
	{"fe80::/10", "link-local", "RFC 4291"},
	// Not in that registry: deprecated or registered elsewhere.
	{"::/96", "IPv4-compatible", "RFC 4291"},
	{"fec0::/10", "site-local", "RFC 3879"},
	{"ff00::/8", "multicast", "RFC 4291"},
	// Public by its number, but every Azure host answers it itself, with the
	// machine's configuration and keys, as others do at 169.254.169.254.
	{"168.63.129.16/32", "host metadata (Azure)", "https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16"},
}

type specialBlock struct {
	prefix netip.Prefix
	name   string
}

var specialBlocks = parseSpecial()

func parseSpecial() []specialBlock {
	blocks := make([]specialBlock, len(special))
	for i, s := range special {
		blocks[i] = specialBlock{netip.MustParsePrefix(s.block), s.name}
	}
	return blocks
}
