package workspace

import (
	"strings"
	"testing"
	"time"

	"skerry.internal/proto/problem"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"*.txt", "a.txt", true}, {"*.txt", "d/a.txt", true}, {"d/*.txt", "d/a.txt", true}, {"d/*.txt", "e/d/a.txt", false},
		{"d/*.txt", "d/e/a.txt", false}, {"**/a", "a", true}, {"**/a", "x/y/a", true}, {"x/**", "x/y/z", true}, {"x/**", "y/x", false},
		{"x/**/z", "x/z", true}, {"x/**/z", "x/1/2/z", true}, {"x/**/z", "x/1/2/y", false}, {"[ab]?", "b1", true}, {"[ab]?", "c1", false},
		{"**/**", "a/b", true},
	} {
		g, err := ParseGlob("glob", c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Match(c.path); got != c.want {
			t.Errorf("%q matches %q: %v, want %v", c.pattern, c.path, got, c.want)
		}
	}
	for _, bad := range []string{"[", "a/../b", strings.Repeat("a/", 65), strings.Repeat("x", 5000)} {
		if _, err := ParseGlob("glob", bad); problem.Of(err) == nil {
			t.Errorf("ParseGlob(%.20q) = %v, want a typed error", bad, err)
		}
	}
}

func TestGlobHostilePatternIsBounded(t *testing.T) {
	g, err := ParseGlob("glob", strings.Repeat("**/a/", 31)+"b")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool, 1)
	go func() { done <- g.Match(strings.Repeat("a/", 2000) + "c") }()
	select {
	case got := <-done:
		if got {
			t.Fatal("matched")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("exponential")
	}
}
