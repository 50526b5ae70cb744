package egress

import "net/netip"

// globalUnicast is all of IPv6 that is given out as such so far.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// classify names why an address must not be reached; "" is a public address. An
// address that carries an IPv4 address within it is named by that one too, if
// that one is no better.
func classify(addr netip.Addr) string {
	if addr.Zone() != "" {
		return "zoned"
	}
	name := blockOf(addr)
	if inner, ok := embedded(addr); ok {
		if worse := blockOf(inner); worse != "" {
			return worse + " in " + orElse(name, "ISATAP")
		}
		return orElse(name, "ISATAP")
	}
	if name == "" && addr.Is6() && !globalUnicast.Contains(addr) {
		return "not global unicast"
	}
	return name
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// blockOf names the most specific special block around addr.
func blockOf(addr netip.Addr) string {
	best, name := -1, ""
	for _, b := range specialBlocks {
		// A mapped address is in no prefix, says netip; here it is in its own.
		in := b.prefix.Contains(addr) || (addr.Is4In6() && b.prefix == mappedBlock)
		if in && b.prefix.Bits() > best {
			best, name = b.prefix.Bits(), b.name
		}
	}
	return name
}

var (
	mappedBlock     = netip.MustParsePrefix("::ffff:0:0/96")
	compatibleBlock = netip.MustParsePrefix("::/96")
	nat64Block      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local      = netip.MustParsePrefix("64:ff9b:1::/48")
	teredoBlock     = netip.MustParsePrefix("2001::/32")
	sixToFourBlock  = netip.MustParsePrefix("2002::/16")
)

// embedded gives the IPv4 address that a translating or tunnelling router would
// send packets for addr to.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	four := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case addr.Is4In6(), nat64Block.Contains(addr):
		return four(12), true
	case nat64Local.Contains(addr): // RFC 6052 with a prefix of 48 bits goes round byte 8
		return netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}), true
	case compatibleBlock.Contains(addr) && addr != netip.IPv6Unspecified() && addr != netip.IPv6Loopback():
		return four(12), true
	case sixToFourBlock.Contains(addr):
		return four(2), true
	case teredoBlock.Contains(addr): // the client's address is stored inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	case b[8]&^3 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214
		return four(12), true
	}
	return netip.Addr{}, false
}
