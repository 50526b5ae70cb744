package mcp

import (
	"encoding/json"
	"strings"
)

// redactor takes known secrets out of text.
type redactor struct{ replacer *strings.Replacer }

const redacted = "[redacted]"

func newRedactor(secrets []string) *redactor {
	var pairs []string
	for _, s := range secrets {
		if s == "" {
			continue
		}
		pairs = append(pairs, s, redacted)
		// Inside JSON it looks different when it has characters to escape.
		if quoted, err := json.Marshal(s); err == nil && string(quoted[1:len(quoted)-1]) != s {
			pairs = append(pairs, string(quoted[1:len(quoted)-1]), redacted)
		}
	}
	return &redactor{strings.NewReplacer(pairs...)}
}

func (r *redactor) text(s string) string { return r.replacer.Replace(s) }
