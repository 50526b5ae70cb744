// Package config reads a daemon's configuration: one YAML file, overridden by
// environment variables, overridden by flags. Unknown keys are refused, so that
// a typing error never leaves a default silently in force.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Source is where the values of a configuration come from.
type Source struct {
	// Path of the YAML file; empty: none.
	Path string
	// Optional: a missing file is no error, as for the default path.
	Optional bool
	// EnvPrefix of overriding variables, for example "SKERRY_COORDINATOR_"; empty: none.
	EnvPrefix string
	// Environ is os.Environ() or a test's own.
	Environ []string
	// Flags override all else: key is the path of YAML keys joined by dots
	// ("raft.heartbeat_timeout"), value its text.
	Flags map[string]string
}

// FieldError is a value that cannot be used. Every Validate returns it.
type FieldError struct {
	// Field is the path of YAML keys joined by dots.
	Field   string
	Problem string
	Remedy  string
}

// Error implements error.
func (e *FieldError) Error() string {
	text := e.Field + ": " + e.Problem
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Validator is a configuration that checks itself.
type Validator interface{ Validate() error }

// Load fills into, a pointer to a struct that holds the defaults, and then
// calls its Validate when it has one.
func Load(into any, src Source) error {
	if err := loadFile(into, src); err != nil {
		return err
	}
	fields, err := leaves(into)
	if err != nil {
		return err
	}
	if err := applyEnviron(fields, src.EnvPrefix, src.Environ); err != nil {
		return err
	}
	if err := applyFlags(fields, src.Flags); err != nil {
		return err
	}
	if v, ok := into.(Validator); ok {
		if err := v.Validate(); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
	}
	return nil
}

func loadFile(into any, src Source) error {
	if src.Path == "" {
		return nil
	}
	data, err := os.ReadFile(src.Path)
	if errors.Is(err, fs.ErrNotExist) && src.Optional {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("configuration %s: %s", src.Path, yamlText(err))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("configuration %s: more than one document", src.Path)
	}
	return nil
}

// yamlText puts the library's several errors, each with its line, on one line.
func yamlText(err error) string {
	var typed *yaml.TypeError
	if errors.As(err, &typed) {
		return strings.Join(typed.Errors, "; ")
	}
	return strings.TrimPrefix(err.Error(), "yaml: ")
}

// Print writes cfg as YAML that Load reads back to the same values.
func Print(w io.Writer, cfg any) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(cfg); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return enc.Close()
}
