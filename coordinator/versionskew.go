package coordinator

import (
	"fmt"
	"regexp"
	"strconv"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

var release = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})(\.\d+)?([-+].*)?$`)

// parseVersion gives major and minor number; ok is false for what is no
// release: a build from a source tree goes with everything.
func parseVersion(text string) (major, minor int, ok bool) {
	m := release.FindStringSubmatch(text)
	if m == nil || (m[1] == "0" && m[2] == "0") {
		return 0, 0, false
	}
	major, _ = strconv.Atoi(m[1])
	minor, _ = strconv.Atoi(m[2])
	return major, minor, true
}

// versionSkew says why a runner and this coordinator should not stay together;
// "": they may. One minor version apart is what an upgrade step by step needs.
func versionSkew(own, runner string) string {
	major, minor, ok := parseVersion(own)
	theirMajor, theirMinor, theirs := parseVersion(runner)
	switch {
	case !ok || !theirs:
		return ""
	case major != theirMajor:
		return fmt.Sprintf("version %s is another major version than the coordinator's %s", runner, own)
	case minor-theirMinor > 1:
		return fmt.Sprintf("version %s is more than one minor version behind the coordinator's %s", runner, own)
	case theirMinor-minor > 1:
		return fmt.Sprintf("version %s is more than one minor version ahead of the coordinator's %s", runner, own)
	}
	return ""
}

// refuseVersion refuses a runner of another major version.
func (c *Coordinator) refuseVersion(runner string) error {
	major, _, ok := parseVersion(c.version)
	theirs, _, known := parseVersion(runner)
	if !ok || !known || major == theirs {
		return nil
	}
	return problem.New(connect.CodeFailedPrecondition, problem.VersionSkew, "upgrade the runner or the coordinators, one minor version at a time",
		"%s", versionSkew(c.version, runner))
}
