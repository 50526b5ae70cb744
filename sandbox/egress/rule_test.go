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
		"pypi.org":           {"pypi.org:443 pypi.org:80 PYPI.ORG.:443", "pypi.org:8080 a.pypi.org:443 xpypi.org:443 pypi.org.evil.example:443"},
		"Pypi.Org:443":       {"pypi.org:443", "pypi.org:80"},
		"pypi.org:1":         {"pypi.org:1", "pypi.org:443 pypi.org:80"},
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
		"https://pypi.org", "pypi.org/simple", "pypi.org:https", "pypi.org:0", "a b", "[::ffff:10.0.0.1]:80"} {
		if r, err := ParseRule(text); err == nil {
			t.Errorf("%q is taken for %v", text, r)
		}
	}
}
