package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Ports that a rule without a port allows.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// Rule is one entry of an allowlist, in one of the forms
//
//	name            the name, ports 443 and 80
//	name:port       the name, one port
//	*.suffix[:port] every name below suffix, at any depth, never suffix itself
//	address:port    an IPv4 address or one of IPv6 in brackets
//
// A name's rule reaches public addresses. An address's rule reaches that one
// address at that port, whatever kind it is, both when it is named itself and
// when an allowed name resolves to it.
type Rule struct {
	host   string // without "*."; "" for an address
	suffix bool
	addr   netip.Addr
	port   uint16 // 0: 443 and 80
}

// ParseRule reads a rule.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return r, fmt.Errorf("%q: %w", text, err)
	}
	return r, nil
}

func parseRule(text string) (Rule, error) {
	rest, suffix := strings.CutPrefix(text, "*.")
	const anyPort = 1 // stands for none: a rule with port 1 is spelled out
	_, port, err := splitPort(rest, anyPort)
	if err != nil {
		return Rule{}, err
	}
	t, err := parseTarget(rest, anyPort)
	if err != nil {
		return Rule{}, err
	}
	r := Rule{host: t.host, suffix: suffix, addr: t.addr, port: port}
	if !strings.HasSuffix(rest, ":1") && port == anyPort {
		r.port = 0
	}
	switch {
	case r.host == "" && suffix:
		return r, errors.New("*. goes before a name, not an address")
	case r.host == "" && r.port == 0:
		return r, errors.New("an address needs a port, as in 10.0.0.7:443")
	case suffix && !strings.Contains(r.host, "."):
		return r, errors.New("*. needs a suffix of at least two labels, as in *.example.org")
	}
	return r, nil
}

// String is the normal form of the rule.
func (r Rule) String() string {
	t := target{r.host, r.addr, r.port}
	text := t.name()
	if r.port != 0 {
		text = t.String()
	}
	if r.suffix {
		text = "*." + text
	}
	return text
}

func (r Rule) allows(t target) bool {
	if r.port != t.port && (r.port != 0 || (t.port != portHTTP && t.port != portHTTPS)) {
		return false
	}
	switch {
	case r.host == "":
		return t.host == "" && r.addr == t.addr
	case t.host == "":
		return false
	case r.suffix:
		return strings.HasSuffix(t.host, "."+r.host)
	}
	return t.host == r.host
}
