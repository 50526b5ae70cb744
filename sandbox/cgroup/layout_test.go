package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"skerry.internal/sandbox/supervisor"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestReadMounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mountinfo")
	write(t, path, `25 30 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
26 30 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
27 30 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
28 30 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
29 1 8:1 / / rw - ext4 /dev/sda1 rw
nonsense
`)
	m, err := readMounts(path)
	if err != nil {
		t.Fatal(err)
	}
	want := mounts{v1: map[string]string{Memory: "/sys/fs/cgroup/memory", CPU: "/sys/fs/cgroup/cpu,cpuacct"}, v2: "/sys/fs/cgroup/unified"}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got %+v, want %+v", m, want)
	}
}

func TestReadOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cgroup")
	write(t, path, "4:memory:/a/b\n2:cpu,cpuacct:/c:d\n0::/user.slice/x.service\n")
	own, err := readOwn(path)
	if err != nil || own[Memory] != "/a/b" || own[CPU] != "/c:d" || own[""] != "/user.slice/x.service" {
		t.Errorf("got %v, %v", own, err)
	}
}

// A hybrid host: memory by version 1, the rest by the unified hierarchy.
func TestF23Hybrid(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "memory", "own", "cgroup.procs"), "")
	write(t, filepath.Join(root, "unified", "u", "cgroup.controllers"), "cpu io pids\n")
	write(t, filepath.Join(root, "unified", "u", "cgroup.subtree_control"), "")
	write(t, filepath.Join(root, "unified", "u", groupDir, "cgroup.subtree_control"), "")
	m := mounts{v1: map[string]string{Memory: filepath.Join(root, "memory")}, v2: filepath.Join(root, "unified")}
	l := setup(m, map[string]string{Memory: "/own", "": "/u"})
	if l.Version() != "hybrid" || !l.Has(Memory) || !l.Has(Pids) || !l.Has(CPU) || len(l.Why) != 0 {
		t.Fatalf("layout %+v", l)
	}
	b, _ := os.ReadFile(filepath.Join(root, "unified", "u", "cgroup.subtree_control"))
	if string(b) != "+pids +cpu" {
		t.Errorf("handed down %q", b)
	}
	dirs := l.Dirs("ex_1", Limits{MemoryBytes: 1 << 20, MaxProcs: 10, CPUs: 1.5})
	want := []supervisor.CgroupDir{
		{Path: filepath.Join(root, "memory/own/skerry/ex_1"), Controllers: []string{Memory}, Settings: []supervisor.CgroupSetting{
			{File: "memory.limit_in_bytes", Value: "1048576"}, {File: "memory.memsw.limit_in_bytes", Value: "1048576", Optional: true}}},
		{Path: filepath.Join(root, "unified/u/skerry/ex_1"), V2: true, Controllers: []string{CPU, Pids}, Settings: []supervisor.CgroupSetting{
			{File: "cpu.max", Value: "150000 100000"}, {File: "pids.max", Value: "10"}}},
	}
	if !reflect.DeepEqual(dirs, want) {
		t.Errorf("got %+v\nwant %+v", dirs, want)
	}
	if dirs := l.Dirs("ex_1", Limits{}); len(dirs) != 0 {
		t.Errorf("groups without limits: %+v", dirs)
	}
}

// F23: what can't be used is said, not ignored.
func TestF23MissingControllersAreExplained(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "cgroup.controllers"), "io\n")
	l := setup(mounts{v2: root}, map[string]string{"": "/"})
	for _, c := range wanted {
		if l.Has(c) || !strings.Contains(l.Why[c], "Delegate") {
			t.Errorf("%s: %v, %q", c, l.Has(c), l.Why[c])
		}
	}
	l = setup(mounts{}, nil)
	if l.Version() != "none" || l.Why[Memory] == "" {
		t.Errorf("layout %+v", l)
	}
}

func TestMoveAsideLeavesOthersAlone(t *testing.T) {
	base := t.TempDir()
	write(t, filepath.Join(base, "cgroup.procs"), strconv.Itoa(os.Getpid())+"\n1\n")
	if err := moveAside(base); err == nil || !strings.Contains(err.Error(), "other processes") {
		t.Errorf("got %v", err)
	}
	write(t, filepath.Join(base, "cgroup.procs"), strconv.Itoa(os.Getpid())+"\n")
	write(t, filepath.Join(base, daemonDir, "cgroup.procs"), "")
	if err := moveAside(base); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(base, daemonDir, "cgroup.procs")); string(b) != strconv.Itoa(os.Getpid()) {
		t.Errorf("moved %q", b)
	}
}

// Setup on the real host reports every controller one way or the other.
func TestSetupHere(t *testing.T) {
	l, err := Setup()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v", l.Version(), l)
	for _, c := range slices.Clone(wanted) {
		if l.Has(c) == (l.Why[c] != "") {
			t.Errorf("%s: usable %v, reason %q", c, l.Has(c), l.Why[c])
		}
	}
}

// A process that moved into its leaf, and one that it starts, use the group
// above: leaf below leaf would lead away from what was handed down.
func TestSetupAgainUsesTheSameGroups(t *testing.T) {
	mount := t.TempDir()
	for _, dir := range []string{"unit", "unit/skerry-daemon", "unit/skerry"} {
		write(t, filepath.Join(mount, dir, "cgroup.controllers"), "memory pids cpu")
		write(t, filepath.Join(mount, dir, "cgroup.subtree_control"), "")
	}
	for _, own := range []string{"/unit", "/unit/skerry-daemon"} {
		l := setup(mounts{v2: mount}, map[string]string{"": own})
		if want := filepath.Join(mount, "unit/skerry"); l.V2 != want || !l.Has(Memory) {
			t.Errorf("from %s: groups in %s, want %s (%v)", own, l.V2, want, l.Why)
		}
	}
}
