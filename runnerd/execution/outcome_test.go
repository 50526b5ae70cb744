package execution

import (
	"strings"
	"testing"

	"skerry.internal/sandbox/supervisor"
)

func TestI7VerdictsNameNoHostPath(t *testing.T) {
	code := 127
	for _, c := range []struct {
		exit supervisor.Exit
		want string
	}{
		{supervisor.Exit{Kind: supervisor.KindStartFailed, Detail: "the sandbox could not be set up: bwrap: Can't bind /var/lib/skerry/ws: denied (exit 1)"},
			"the sandbox could not be set up: bwrap: Can't bind [path]: denied (exit 1)"},
		{supervisor.Exit{Kind: supervisor.KindCancelled, Detail: "remove cgroup /sys/fs/cgroup/memory/x: busy"}, "remove cgroup [path]: busy"},
		{supervisor.Exit{Kind: supervisor.KindStartFailed, Detail: "bwrap: Can't chdir to /workspace/nowhere: No such file"}, "bwrap: Can't chdir to /workspace/nowhere: No such file"},
		{supervisor.Exit{Kind: supervisor.KindStartFailed, Code: &code, Detail: "/workspace/x: not found"}, "/workspace/x: not found"},
	} {
		if _, v := outcome(c.exit); v.Detail != c.want {
			t.Errorf("%q, want %q", v.Detail, c.want)
		}
	}
}

func TestBoundLinesCountsWhatItCuts(t *testing.T) {
	text := strings.Repeat("line\n", 100)
	head, tail, cut := boundLines(text, "", 20)
	if cut == 0 || uint64(len(head)+len(tail))+cut != uint64(len(text)) {
		t.Errorf("%d + %d + %d cut of %d", len(head), len(tail), cut, len(text))
	}
	if h, tl, c := boundLines("a\n", "b\n", 20); h != "a\n" || tl != "b\n" || c != 0 {
		t.Errorf("short text was cut: %q %q %d", h, tl, c)
	}
}
