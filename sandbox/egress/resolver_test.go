package egress

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"
)

// Sites name their mirrors in /etc/hosts, which complete names must find too.
func TestNamesOfTheHostsFile(t *testing.T) {
	b, err := os.ReadFile("/etc/hosts")
	if err != nil || !regexp.MustCompile(`(?m)^127\.0\.0\.1\s.*\blocalhost\b`).Match(b) {
		t.Skipf("/etc/hosts does not name localhost (%v)", err)
	}
	found, err := newHostResolver().LookupNetIP(t.Context(), "ip", "localhost.")
	if err != nil || !slices.ContainsFunc(found, func(a netip.Addr) bool { return a.Unmap() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) }) {
		t.Errorf("%v, %v", found, err)
	}
}

// What is not in the file is asked of the servers, which a test must not need.
func TestOnlyTheFileIsAskedFirst(t *testing.T) {
	began := time.Now()
	if found, err := newHostResolver().file.LookupNetIP(t.Context(), "ip", "no-such-name.example"); err == nil {
		t.Errorf("found %v", found)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("took %s", d)
	}
}
