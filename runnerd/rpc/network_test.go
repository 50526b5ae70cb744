package rpc

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"skerry.internal/proto/problem"
	skerryv1 "skerry.internal/proto/skerry/v1"
)

func TestNetworkPolicies(t *testing.T) {
	for _, c := range []struct {
		token, name, preset string
		want                string // or the names that the refusal tells
	}{
		{"", "", "none", "none"},
		{"", "", "docs", "docs"},
		{"", "none", "docs", "none"},
		{"", "docs", "none", "docs"},
		{"pypi", "pypi", "none", "pypi"},
		{"conda,pypi", "pypi", "none", "pypi"},
		{"*", "conda", "none", "conda"},
		{"", "pypi", "none", "! none, docs;"},
		{"pypi", "conda", "none", "! none, docs, pypi;"},
		{"gone", "gone", "none", "! none, docs;"},
		{"pypi", "*", "none", "! none, docs, pypi;"},
		{"*", "nothing", "none", "! none, conda, docs, pypi;"},
		{"*,pypi", "conda", "none", "! none, docs, pypi;"},
	} {
		s := testServices()
		s.cfg.Networks = Networks{Default: c.preset, All: []string{"conda", "docs", "pypi"}, Public: []string{"docs"}}
		h := http.Header{}
		h.Set(skerryv1.HeaderNetworks, c.token)
		l, command, err := s.shellLaunch(h, &skerryv1.RunShellRequest{Command: "true", Options: &skerryv1.RunOptions{Network: c.name}})
		names, refused := strings.CutPrefix(c.want, "! ")
		p := problem.Of(err)
		switch {
		case !refused && (err != nil || l.Network != c.want || command.Network != c.want):
			t.Errorf("%+v: %v, %v", c, l.Network, err)
		case refused && (p == nil || p.Reason != problem.Unsupported || p.Field != "options.network" || !strings.Contains(p.Remedy, names)):
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A host that can't serve policies says so, and runs what needs none.
func TestNetworkOfAnUnfitHost(t *testing.T) {
	s := testServices()
	s.cfg.Networks = Networks{Default: "docs", All: []string{"docs"}, Public: []string{"docs"}, Missing: errors.New("no loopback")}
	if _, err := s.network(http.Header{}, "none"); err != nil {
		t.Error(err)
	}
	if _, err := s.network(http.Header{}, ""); problem.Of(err).GetReason() != problem.TierUnavailable {
		t.Errorf("%v", err)
	}
}
