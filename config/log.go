package config

import (
	"io"
	"log/slog"
)

// Log says what a daemon logs and how.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level"`
	// Format is text or json.
	Format string `yaml:"format"`
}

// DefaultLog is what daemons start from.
func DefaultLog() Log { return Log{Level: "info", Format: "text"} }

// Validate checks both words; prefix is the YAML path of l.
func (l Log) Validate(prefix string) error {
	if _, err := l.level(); err != nil {
		return &FieldError{Field: prefix + ".level", Problem: "unknown level " + l.Level,
			Remedy: "use debug, info, warn or error"}
	}
	if l.Format != "text" && l.Format != "json" {
		return &FieldError{Field: prefix + ".format", Problem: "unknown format " + l.Format,
			Remedy: "use text or json"}
	}
	return nil
}

// New makes the logger; l must be valid.
func (l Log) New(w io.Writer) *slog.Logger {
	level, _ := l.level()
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func (l Log) level() (slog.Level, error) {
	var level slog.Level
	err := level.UnmarshalText([]byte(l.Level))
	return level, err
}
