package sandbox

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenPolicy uses every field.
func goldenPolicy() Policy {
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	if uid == 0 {
		uid, gid = testUID, testGID
	}
	return Policy{
		Rootfs: "/var/lib/skerry/rootfs-1", System: []string{"/usr", "/lib64"}, Workspace: "/var/lib/skerry/ws/1",
		EnvPrefix: "/var/lib/skerry/env/7", Init: "/usr/libexec/skerry/runnerd-shim",
		ReadOnly: []Bind{{"/data/reference", "/data/reference"}},
		Args:     []string{"bash", "-c", "echo hello"}, Cwd: "/workspace/sub",
		Env:      map[string]string{"B": "2", "A": "1", "LANG": "de_DE.UTF-8"},
		TmpBytes: 1 << 20, ShmBytes: 2 << 20, HomeBytes: 3 << 20, Network: NetworkNone, Hostname: "box",
		HostUID: uid, HostGID: gid, CgroupNamespace: true,
		Limits: Limits{CPUs: 1.5, MemoryBytes: 1 << 30, MaxProcs: 100, NoFile: 1000, FileSize: 5 << 30},
	}
}

func TestSpecGolden(t *testing.T) {
	spec, err := goldenPolicy().Spec()
	if err != nil {
		t.Fatal(err)
	}
	// The one thing that depends on who runs the test.
	spec.Linux.UIDMappings[0].HostID, spec.Linux.GIDMappings[0].HostID = testUID, testGID
	got, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "spec.json", append(got, '\n'))
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; if the change is meant, run the test with -update. Got:\n%s", path, got)
	}
}

func TestPolicyRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Policy)
		field  string
	}{
		"no program":       {func(p *Policy) { p.Args = nil }, "Args"},
		"NUL in argument":  {func(p *Policy) { p.Args = []string{"a\x00b"} }, "Args"},
		"relative path":    {func(p *Policy) { p.Workspace = "ws" }, "Workspace"},
		"unclean path":     {func(p *Policy) { p.Workspace = "/a/../b" }, "Workspace"},
		"no rootfs":        {func(p *Policy) { p.Rootfs = "" }, "Rootfs"},
		"relative cwd":     {func(p *Policy) { p.Cwd = "sub" }, "Cwd"},
		"relative env":     {func(p *Policy) { p.EnvPrefix = "env" }, "EnvPrefix"},
		"relative target":  {func(p *Policy) { p.ReadOnly[0].Target = "x" }, "ReadOnly"},
		"environment name": {func(p *Policy) { p.Env = map[string]string{"A=B": ""} }, "Env"},
		"network":          {func(p *Policy) { p.Network = "host" }, "Network"},
		"negative limit":   {func(p *Policy) { p.Limits.MemoryBytes = -1 }, "Limits"},
	} {
		t.Run(name, func(t *testing.T) {
			p := goldenPolicy()
			tc.change(&p)
			_, err := p.Spec()
			var pe *PolicyError
			if !errors.As(err, &pe) || pe.Field != tc.field {
				t.Errorf("got %v, want an error about %s", err, tc.field)
			}
		})
	}
}

func TestNeverRootInSandbox(t *testing.T) {
	p := goldenPolicy()
	p.HostUID, p.HostGID = 0, 0
	_, err := p.Spec()
	if os.Getuid() != 0 {
		if err != nil {
			t.Errorf("an ordinary daemon's own uid is the default: %v", err)
		}
		p.HostUID = uint32(os.Getuid()) + 1
		if _, err := p.Spec(); err == nil {
			t.Error("an ordinary daemon may not choose another uid")
		}
		return
	}
	if !errors.Is(err, ErrRootInSandbox) {
		t.Errorf("got %v, want ErrRootInSandbox", err)
	}
}

func TestReportRequire(t *testing.T) {
	r := Report{Guarantees: []Guarantee{{Name: "a", Available: true}, {Name: "b", Why: "the cause", Remedy: "the cure"}}}
	if err := r.Require("a"); err != nil {
		t.Error(err)
	}
	err := r.Require("a", "b", "c")
	if !errors.Is(err, ErrGuarantee) || !strings.Contains(err.Error(), "b: the cause (the cure)") || !strings.Contains(err.Error(), "c") {
		t.Errorf("got %v", err)
	}
}

func TestTierOrder(t *testing.T) {
	if !TierUID.AtLeast(TierBase) || TierBase.AtLeast(TierCgroup) || !TierNone.AtLeast(TierNone) {
		t.Error("tiers are out of order")
	}
	if Tier("made up").AtLeast(TierNone) || TierUID.AtLeast("made up") {
		t.Error("an unknown tier counts for something")
	}
}

func TestIDsCannotLeaveTheirDirectory(t *testing.T) {
	for _, id := range []string{"", "..", "a/b", "a b", "ex_\x00", strings.Repeat("a", 200)} {
		if err := checkID(id); !errors.Is(err, ErrID) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := checkID("ex_01JabcZ-9"); err != nil {
		t.Error(err)
	}
}

// A mount point that is no absolute path once kept the daemon's start busy for ever.
func TestRootfsRefusesRelativeMountPoint(t *testing.T) {
	if _, err := BuildRootfs(t.TempDir(), System{}, []string{"relative"}); err == nil || !strings.Contains(err.Error(), "relative") {
		t.Errorf("%v", err)
	}
}
