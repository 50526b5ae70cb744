package main

import "testing"

func TestDetachKeys(t *testing.T) {
	for _, tc := range []struct {
		name, keys string
		typed      []string
		out        string
		found      bool
	}{
		{"at once", "ctrl-p,ctrl-q", []string{"ab\x10\x11cd"}, "ab", true},
		{"in two reads", "ctrl-p,ctrl-q", []string{"ab\x10", "\x11"}, "ab", true},
		{"only the first", "ctrl-p,ctrl-q", []string{"\x10", "x"}, "\x10x", false},
		{"the first twice", "ctrl-p,ctrl-q", []string{"\x10\x10\x11"}, "\x10", true},
		{"held back at the end", "ctrl-p,ctrl-q", []string{"x\x10"}, "x", false},
		{"overlapping", "a,a,b", []string{"aaab"}, "a", true},
		{"overlapping, broken", "a,b,a,c", []string{"ababac"}, "ab", true},
		{"one key", "ctrl-]", []string{"x\x1d"}, "x", true},
		{"none", "", []string{"\x10\x11"}, "\x10\x11", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, err := parseKeys(tc.keys)
			if err != nil {
				t.Fatal(err)
			}
			d := detacher{keys: keys}
			var out string
			found := false
			for _, typed := range tc.typed {
				b, hit := d.scan([]byte(typed))
				out, found = out+string(b), found || hit
			}
			if out != tc.out || found != tc.found {
				t.Errorf("passed on %q, found %v; want %q, %v", out, found, tc.out, tc.found)
			}
		})
	}
}

func TestParseKeys(t *testing.T) {
	for text, want := range map[string]string{"ctrl-@": "\x00", "ctrl-A,ctrl-z": "\x01\x1a", "ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_": "\x1b\x1c\x1d\x1e\x1f", "~,.": "~."} {
		if got, err := parseKeys(text); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "ab", "ctrl-p,,q", "\x01", "é"} {
		if got, err := parseKeys(text); err == nil {
			t.Errorf("%q is accepted as %q", text, got)
		}
	}
}

func TestParsePorts(t *testing.T) {
	for text, want := range map[string][2]uint32{"8888": {8888, 8888}, "6007:6006": {6007, 6006}, "0:1": {0, 1}} {
		local, remote, err := parsePorts(text)
		if err != nil || local != want[0] || remote != want[1] {
			t.Errorf("%q: %d, %d, %v", text, local, remote, err)
		}
	}
	for _, text := range []string{"", "0", "65536", "1:", ":1", "1:0", "1:2:3", "-1", "http"} {
		if _, _, err := parsePorts(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
