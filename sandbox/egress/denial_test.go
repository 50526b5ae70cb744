package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// I7, F19: what a policy does not name is not reached, and neither is what an
// allowed name resolves to when that is not public, in any disguise.
func TestI7Denials(t *testing.T) {
	answers := map[string][]string{
		"meta.example": {"169.254.169.254"}, "mapped.example": {"::ffff:10.0.0.1"}, "nat64.example": {"64:ff9b::a9fe:a9fe"}, "six.example": {"2002:a00:1::"},
		"mixed.example": {publicAddr + " 10.0.0.1"}, "loop.example": {"127.0.0.1"}, "ula.example": {"fd00:ec2::254"}, "zero.example": {"0.0.0.0"},
		"local.example": {"fe80::1%eth0"}, "teredo.example": {"2001:0:808:808:0:0:5601:5601"},
	}
	rules := []string{"apex.example:443", "*.wild.example", "10.0.0.9:8080"}
	for name := range answers {
		rules = append(rules, name)
	}
	f := newFixture(t, nil, answers, nil, rules...)
	for target, reason := range map[string]string{
		"evil.example:443": reasonNotAllowed, "apex.example:80": reasonNotAllowed, "apex.example:22": reasonNotAllowed, "x.apex.example:443": reasonNotAllowed,
		"wild.example:443": reasonNotAllowed, "xwild.example:443": reasonNotAllowed, "a.wild.example:25": reasonNotAllowed, "localhost:443": reasonNotAllowed,
		"metadata.google.internal:80": reasonNotAllowed,
		"meta.example:443":            reasonSpecial, "mapped.example:443": reasonSpecial, "nat64.example:443": reasonSpecial, "six.example:443": reasonSpecial,
		"mixed.example:443": reasonSpecial, "loop.example:80": reasonSpecial, "ula.example:80": reasonSpecial, "zero.example:80": reasonSpecial,
		"local.example:80": reasonSpecial, "teredo.example:80": reasonSpecial,
		"169.254.169.254:80": reasonAddress, "127.0.0.1:80": reasonAddress, "8.8.8.8:443": reasonAddress, "[::1]:80": reasonAddress, "[fd00:ec2::254]:80": reasonAddress,
		"[64:ff9b::169.254.169.254]:80": reasonAddress, "[2002:a9fe:a9fe::]:80": reasonAddress, "10.0.0.9:80": reasonAddress, "10.0.0.8:8080": reasonAddress,
		"2852039166:80": reasonSpelling, "0xa9fea9fe:80": reasonSpelling, "0251.0376.0251.0376:80": reasonSpelling, "169.254.43518:80": reasonSpelling,
		"[::ffff:169.254.169.254]:80": reasonSpelling, "[::ffff:a9fe:a9fe]:80": reasonSpelling, "169.254.169.254.:80": reasonSpelling,
		"１６９.254.169.254:80": reasonSpelling, "10.0.0.09:8080": reasonSpelling, "0x0a000009:8080": reasonSpelling,
	} {
		t.Run(target, func(t *testing.T) {
			_, refused := f.tunnel(t, target)
			wantRefused(t, refused, http.StatusForbidden, reason)
			for _, part := range []string{"do not retry", "Retrying will not help", `policy "test"`, `runner "node1"`, "network.policies.test.allow", "decision=deny"} {
				if !strings.Contains(refused, part) {
					t.Errorf("no %q in\n%s", part, refused)
				}
			}
			wantRefused(t, f.get(t, "http://"+target+"/latest/meta-data/"), http.StatusForbidden, reason)
		})
	}
	if d := f.dialled(); d != "" {
		t.Errorf("connected to %s", d)
	}
	f.log.await(t, "decision=deny", "reason=special_address", "target=meta.example:443")
}

// A name whose answer changes between two look-ups (DNS rebinding) is looked up
// once a request: the address that was checked is the one connected to.
func TestI7Rebinding(t *testing.T) {
	address := web(t, hello)
	f := newFixture(t, nil, map[string][]string{"re.example": {publicAddr, "169.254.169.254"}}, map[string]string{publicAddr + ":80": address}, "re.example")
	if answer := f.get(t, "http://re.example/"); !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Fatal(answer)
	}
	wantRefused(t, f.get(t, "http://re.example/"), http.StatusForbidden, reasonSpecial)
	if f.dialled() != publicAddr+":80" || len(f.names.asked) != 2 {
		t.Errorf("dialled %s, asked %d times", f.dialled(), len(f.names.asked))
	}
}

// A redirect is the client's to follow, and its next request is judged anew.
func TestI7RedirectIsNotFollowed(t *testing.T) {
	address := web(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/", http.StatusFound)
	})
	f := newFixture(t, nil, nil, nil, address)
	answer := f.get(t, "http://"+address+"/")
	if !strings.HasPrefix(answer, "HTTP/1.1 302 Found") || !strings.Contains(answer, "Location: http://169.254.169.254/latest/") {
		t.Errorf("answer:\n%s", answer)
	}
	if f.dialled() != address {
		t.Errorf("dialled %s", f.dialled())
	}
}

// An address that the operator lists is reached by itself and by an allowed
// name, at that port alone; what DNS64 makes of a public address is left out.
func TestListedAddress(t *testing.T) {
	address := web(t, hello)
	_, port, _ := net.SplitHostPort(address)
	f := newFixture(t, nil, map[string][]string{"mirror.example": {"127.0.0.1"}, "half.example": {"64:ff9b::808:808 127.0.0.1"}, "none.example": {"64:ff9b::808:808"}}, nil,
		"mirror.example:"+port, "half.example:"+port, "none.example", "mirror.example:1", address)
	for _, host := range []string{address, "mirror.example:" + port, "half.example:" + port} {
		if answer := f.get(t, "http://"+host+"/"); !strings.HasPrefix(answer, "HTTP/1.1 200") {
			t.Errorf("%s:\n%s", host, answer)
		}
	}
	wantRefused(t, f.get(t, "http://mirror.example:1/"), http.StatusForbidden, reasonSpecial)
	wantRefused(t, f.get(t, "http://none.example/"), http.StatusBadGateway, reasonResolve)
}

func TestFailures(t *testing.T) {
	l := listenTCP(t)
	closed := l.Addr().String()
	l.Close()
	f := newFixture(t, nil, map[string][]string{"a.example": {publicAddr}}, map[string]string{publicAddr + ":443": closed}, "a.example", "none.example")
	_, refused := f.tunnel(t, "none.example:443")
	wantRefused(t, refused, http.StatusBadGateway, reasonResolve)
	if strings.Contains(refused, "do not retry") {
		t.Errorf("a failure sounds like a denial:\n%s", refused)
	}
	_, refused = f.tunnel(t, "a.example:443")
	wantRefused(t, refused, http.StatusBadGateway, reasonConnect)
	f.log.await(t, "decision=fail", "reason=not_connected")
}

func TestSilentServerTimesOut(t *testing.T) {
	address := raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	f := newFixture(t, func(_ *Config, p *Policy) { p.IdleTimeout = 50 * time.Millisecond }, nil, nil, address)
	wantRefused(t, f.get(t, "http://"+address+"/"), http.StatusGatewayTimeout, reasonTimeout)
}

func TestMalformedIsAnswered(t *testing.T) {
	f := newFixture(t, nil, nil, nil)
	for text, status := range map[string]int{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n": 400, "GET http://a.example/ HTTP/1.0\r\nHost: a.example\r\n\r\n": 505,
		"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nX: " + strings.Repeat("a", maxHeadBytes) + "\r\n\r\n": 431,
		"\x05\x01\x00\n\n": 400,
	} {
		wantRefused(t, f.ask(t, text), status, reasonMalformed)
	}
	f.log.await(t, "decision=malformed")
}

// A denial can't be made to carry what the client wrote as headers of its own.
func TestDenialIsNotSplit(t *testing.T) {
	f := newFixture(t, nil, nil, nil)
	answer := f.ask(t, "GET http://a.example%0d%0aSet-Cookie:x/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
	head, _, _ := strings.Cut(answer, "\r\n\r\n")
	if strings.Contains(head, "Set-Cookie") {
		t.Errorf("%s", fmt.Sprint(head))
	}
}

// I7: a host with a public address of its own is not reached by it, since that
// way passes no firewall; unless the operator lists it.
func TestI7OwnPublicAddress(t *testing.T) {
	address := web(t, hello)
	own := func(c *Config, _ *Policy) {
		c.interfaces = func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.ParseIP(publicAddr), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("2606:4700::1"), Mask: net.CIDRMask(64, 128)}}, nil
		}
	}
	answers := map[string][]string{"own.example": {publicAddr}, "six.example": {"2606:4700::1"}, "next.example": {"93.184.215.15"}}
	public := map[string]string{publicAddr + ":80": address, "[2606:4700::1]:80": address, "93.184.215.15:80": address}
	f := newFixture(t, own, answers, public, "own.example", "six.example", "next.example")
	wantRefused(t, f.get(t, "http://own.example/"), http.StatusForbidden, reasonSpecial)
	wantRefused(t, f.get(t, "http://six.example/"), http.StatusForbidden, reasonSpecial)
	if answer := f.get(t, "http://next.example/"); !strings.HasPrefix(answer, "HTTP/1.1 200 ") || f.dialled() != "93.184.215.15:80" {
		t.Errorf("dialled %s\n%s", f.dialled(), answer)
	}
	f = newFixture(t, own, answers, public, "own.example", publicAddr+":80")
	if answer := f.get(t, "http://own.example/"); !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
		t.Errorf("listed:\n%s", answer)
	}
}
