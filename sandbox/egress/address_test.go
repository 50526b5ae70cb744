package egress

import (
	"net/netip"
	"strings"
	"testing"
)

// Each row of the registries is refused at its first and last address, under
// the name of the row or of a more specific one within it.
func TestEverySpecialBlockIsRefused(t *testing.T) {
	for _, row := range special {
		p := netip.MustParsePrefix(row.block)
		if p != p.Masked() {
			t.Errorf("%s has host bits", row.block)
		}
		for _, addr := range []netip.Addr{p.Addr(), lastOf(p)} {
			if classify(addr) == "" {
				t.Errorf("%s (%s, %s): %s passes as public", row.block, row.name, row.from, addr)
			}
		}
	}
	if n := len(special); n != 56 {
		t.Errorf("%d rows: a block was added or lost; correct the number after comparing with the registries", n)
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func TestClassify(t *testing.T) {
	for addr, want := range map[string]string{
		// Public, next to the blocks.
		"1.0.0.0": "", "9.255.255.255": "", "11.0.0.0": "", "100.63.255.255": "", "100.128.0.0": "", "126.255.255.255": "", "128.0.0.0": "",
		"169.253.255.255": "", "169.255.0.0": "", "172.15.255.255": "", "172.32.0.0": "", "192.0.1.0": "", "192.167.255.255": "", "192.169.0.0": "",
		"198.17.255.255": "", "198.20.0.0": "", "223.255.255.255": "", "8.8.8.8": "", "168.63.129.15": "", "168.63.129.17": "",
		"2001:4860:4860::8888": "", "2606:4700::1111": "", "2a00::1": "", "2400:3200::1": "", "2003::1": "",
		// Special.
		"169.254.169.254": "link-local", "168.63.129.16": "host metadata (Azure)", "127.0.0.53": "loopback", "10.1.2.3": "private", "100.100.100.200": "shared (CGNAT)", "0.0.0.0": "unspecified",
		"255.255.255.255": "broadcast", "239.255.255.250": "multicast", "192.0.0.192": "protocol assignments", "198.19.255.255": "benchmarking",
		"fd00:ec2::254": "unique-local", "fe80::a9fe:a9fe": "link-local", "::1": "loopback", "::": "unspecified", "ff02::1": "multicast",
		"4000::1": "not global unicast", "1::1": "not global unicast", "fec0::1": "site-local", "fe80::1%eth0": "zoned",
		// IPv4 in disguise.
		"::ffff:169.254.169.254": "link-local in IPv4-mapped", "::ffff:8.8.8.8": "IPv4-mapped",
		"::169.254.169.254": "link-local in IPv4-compatible", "64:ff9b::a9fe:a9fe": "link-local in NAT64", "64:ff9b::808:808": "NAT64",
		"64:ff9b:1:a9fe:a9:fe00::":             "link-local in NAT64",
		"2002:a9fe:a9fe::1":                    "link-local in 6to4",
		"2002:808:808::1":                      "6to4",
		"2001:0:808:808:0:0:5601:5601":         "link-local in Teredo",
		"2001:0:a9fe:a9fe:0:0:f7f7:f7f7":       "Teredo",
		"2606:4700::5efe:a9fe:a9fe":            "link-local in ISATAP",
		"2606:4700:0:0:200:5efe:7f00:1":        "loopback in ISATAP",
		"2606:4700:0000:0000:0:5efe:0808:0808": "ISATAP",
		"2001:db8::1":                          "documentation", "3fff::1": "documentation", "5f00::1": "segment routing", "100::1": "discard-only", "100:0:0:1::1": "dummy",
	} {
		if got := classify(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
}

// What is not an address in its plain form is never taken for a name: neither
// the C library's spellings nor look-alike characters.
func TestAddressesInEverySpelling(t *testing.T) {
	for _, host := range []string{
		"2852039166", "0xa9fea9fe", "0XA9FEA9FE", "025177524776", "169.254.43518", "169.16689662", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376",
		"169.254.169.254.", "169.254.169.0376", "0169.254.169.254", "169.254.169.254.0x", "127.1", "0", "0x", "127.0.0.1.", "1.2.3.4.5", "256.1.1.1",
		"foo.127", "foo.0x7f", "99999999999",
		"１６９.254.169.254", "169。254。169。254", "①⑥⑨.254.169.254", "169.254.169.２５４",
		"[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[fe80::1%25eth0]", "[fe80::1%eth0]",
	} {
		target, err := parseTarget(host+":80", 0)
		if err == nil {
			t.Errorf("%s is taken for %+v", host, target)
		}
	}
	for host, want := range map[string]string{
		"169.254.169.254": "169.254.169.254:80", "[FD00:EC2::254]": "[fd00:ec2::254]:80", "[0:0:0:0:0:0:0:1]": "[::1]:80",
		"[64:ff9b::169.254.169.254]": "[64:ff9b::a9fe:a9fe]:80",
	} {
		target, err := parseTarget(host+":80", 0)
		if err != nil || target.host != "" || target.String() != want {
			t.Errorf("%s gives %v, %v; want %s", host, target, err, want)
		}
	}
}

func TestTargets(t *testing.T) {
	for text, want := range map[string]string{
		"Mirror.Example:443": "mirror.example:443", "mirror.example.:443": "mirror.example:443", "bücher.example:1": "xn--bcher-kva.example:1", "XN--BCHER-KVA.example:1": "xn--bcher-kva.example:1",
		"faß.example:8080": "xn--fa-hia.example:8080", "a_b.example:65535": "a_b.example:65535", "Ｍirror.example:443": "mirror.example:443",
	} {
		target, err := parseTarget(text, 0)
		if err != nil || target.String() != want {
			t.Errorf("%s gives %v, %v; want %s", text, target, err, want)
		}
	}
	for _, text := range []string{
		"", ":443", "a.example", "a.example:", "a.example:0", "a.example:65536", "a.example:+1", "a.example:0443", "a.example:443:443", "a..example:443", ".example:443",
		"-a.example:443", "a-.example:443", "a b:443", "a%2e:443", "user@a.example:443", "a.example:443/", "[::1:443", "::1:443", "[]:443", "[a.example]:443", "[1.2.3.4]:443",
		"a.example..:443", "xn--a:443", strings.Repeat("a", 64) + ".example:443", strings.Repeat("a.", 130) + "example:443", "a\x00.example:443", "*.example:443",
	} {
		if target, err := parseTarget(text, 0); err == nil {
			t.Errorf("%q is taken for %v", text, target)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"mirror.example:443", "[::1]:80", "0x7f.1:80", "１.1:80", "xn--bcher-kva.example:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, err := parseTarget(s, 0)
		if err != nil {
			return
		}
		again, err := parseTarget(target.String(), 0)
		if err != nil || again != target {
			t.Errorf("%q gives %v, which gives %v, %v", s, target, again, err)
		}
		if _, err := netip.ParseAddr(target.host); err == nil {
			t.Errorf("%q is an address, taken for the name %q", s, target.host)
		}
	})
}
