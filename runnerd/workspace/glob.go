package workspace

import (
	"path"
	"strings"

	"skerry.internal/proto/problem"
)

// Glob is a pattern of path.Match's syntax by component, in which a component
// "**" stands for any number of components. A pattern without a slash matches
// the last component at any depth.
type Glob struct{ parts []string }

const maxGlobParts = 64

// ParseGlob checks a pattern.
func ParseGlob(field, pattern string) (*Glob, error) {
	if len(pattern) > MaxPath {
		return nil, problem.Limit(field, "4096 bytes", "use a shorter pattern")
	}
	parts := strings.Split(strings.TrimPrefix(pattern, "./"), "/")
	if len(parts) == 1 {
		parts = []string{"**", parts[0]}
	}
	if len(parts) > maxGlobParts {
		return nil, problem.Limit(field, "64 components", "use a shorter pattern")
	}
	var clean []string
	for _, part := range parts {
		if part == "**" && len(clean) > 0 && clean[len(clean)-1] == "**" {
			continue
		}
		if _, err := path.Match(part, ""); err != nil || part == ".." {
			return nil, problem.Invalid(field, "use *, ?, [a-z] and **", "%q is no pattern", clip(part))
		}
		clean = append(clean, part)
	}
	return &Glob{parts: clean}, nil
}

// Match reports whether a workspace-relative path matches. The time is bounded
// by the product of the numbers of components.
func (g *Glob) Match(p string) bool {
	names := strings.Split(p, "/")
	// reach[i]: the pattern's first i parts match the names so far.
	reach := make([]bool, len(g.parts)+1)
	reach[0] = true
	g.skipStars(reach)
	for _, name := range names {
		next := make([]bool, len(reach))
		for i, part := range g.parts {
			if !reach[i] {
				continue
			}
			if part == "**" {
				next[i] = true
			} else if ok, _ := path.Match(part, name); ok {
				next[i+1] = true
			}
		}
		g.skipStars(next)
		reach = next
	}
	return reach[len(g.parts)]
}

// skipStars lets "**" stand for nothing.
func (g *Glob) skipStars(reach []bool) {
	for i, part := range g.parts {
		if reach[i] && part == "**" {
			reach[i+1] = true
		}
	}
}
