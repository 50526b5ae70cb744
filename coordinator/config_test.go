package coordinator

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

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

// ofCluster changes the configuration of one of several coordinators.
func ofCluster(change func(*Config)) func(*Config) {
	return func(c *Config) {
		c.Listen, c.Advertise = "0.0.0.0:7420", "https://10.0.0.1:7420"
		c.Cluster.Listen, c.Cluster.Advertise = "0.0.0.0:7422", "10.0.0.1:7422"
		change(c)
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
		{"", ofCluster(func(*Config) {})},
		{"", ofCluster(func(c *Config) { c.Cluster.Join = []string{"https://10.0.0.1:7420"} })},
		{"", ofCluster(func(c *Config) { c.Cluster.Bootstrap, c.Cluster.RemoveDeadAfter = true, config.Duration(time.Hour) })},
		{"name", func(c *Config) { c.Name = "Coordinator 1" }},
		{"cluster.listen", func(c *Config) { c.Cluster.Bootstrap = true }},
		{"cluster.advertise", ofCluster(func(c *Config) { c.Cluster.Advertise = "" })},
		{"cluster.advertise", ofCluster(func(c *Config) { c.Cluster.Advertise = "127.0.0.1:7422" })},
		{"cluster.advertise", ofCluster(func(c *Config) { c.Cluster.Advertise = "10.0.0.1" })},
		{"advertise", ofCluster(func(c *Config) { c.Advertise = "" })},
		{"advertise", ofCluster(func(c *Config) { c.Advertise = "http://10.0.0.1:7420" })},
		{"advertise", ofCluster(func(c *Config) { c.Advertise = "https://0.0.0.0:7420" })},
		{"cluster", ofCluster(func(c *Config) { c.Cluster.Bootstrap, c.Cluster.Join = true, []string{"https://10.0.0.1:7420"} })},
		{"cluster.remove_dead_after", ofCluster(func(c *Config) { c.Cluster.RemoveDeadAfter = config.Duration(time.Second) })},
		{"raft.stall_timeout", ofCluster(func(c *Config) { c.Raft.StallTimeout = 0 })},
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
