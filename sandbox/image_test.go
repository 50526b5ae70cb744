package sandbox

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// What an image has where files and mount points go is hostile: pipes that would
// never end, devices of the host, links out of it, directories that nobody may
// pass. None of it stops the daemon, and none of it is read.
func TestImageWithTraps(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	node := func(name string, kind byte, minor int64) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Mode: 0o644, Devmajor: 1, Devminor: minor}
	}
	const zero = 5
	c.Import("skerry", testImage, sandboxtest.Image{
		Programs: []string{"bash", "cat", "id", "touch", "readlink"},
		Links:    map[string]string{"tmp": "/proc/1/root", "proc": "/", "var": "/etc"},
		Entries: []tar.Header{
			node("etc/passwd", tar.TypeFifo, 0), node("etc/hosts", tar.TypeFifo, 0), node("workspace", tar.TypeFifo, 0), node("run", tar.TypeChar, zero),
			{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700}, {Name: "home/", Typeflag: tar.TypeDir, Mode: 0o700}, {Name: ".skerry/", Typeflag: tar.TypeDir},
			{Name: "etc/resolv.conf/deep/", Typeflag: tar.TypeDir, Mode: 0o755},
		},
	})
	w := onContainerd(c)(t, func(config *Config) { config.Containerd.Image = testImage })
	r := w.shell(t, "id -un; for d in . ~ /tmp /var/tmp /run; do touch $d/x || echo $d; done; readlink /var/tmp; cat /etc/hostname")
	if want := "agent\n/tmp\nskerry\n"; r.stdout != want || r.stderr != "" {
		t.Errorf("%q %q, want %q (%+v)\n%s", r.stdout, r.stderr, want, r.Exit, w.host.Report())
	}
	// A device, which reading would never end either, and a link out.
	for name, image := range map[string]sandboxtest.Image{
		"device": {Entries: []tar.Header{node("etc/passwd", tar.TypeChar, zero), node("etc/group", tar.TypeChar, zero)}},
		"links":  {Links: map[string]string{"etc/passwd": "/nix/store/passwd", "etc/group": "../../../../etc/group"}},
	} {
		image.Programs = []string{"bash", "id"}
		c.Import("skerry", "localhost/"+name+":1", image)
		w := onContainerd(c)(t, func(config *Config) { config.Containerd.Image = "localhost/" + name + ":1" })
		if r := w.shell(t, "id -un; id -gn"); r.stdout != "agent\nagent\n" {
			t.Errorf("%s: %q (%+v)\n%s", name, r.stdout, r.Exit, w.host.Report())
		}
	}
}

// What the operator shows beside the system is seen with an image too, below
// the system's directories as well.
func TestImageWithReadOnlyOfTheHost(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	c.Import("skerry", testImage, sandboxtest.Image{Programs: []string{"bash", "ls"}})
	const shown = "/usr/share/zoneinfo"
	w := onContainerd(c)(t, func(config *Config) { config.Containerd.Image, config.MountPoints = testImage, []string{shown} })
	w.policy.ReadOnly = []Bind{{shown, shown}}
	if r := w.shell(t, "ls "+shown+"; ls -d /usr/share/*"); !strings.Contains(r.stdout, "Europe\n") || strings.Count(r.stdout, "/usr/share/") != 1 {
		t.Errorf("%q %q (%+v)", r.stdout, r.stderr, r.Exit)
	}
}

// A daemon that was killed while it prepared an image leaves a mount and a
// snapshot; the next one removes its own and no other's.
func TestImageWorkIsCleared(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	c.Import("skerry", testImage, sandboxtest.Image{Programs: []string{"bash"}})
	var left string
	w := onContainerd(c)(t, func(config *Config) {
		config.Containerd.Image = testImage
		left = filepath.Join(config.StateDir, ".image-1")
		if err := os.Mkdir(left, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", left, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(left, unix.MNT_DETACH) })
		for key, owner := range map[string]string{"skerry-root-a-work-1": config.StateDir, "skerry-root-b-work-1": "/another", "mine": config.StateDir} {
			c.Ctr("skerry", "snapshots", "prepare", key)
			c.Ctr("skerry", "snapshots", "label", key, "skerry/owner="+owner)
		}
	})
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mount is there: %v", err)
	}
	list := c.Ctr("skerry", "snapshots", "list")
	if strings.Contains(list, "root-a-work") || !strings.Contains(list, "root-b-work") || !strings.Contains(list, "mine") {
		t.Errorf("snapshots:\n%s", list)
	}
	if r := w.shell(t, "echo up"); r.stdout != "up\n" {
		t.Errorf("%+v %q", r.Exit, r.stderr)
	}
}

// What containerd says of a setting is told as containerd's, not as the kernel's.
func TestContainerdWithWrongSettings(t *testing.T) {
	c := sandboxtest.StartContainerd(t)
	for name, k := range map[string]struct {
		change      func(*ContainerdConfig)
		why, remedy string
	}{
		"namespace":       {func(c *ContainerdConfig) { c.Namespace = "a/b" }, "a/b", "containerd's own log"},
		"runtime":         {func(c *ContainerdConfig) { c.Runtime = "bogus" }, "no such runtime", "sandbox.containerd.runtime"},
		"missing runtime": {func(c *ContainerdConfig) { c.Runtime = "io.containerd.none.v2" }, "no such runtime", "sandbox.containerd.runtime"},
	} {
		t.Run(name, func(t *testing.T) {
			h := openHost(t, func(config *Config) {
				config.Backend, config.Containerd.Address = Containerd, c.Address
				k.change(&config.Containerd)
			})
			g, _ := h.Report().Get(Containerd)
			if g.Available || !strings.Contains(g.Why, k.why) || !strings.Contains(g.Remedy, k.remedy) || strings.Contains(h.Report().String(), "CONFIG_SECCOMP") {
				t.Errorf("report:\n%s", h.Report())
			}
		})
	}
}
