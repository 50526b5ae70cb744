package runnerd

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"skerry.internal/config"
	"skerry.internal/sandbox"
)

func TestConfigRoundTrip(t *testing.T) {
	want := DefaultConfig()
	want.Name, want.Coordinators, want.Labels = "node1", []string{"https://a:1", "https://b:2"}, map[string]string{"rack": "a"}
	want.Limits.Memory, want.Sandbox.ReadOnly = 2<<30, []string{"/data"}
	want.Sandbox.Backends, want.Sandbox.Containerd.Image = []string{"containerd", "bubblewrap"}, "a/b:1"
	want.Sandbox.Containerd.Rootfs = rootfsImage
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
		"forward_idle":           func(c *Config) { c.ForwardIdle = 0 },
		"store.keep_snapshots":   func(c *Config) { c.Store.KeepSnapshots = 1 },
		"store.min_snapshots":    func(c *Config) { c.Store.MinSnapshots = 1 },
		"store.collect_every":    func(c *Config) { c.Store.ScrubEvery = -1 },
		"store.max_objects":      func(c *Config) { c.Store.MaxObjects = 1 << 63 },
		"reapi.token_file":       func(c *Config) { c.REAPI.Listen = "127.0.0.1:0" },
		"sandbox.backends":       func(c *Config) { c.Sandbox.Backends = []string{"bubblewrap", "bubblewrap"} },
		"sandbox.require_tier":   func(c *Config) { c.Sandbox.RequireTier = "strong" },
		"sandbox.containerd.address": func(c *Config) {
			c.Sandbox.Backends, c.Sandbox.Containerd.Address = []string{"containerd"}, "unix:///run/sock"
		},
		"sandbox.read_only[1]": func(c *Config) { c.Sandbox.ReadOnly = []string{"/usr", "relative"} },
		"sandbox.containerd.namespace": func(c *Config) {
			c.Sandbox.Backends, c.Sandbox.Containerd.Namespace = []string{"containerd"}, "a/b"
		},
		"sandbox.containerd.runtime": func(c *Config) {
			c.Sandbox.Backends, c.Sandbox.Containerd.Runtime = []string{"containerd"}, "runc"
		},
		"sandbox.containerd.rootfs": func(c *Config) {
			c.Sandbox.Backends, c.Sandbox.Containerd.Rootfs = []string{"containerd"}, "other"
		},
		"sandbox.containerd.image": func(c *Config) {
			c.Sandbox.Backends, c.Sandbox.Containerd.Rootfs = []string{"containerd"}, "image"
		},
		"limits.processes":  func(c *Config) { c.Limits.Processes = 1 << 63 },
		"limits.memory":     func(c *Config) { c.Limits.Memory = 1000 },
		"limits.file_bytes": func(c *Config) { c.Limits.FileBytes = 1 << 63 },
		"grace":             func(c *Config) { c.Grace = -1 },
		"log.level":         func(c *Config) { c.Log.Level = "loud" },
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

// The container's root is a uid that no agent gets.
func TestContainersRootIsNoAgent(t *testing.T) {
	c := DefaultConfig()
	if c.agents() != c.AgentUIDs {
		t.Errorf("without containerd: %+v", c.agents())
	}
	c.Sandbox.Backends = []string{"bubblewrap", "containerd"}
	agents, root := c.agents(), c.sandboxConfig(sandbox.Config{}, sandbox.Containerd).Containerd.RootUID
	if root == 0 || root < c.AgentUIDs.First || root >= c.AgentUIDs.First+c.AgentUIDs.Count || root < agents.First+agents.Count {
		t.Errorf("agents %+v, root %d", agents, root)
	}
}

// No number passes that would panic, or mean next to nothing where it says a lot.
func TestLimitsOfProcessorsAreChecked(t *testing.T) {
	for _, cpus := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e20, 1e-300, 0.001} {
		c := DefaultConfig()
		c.Name, c.Limits.CPUs = "node1", cpus
		var fe *config.FieldError
		if err := c.Validate(); !errors.As(err, &fe) || fe.Field != "limits.cpus" || fe.Remedy == "" {
			t.Errorf("%v: %v", cpus, err)
		}
	}
	for _, cpus := range []float64{0, 0.01, 1.5, 4096} {
		c := DefaultConfig()
		c.Name, c.Limits.CPUs = "node1", cpus
		if err := c.Validate(); err != nil {
			t.Errorf("%v: %v", cpus, err)
		}
	}
	for _, threads := range []int{-1, 1 << 40} {
		c := DefaultConfig()
		c.Name, c.Limits.ThreadsHint = "node1", threads
		var fe *config.FieldError
		if err := c.Validate(); !errors.As(err, &fe) || fe.Field != "limits.threads_hint" {
			t.Errorf("%d threads: %v", threads, err)
		}
	}
}

func TestReadOnlyLeavesTheSandboxItsPlaces(t *testing.T) {
	for _, p := range []string{"/", "/proc", "/proc/self", "/home", "/workspace/x", "/.skerry", "/opt/env", "/usr/../etc", "/usr/", ""} {
		if err := (Sandbox{ReadOnly: []string{p}}).validateReadOnly(); err == nil {
			t.Errorf("%q is accepted", p)
		}
	}
	if err := (Sandbox{ReadOnly: []string{"/usr/share", "/usr", "/opt", "/run/tools", "/etc/tools"}}).validateReadOnly(); err != nil {
		t.Error(err)
	}
	for p, found := range map[string]bool{"/usr": true, "/no/such": false, "/usr/bin/env": false} {
		if err := (Sandbox{ReadOnly: []string{p}}).findReadOnly(); (err == nil) != found {
			t.Errorf("%s: %v", p, err)
		}
	}
}
