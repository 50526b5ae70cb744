package egress

import (
	"strings"
	"testing"
)

func mustRules(t testing.TB, texts ...string) []Rule {
	t.Helper()
	var out []Rule
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestRules(t *testing.T) {
	for rule, want := range map[string]struct{ yes, no string }{
		"mirror.example":     {"mirror.example:443 mirror.example:80 MIRROR.EXAMPLE.:443", "mirror.example:8080 a.mirror.example:443 xmirror.example:443 mirror.example.evil.example:443"},
		"Mirror.Example:443": {"mirror.example:443", "mirror.example:80"},
		"mirror.example:1":   {"mirror.example:1", "mirror.example:443 mirror.example:80"},
		"*.example.org":      {"a.example.org:443 a.b.example.org:80", "example.org:443 xexample.org:443 a.example.org:22 a.example.org.evil.example:443"},
		"*.example.org:8443": {"a.example.org:8443", "a.example.org:443 example.org:8443"},
		"bücher.example":     {"xn--bcher-kva.example:443 BÜCHER.example:443", "bucher.example:443"},
		"10.0.0.7:443":       {"10.0.0.7:443", "10.0.0.7:80 10.0.0.8:443"},
		"[fd00::1]:8080":     {"[FD00:0::1]:8080", "[fd00::1]:443 [fd00::2]:8080"},
		"localhost:8443":     {"localhost:8443", "localhost:443 127.0.0.1:8443"},
	} {
		r := mustRules(t, rule)[0]
		for expected, list := range map[bool]string{true: want.yes, false: want.no} {
			for text := range strings.FieldsSeq(list) {
				target, err := parseTarget(text, 0)
				if err != nil {
					t.Fatal(err)
				}
				if r.allows(target) != expected {
					t.Errorf("rule %s, target %s: allowed is %v", rule, text, !expected)
				}
			}
		}
		if again := mustRules(t, r.String())[0]; again != r {
			t.Errorf("%s prints as %s, which reads as %+v", rule, r, again)
		}
	}
}

func TestRulesThatAreRefused(t *testing.T) {
	for _, text := range []string{"", "*", "*.", "*.org", "*.org:443", "a.*.org", "**.a.org", "10.0.0.7", "[::1]", "[::1%eth0]:80", "10.0.0.0/8", "0x7f.1:80", "*.10.0.0.7:443", "*.[::1]:443",
		"https://mirror.example", "mirror.example/simple", "mirror.example:https", "mirror.example:0", "a b", "[::ffff:10.0.0.1]:80"} {
		if r, err := ParseRule(text); err == nil {
			t.Errorf("%q is taken for %v", text, r)
		}
	}
}
