package placement

import "strings"

// AtLeast reports whether a sandbox tier, as a runner tells it, is at least as
// strong as another: a tier is a list of guarantees, and who makes the sandbox
// (bwrap-, containerd-) does not count. "none" is weaker than any other.
func AtLeast(tier, least string) bool {
	have, want := guarantees(tier), guarantees(least)
	for guarantee := range want {
		if !have[guarantee] {
			return false
		}
	}
	return true
}

func guarantees(tier string) map[string]bool {
	for _, backend := range []string{"bwrap-", "containerd-"} {
		tier = strings.TrimPrefix(tier, backend)
	}
	out := make(map[string]bool)
	for _, part := range strings.Split(tier, "+") {
		if part != "" && part != "none" {
			out[part] = true
		}
	}
	return out
}
