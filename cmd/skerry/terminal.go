package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/term"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// rawMode makes a terminal give single keys, until restore, which may be called
// from anywhere and again.
func rawMode(f *os.File) (restore func(), err error) {
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return sync.OnceFunc(func() { _ = term.Restore(int(f.Fd()), before) }), nil
}

const maxWindow = 1000

// windowSize of the terminal that this program has, if it has one.
func (a *app) windowSize() (rows, cols uint32, ok bool) {
	for _, f := range []*os.File{a.stdout, a.stdin, a.stderr} {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return uint32(min(h, maxWindow)), uint32(min(w, maxWindow)), true
		}
	}
	return 0, 0, false
}

var termPattern = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,64}$`)

// termName is what the local terminal is called, where that can be passed on.
func termName() string {
	if name := os.Getenv("TERM"); termPattern.MatchString(name) {
		return name
	}
	return ""
}

const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseKeys reads a list such as "ctrl-p,ctrl-q" or "ctrl-],q". Empty: no keys.
func parseKeys(list string) ([]byte, error) {
	if list == "" {
		return nil, nil
	}
	var keys []byte
	for name := range strings.SplitSeq(list, ",") {
		key, ok := parseKey(name)
		if !ok {
			return nil, fmt.Errorf("detach-keys: %q is no key; use single characters and ctrl-a..ctrl-z, ctrl-@ ctrl-[ ctrl-\\ ctrl-] ctrl-^ ctrl-_, joined by commas", name)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func parseKey(name string) (byte, bool) {
	if len(name) == 1 && name[0] >= ' ' && name[0] < 0x7f {
		return name[0], true
	}
	letter, ok := strings.CutPrefix(strings.ToLower(name), "ctrl-")
	if !ok || len(letter) != 1 {
		return 0, false
	}
	c := letter[0]
	switch {
	case c >= 'a' && c <= 'z':
		return c - 'a' + 1, true
	case c == '@':
		return 0, true
	case c >= '[' && c <= '_':
		return c - '[' + 0x1b, true
	}
	return 0, false
}

// detacher finds a sequence of keys in what is typed, and holds its beginning
// back until the next key tells whether it is one.
type detacher struct {
	keys []byte
	held int
}

// scan gives what goes on to the command, and whether the keys came. What
// follows them is dropped.
func (d *detacher) scan(b []byte) (out []byte, found bool) {
	if len(d.keys) == 0 {
		return b, false
	}
	for _, c := range b {
		// The longest beginning of the keys that what was typed now ends with.
		typed := append(bytes.Clone(d.keys[:d.held]), c)
		n := min(len(typed), len(d.keys))
		for !bytes.Equal(typed[len(typed)-n:], d.keys[:n]) {
			n--
		}
		out = append(out, typed[:len(typed)-n]...)
		d.held = n
		if n == len(d.keys) {
			return out, true
		}
	}
	return out, false
}
