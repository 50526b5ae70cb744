package runnerd

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"skerry.internal/config"
	"skerry.internal/sandbox/egress"
	"skerry.internal/sandbox/supervisor"
)

// AddedHeader is a credential that the gateway puts into plain http requests; no
// sandbox sees it.
type AddedHeader struct {
	// Host is a rule as in allow: the header is for these targets alone.
	Host string `yaml:"host"`
	Name string `yaml:"name"`
	// Prefix goes before the value, such as "Bearer ".
	Prefix string `yaml:"prefix"`
	// ValueFile has the value, one line; it is read anew for each request.
	ValueFile string `yaml:"value_file"`
}

// GivenSecret is a value that a command gets in a variable or a file.
type GivenSecret struct {
	// Env is the variable's name; or File the name of a file in /run/secrets.
	Env  string `yaml:"env"`
	File string `yaml:"file"`
	// ValueFile has the value, up to 32 KiB; it is read when a command starts.
	ValueFile string `yaml:"value_file"`
}

var variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// validateCredentials checks what the policy at the field adds to requests and
// gives to commands.
func (p NetworkPolicy) validateCredentials(policy string) error {
	for i, h := range p.Headers {
		if err := h.validate(fmt.Sprintf("%s.headers[%d]", policy, i)); err != nil {
			return err
		}
	}
	if len(p.Secrets) > supervisor.MaxSecrets {
		return &config.FieldError{Field: policy + ".secrets", Problem: fmt.Sprintf("are more than %d", supervisor.MaxSecrets), Remedy: "put several values into one file"}
	}
	seen := map[GivenSecret]bool{}
	for i, s := range p.Secrets {
		field := fmt.Sprintf("%s.secrets[%d]", policy, i)
		if err := s.validate(field); err != nil {
			return err
		}
		name := GivenSecret{Env: s.Env, File: s.File}
		if seen[name] {
			return &config.FieldError{Field: field, Problem: "has a name that another secret of the policy has", Remedy: "choose another"}
		}
		seen[name] = true
	}
	return nil
}

func (h AddedHeader) validate(field string) error {
	if _, err := egress.ParseRule(h.Host); err != nil {
		return &config.FieldError{Field: field + ".host", Problem: err.Error(), Remedy: "name the host as in allow, such as artifacts.example:80"}
	}
	if err := egress.CheckHeaderName(h.Name); err != nil {
		return &config.FieldError{Field: field + ".name", Problem: err.Error(), Remedy: "use a name such as Authorization"}
	}
	if strings.IndexFunc(h.Prefix, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return &config.FieldError{Field: field + ".prefix", Problem: "has a character that no header has", Remedy: `use a word such as "Bearer "`}
	}
	return checkValueFile(field, h.ValueFile)
}

func (s GivenSecret) validate(field string) error {
	switch {
	case (s.Env == "") == (s.File == ""):
		return &config.FieldError{Field: field, Problem: "needs either env or file", Remedy: "name a variable, or a file in /run/secrets"}
	case s.Env != "" && !variablePattern.MatchString(s.Env):
		return &config.FieldError{Field: field + ".env", Problem: "is not the name of a variable", Remedy: "use letters, digits and _"}
	case s.File != "" && !namePattern.MatchString(s.File):
		return &config.FieldError{Field: field + ".file", Problem: "is not the name of a file in /run/secrets", Remedy: "use 1 to 63 of a-z 0-9 . _ -, starting with a letter or digit"}
	}
	return checkValueFile(field, s.ValueFile)
}

func checkValueFile(field, path string) error {
	if !filepath.IsAbs(path) {
		return &config.FieldError{Field: field + ".value_file", Problem: "is not an absolute path", Remedy: "name a file of the daemon's user with mode 0600"}
	}
	return nil
}
