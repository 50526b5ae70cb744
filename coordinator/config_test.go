package coordinator

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"skerry.internal/config"
)

func TestConfigRoundTrip(t *testing.T) {
	want := DefaultConfig()
	var out bytes.Buffer
	if err := config.Print(&out, want); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got := Config{}
	if err := config.Load(&got, config.Source{Path: path}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestConfigIsChecked(t *testing.T) {
	tests := []struct {
		field string
		set   func(*Config)
	}{
		{"", func(*Config) {}},
		{"", func(c *Config) { c.Listen = "[::1]:1" }},
		{"", func(c *Config) { c.Listen = "localhost:1" }},
		{"", func(c *Config) { c.Listen, c.TLS = "0.0.0.0:1", TLS{CertFile: "c", KeyFile: "k"} }},
		{"listen", func(c *Config) { c.Listen = "0.0.0.0:1" }},
		{"listen", func(c *Config) { c.Listen = ":1" }},
		{"listen", func(c *Config) { c.Listen = "[::]:1" }},
		{"listen", func(c *Config) { c.Listen = "10.0.0.1:1" }},
		{"listen", func(c *Config) { c.Listen = "host.example:1" }},
		{"listen", func(c *Config) { c.Listen = "127.0.0.1" }},
		{"tls", func(c *Config) { c.TLS.CertFile = "c" }},
		{"data_dir", func(c *Config) { c.DataDir = "" }},
		{"metrics_listen", func(c *Config) { c.MetricsListen = "x" }},
		{"raft.heartbeat_timeout", func(c *Config) { c.Raft.HeartbeatTimeout = 1 }},
		{"raft.election_timeout", func(c *Config) { c.Raft.ElectionTimeout = 1 }},
		{"raft.snapshot_interval", func(c *Config) { c.Raft.SnapshotInterval = 0 }},
		{"raft.apply_timeout", func(c *Config) { c.Raft.ApplyTimeout = 0 }},
		{"limits.max_request", func(c *Config) { c.Limits.MaxRequest = 1 }},
		{"limits.max_header", func(c *Config) { c.Limits.MaxHeader = 1 }},
		{"limits.max_in_flight", func(c *Config) { c.Limits.MaxInFlight = 0 }},
		{"log.level", func(c *Config) { c.Log.Level = "loud" }},
	}
	for _, tt := range tests {
		cfg := DefaultConfig()
		tt.set(&cfg)
		err := cfg.Validate()
		var field *config.FieldError
		if tt.field == "" && err != nil || tt.field != "" && (!errors.As(err, &field) || field.Field != tt.field || field.Remedy == "") {
			t.Errorf("%s: %v", tt.field, err)
		}
	}
}
