package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

type sample struct {
	DataDir string            `yaml:"data_dir"`
	Labels  map[string]string `yaml:"labels"`
	Peers   []string          `yaml:"peers"`
	On      bool              `yaml:"on"`
	Slots   uint32            `yaml:"slots"`
	Nice    int               `yaml:"nice"`
	Ratio   float64           `yaml:"ratio"`
	Most    Bytes             `yaml:"most"`
	Raft    struct {
		HeartbeatTimeout Duration `yaml:"heartbeat_timeout"`
	} `yaml:"raft"`
	Hidden string `yaml:"-"`
}

func (s *sample) Validate() error {
	if s.DataDir == "" {
		return &FieldError{Field: "data_dir", Problem: "is empty", Remedy: "name a directory"}
	}
	return nil
}

func full() *sample {
	s := &sample{DataDir: "/var/lib/x", Labels: map[string]string{"zone": "a"}, Peers: []string{"p", "q"},
		On: true, Slots: 4, Nice: -3, Ratio: 0.5, Most: 64 << 20}
	s.Raft.HeartbeatTimeout = Duration(1500 * time.Millisecond)
	return s
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrintIsReadBack(t *testing.T) {
	for _, want := range []*sample{full(), {DataDir: "/x"}} {
		var out bytes.Buffer
		if err := Print(&out, want); err != nil {
			t.Fatal(err)
		}
		got := &sample{}
		if err := Load(got, Source{Path: write(t, out.String())}); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if want.Labels == nil {
			want.Labels, want.Peers = map[string]string{}, []string{}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	}
}

func TestOverridesInOrder(t *testing.T) {
	got := &sample{Slots: 1}
	err := Load(got, Source{
		Path:      write(t, "data_dir: /file\nnice: 7\nraft: {heartbeat_timeout: 2s}\n"),
		EnvPrefix: "SKERRY_T_",
		Environ: []string{"HOME=/root", "SKERRY_T_DATA_DIR=/env", "SKERRY_T_PEERS=a, b", "SKERRY_T_LABELS=k=v,n=",
			"SKERRY_T_RAFT_HEARTBEAT_TIMEOUT=3s", "SKERRY_T_MOST=1KiB", "SKERRY_T_ON=true", "SKERRY_T_RATIO=0.25"},
		Flags: map[string]string{"data_dir": "/flag", "slots": "9"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &sample{DataDir: "/flag", Labels: map[string]string{"k": "v", "n": ""}, Peers: []string{"a", "b"},
		On: true, Slots: 9, Nice: 7, Ratio: 0.25, Most: 1024}
	want.Raft.HeartbeatTimeout = Duration(3 * time.Second)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name string
		text string
		env  []string
		flag map[string]string
		want []string
	}{
		{"unknown key", "data_dir: /x\nraft:\n  hartbeat: 1s\n", nil, nil, []string{"line 3", "hartbeat", "c.yaml"}},
		{"wrong type", "slots: many\n", nil, nil, []string{"line 1", "many"}},
		{"bad duration", "raft: {heartbeat_timeout: -1s}\n", nil, nil, []string{"-1s"}},
		{"not yaml", "a: [\n", nil, nil, []string{"c.yaml"}},
		{"two documents", "data_dir: /x\n---\ndata_dir: /y\n", nil, nil, []string{"more than one document"}},
		{"unknown variable", "data_dir: /x\n", []string{"SKERRY_T_DATADIR=/y"}, nil, []string{"SKERRY_T_DATADIR", "SKERRY_T_DATA_DIR"}},
		{"bad variable", "data_dir: /x\n", []string{"SKERRY_T_SLOTS=-1"}, nil, []string{"SKERRY_T_SLOTS", `"-1"`}},
		{"bad map", "data_dir: /x\n", []string{"SKERRY_T_LABELS=k"}, nil, []string{"key=value"}},
		{"unknown flag", "data_dir: /x\n", nil, map[string]string{"nope": "1"}, []string{"nope"}},
		{"bad flag", "data_dir: /x\n", nil, map[string]string{"on": "maybe"}, []string{"on", "maybe"}},
		{"invalid", "nice: 1\n", nil, nil, []string{"data_dir: is empty; name a directory"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Load(&sample{}, Source{Path: write(t, tt.text), EnvPrefix: "SKERRY_T_", Environ: tt.env, Flags: tt.flag})
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	if err := Load(&sample{DataDir: "/x"}, Source{Path: path, Optional: true}); err != nil {
		t.Errorf("default path: %v", err)
	}
	if err := Load(&sample{DataDir: "/x"}, Source{Path: path}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("explicit path: %v", err)
	}
	var field *FieldError
	if err := Load(&sample{}, Source{}); !errors.As(err, &field) || field.Field != "data_dir" {
		t.Errorf("validate: %v", err)
	}
	if err := Load(&sample{DataDir: "/x"}, Source{Path: write(t, "# only a comment\n")}); err != nil {
		t.Errorf("empty file: %v", err)
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "17": 17, "17B": 17, "2KiB": 2048, "3 MiB": 3 << 20, "1GB": 1e9, "4TiB": 4 << 40} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
		var back Bytes
		if err := back.UnmarshalText([]byte(want.String())); err != nil || back != want {
			t.Errorf("%s: back %d, %v", want, back, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.5GiB", "99999999999TiB", "1 KB"} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: no error, %d", text, got)
		}
	}
}

func TestLog(t *testing.T) {
	if err := DefaultLog().Validate("log"); err != nil {
		t.Fatal(err)
	}
	for _, l := range []Log{{Level: "loud", Format: "text"}, {Level: "info", Format: "xml"}} {
		var field *FieldError
		if err := l.Validate("log"); !errors.As(err, &field) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	var out bytes.Buffer
	Log{Level: "warn", Format: "json"}.New(&out).Info("hidden")
	Log{Level: "warn", Format: "json"}.New(&out).Warn("shown", "k", 1)
	if got := out.String(); !strings.Contains(got, `"k":1`) || strings.Contains(got, "hidden") {
		t.Errorf("log %q", got)
	}
}
