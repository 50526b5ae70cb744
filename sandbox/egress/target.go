package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// target is where a request wants to go: a name or an address, and a port. It
// is in normal form, so that equal targets are equal values.
type target struct {
	// host is a name in lower-case ASCII without a trailing dot, "" for an address.
	host string
	addr netip.Addr
	port uint16
}

// String is the form HOST:PORT, which parseTarget reads back.
func (t target) String() string { return net.JoinHostPort(t.name(), strconv.Itoa(int(t.port))) }

func (t target) name() string {
	if t.host == "" {
		return t.addr.String()
	}
	return t.host
}

// Errors of a target.
var (
	errName     = errors.New("is no host name")
	errSpelling = errors.New("is an IP address in an unusual spelling; addresses are known in their plain form only")
	errPort     = errors.New("has no valid port")
)

const maxName = 253

// parseTarget reads HOST:PORT. Without a port it takes defaultPort, if that is
// not 0.
func parseTarget(authority string, defaultPort uint16) (target, error) {
	host, port, err := splitPort(authority, defaultPort)
	if err != nil {
		return target{}, err
	}
	t := target{port: port}
	if rest, ok := strings.CutPrefix(host, "["); ok {
		inner, ok := strings.CutSuffix(rest, "]")
		if !ok {
			return target{}, errName
		}
		t.addr, err = parseIPv6(inner)
		return t, err
	}
	t.host, t.addr, err = parseHost(host)
	return t, err
}

// splitPort leaves the brackets of an IPv6 address on.
func splitPort(authority string, defaultPort uint16) (host string, port uint16, err error) {
	colon := strings.LastIndexByte(authority, ':')
	if colon < strings.LastIndexByte(authority, ']') {
		colon = -1
	}
	if colon < 0 {
		if defaultPort == 0 {
			return "", 0, errPort
		}
		return authority, defaultPort, nil
	}
	digits := authority[colon+1:]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '0' || digits[0] == '+' {
		return "", 0, errPort
	}
	return authority[:colon], uint16(n), nil
}

// parseIPv6 reads what stands in brackets. A form that carries an IPv4 address
// is a disguise of that, and is nobody's plain form.
func parseIPv6(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	switch {
	case err != nil || !addr.Is6():
		return netip.Addr{}, errName
	case addr.Zone() != "" || addr.Is4In6():
		return netip.Addr{}, errSpelling
	}
	return addr, nil
}

// parseHost reads a name or an IPv4 address. Names are mapped as browsers do
// (IDNA), which may turn look-alike digits and dots into an address: hence the
// look for addresses comes after.
func parseHost(s string) (name string, addr netip.Addr, err error) {
	if s == "" || len(s) > 4*maxName {
		return "", addr, errName
	}
	name = strings.ToLower(s)
	if !isASCII(name) || strings.Contains(name, "xn--") {
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return "", addr, errName
		}
	}
	name = strings.TrimSuffix(name, ".")
	if endsInNumber(name) {
		addr, err = netip.ParseAddr(name)
		if err != nil || !addr.Is4() || name != s {
			return "", netip.Addr{}, errSpelling
		}
		return "", addr, nil
	}
	if !validName(name) {
		return "", addr, errName
	}
	return name, addr, nil
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

// endsInNumber: a name whose last label is a number is an address to the C
// library and to browsers, in whatever form (decimal, octal, hexadecimal, with
// less than four parts).
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

func validName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// sameHost says whether a Host header names the target of the request that it
// came with. A tunnel's may leave the port out.
func (t target) sameHost(header string, defaultPort uint16) error {
	h, err := parseTarget(header, defaultPort)
	if err != nil {
		return fmt.Errorf("the Host header %w", err)
	}
	if h != t {
		return errors.New("the Host header names another host than the request")
	}
	return nil
}
