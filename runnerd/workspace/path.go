package workspace

import (
	"path"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

// MaxPath is the longest path of a file call, in bytes.
const MaxPath = 4096

const maxName = 255

// CleanPath checks a path that an agent named and gives it without empty and
// "." components; the root is "". It decides by spelling alone: that no symlink
// leads out is the business of os.Root and of cas.Store.Resolve.
func CleanPath(field, p string) (string, error) {
	switch {
	case len(p) > MaxPath:
		return "", problem.Limit(field, "4096 bytes", "use a shorter path")
	case strings.ContainsRune(p, 0):
		return "", problem.Invalid(field, "remove the NUL byte", "path has a NUL byte")
	case strings.HasPrefix(p, "/"):
		if rest, ok := strings.CutPrefix(p, "/workspace"); ok && (rest == "" || rest[0] == '/') {
			return "", outside(field, "path is absolute; name it relative to the workspace: "+strings.TrimLeft(rest, "/"))
		}
		return "", outside(field, "path is absolute")
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == ".." {
			return "", outside(field, "path has a .. component")
		}
		if len(name) > maxName {
			return "", problem.Limit(field, "255 bytes a name", "use shorter names")
		}
	}
	if p = path.Clean(p); p == "." {
		return "", nil
	}
	return p, nil
}

func outside(field, what string) error {
	e := problem.New(connect.CodeInvalidArgument, problem.PathOutside, "use a path relative to the workspace root, without ..", "%s", what)
	e.Field = field
	return e
}
