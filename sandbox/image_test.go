package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"skerry.internal/sandbox/sandboxtest"
	"skerry.internal/sandbox/supervisor"
)

const testImage = "localhost/test:1"

// hostileImage has links where mount points and files go, and a set-id program.
var hostileImage = sandboxtest.Image{
	Programs: []string{"bash", "ls", "cat", "id", "touch", "unshare", "true", "grep"}, SetID: []string{"id"},
	Files: map[string]string{"marker": "of the image\n", "etc/passwd": "root:x:0:0::/root:/bin/bash\nother:x:1000:1000::/:/bin/sh\n", "opt/env/old": "x"},
	Links: map[string]string{"workspace": "/etc", "home": "../../../../tmp", "etc/hosts": "/etc/hostname", "etc/group": "passwd", ".skerry/init": "/usr/bin/true"},
}

// An image gives the root; the host's system is not seen, and the image's links
// lead nowhere outside of it.
func TestImageGivesTheRoot(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	c.Import("skerry", testImage, hostileImage)
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	w := onContainerd(c)(t, func(config *Config) { config.Containerd.Image = testImage })
	if !w.host.Report().Tier.AtLeast(TierCgroup) {
		t.Fatal(w.host.Report())
	}
	r := w.shell(t, `cat /marker; id -un; id -u; pwd; touch x && echo made; touch ~/y && echo home; ls /usr/lib/python3* /usr/share 2>/dev/null
touch /marker /usr/x /etc/x 2>/dev/null && echo writable; cat /etc/hosts | grep -c localhost; ls -A /opt/env; grep -c . /etc/passwd; exit 5`)
	if want := "of the image\nagent\n1000\n/workspace\nmade\nhome\n2\nold\n3\n"; r.stdout != want || r.Kind != supervisor.KindExited || *r.Code != 5 {
		t.Errorf("%q, want %q (%+v, %q)", r.stdout, want, r.Exit, r.stderr)
	}
	if _, err := os.Stat(w.workspace + "/x"); err != nil {
		t.Error(err)
	}
	if now, err := os.ReadFile("/etc/hosts"); err != nil || string(now) != string(hosts) {
		t.Errorf("the host's /etc/hosts was changed: %v", err)
	}
	// The base, the prepared root, and no view of an execution.
	if list := c.Ctr("skerry", "snapshots", "list"); strings.Count(list, "\n") != 3 {
		t.Errorf("snapshots left:\n%s", list)
	}
	again := onContainerd(c)(t, func(config *Config) { config.Containerd.Image = testImage })
	if r := again.shell(t, "echo again"); r.stdout != "again\n" {
		t.Errorf("the root is found again: %+v %q", r.Exit, r.stderr)
	}
}

func TestImageThatIsNotThere(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	h := openHost(t, func(config *Config) {
		config.Backend, config.Containerd = Containerd, ContainerdConfig{Address: c.Address, Image: "localhost/none:1"}
	})
	g, _ := h.Report().Get(Containerd)
	if g.Available || !strings.Contains(g.Why, "no image") || !strings.Contains(g.Remedy, "images pull") || h.Report().Tier != TierNone {
		t.Errorf("report:\n%s", h.Report())
	}
	if _, err := h.Command("ex_1", Policy{Workspace: "/w", Args: []string{"true"}, HostUID: 1, HostGID: 1}); err == nil {
		t.Error("it makes sandboxes all the same")
	}
}

func TestTiersOfBothBackends(t *testing.T) {
	strong, weak := Tier("containerd-userns+seccomp+cgroup+uid"), Tier("containerd-userns+seccomp")
	for _, c := range []struct {
		a, b Tier
		want bool
	}{
		{strong, TierUID, true}, {TierUID, strong, true}, {weak, TierCgroup, false}, {TierCgroup, weak, true}, {strong, TierNone, true}, {TierNone, weak, false},
		{strong, "containerd-vm", false}, {"containerd-vm", TierNone, false}, {"containerd-none", TierNone, false},
	} {
		if got := c.a.AtLeast(c.b); got != c.want {
			t.Errorf("%s at least %s: %v", c.a, c.b, got)
		}
	}
}

// containerd answers, but has no runc: the report says so, with the remedy.
func TestContainerdWithoutRunc(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	shim, err := exec.LookPath("containerd-shim-runc-v2")
	if err != nil {
		t.Fatal(err)
	}
	c.Kill()
	c.Path = t.TempDir()
	if err := os.Symlink(shim, filepath.Join(c.Path, "containerd-shim-runc-v2")); err != nil {
		t.Fatal(err)
	}
	c.Start()
	h := openHost(t, func(config *Config) { config.Backend, config.Containerd.Address = Containerd, c.Address })
	g, _ := h.Report().Get(Containerd)
	if g.Available || !strings.Contains(g.Why, "no runc") || !strings.Contains(g.Remedy, "install the package runc") || h.Report().Tier != TierNone {
		t.Errorf("report:\n%s", h.Report())
	}
}
