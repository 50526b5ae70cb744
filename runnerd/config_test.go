package runnerd

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
	want.Name, want.Coordinators, want.Labels = "node1", []string{"https://a:1", "https://b:2"}, map[string]string{"rack": "a"}
	want.Limits.Memory, want.Sandbox.ReadOnly = 2<<30, []string{"/data"}
	var text bytes.Buffer
	if err := config.Print(&text, want); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "runnerd.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got := DefaultConfig()
	if err := config.Load(&got, config.Source{Path: file}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"data_dir":               func(c *Config) { c.DataDir = "relative" },
		"name":                   func(c *Config) { c.Name = "Node 1" },
		"slots":                  func(c *Config) { c.Slots = -1 },
		"default_timeout":        func(c *Config) { c.DefaultTimeout = c.MaxTimeout + 1 },
		"agent_uids":             func(c *Config) { c.AgentUIDs.First = 0 },
		"limits.workspace_queue": func(c *Config) { c.Limits.WorkspaceQueue = 0 },
		"limits.upload_bytes":    func(c *Config) { c.Limits.UploadBytes = 0 },
		"keep_executions":        func(c *Config) { c.KeepLogs = 0 },
		"store.keep_snapshots":   func(c *Config) { c.Store.KeepSnapshots = 1 },
		"store.min_snapshots":    func(c *Config) { c.Store.MinSnapshots = 1 },
		"store.collect_every":    func(c *Config) { c.Store.ScrubEvery = -1 },
		"store.max_objects":      func(c *Config) { c.Store.MaxObjects = 1 << 63 },
		"reapi.token_file":       func(c *Config) { c.REAPI.Listen = "127.0.0.1:0" },
		"log.level":              func(c *Config) { c.Log.Level = "loud" },
	} {
		c := DefaultConfig()
		c.Name = "node1"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		var fe *config.FieldError
		if err := c.Validate(); !errors.As(err, &fe) || fe.Field != field || fe.Remedy == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}
