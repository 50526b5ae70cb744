package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.internal/sandbox/sandboxtest"
)

func TestProbeThisHost(t *testing.T) {
	h := openHost(t, nil)
	r := h.Report()
	t.Logf("\n%s", r)
	if !r.Tier.AtLeast(TierBase) {
		t.Fatalf("tier %s", r.Tier)
	}
	for _, g := range r.Guarantees {
		if !g.Available && (g.Why == "" || g.Remedy == "") {
			t.Errorf("%s is missing without a cause or a remedy: %+v", g.Name, g)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(h.config.StateDir, ".*")); len(left) > 0 {
		t.Errorf("the probes left %v", left)
	}
}

// brokenBwrap is bubblewrap with a defect: it fails where its options match.
func brokenBwrap(t *testing.T, pattern, message string) string {
	t.Helper()
	sandboxtest.RequireBwrap(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "bwrap")
	script := "#!/bin/sh\ncase \" $* \" in *'" + pattern + "'*) echo 'bwrap: " + message + "' >&2; exit 1;; esac\nexec bwrap \"$@\"\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// F15: the report names cause and cure of missing user name spaces, and nothing
// runs in a weaker sandbox.
func TestF15UserNamespacesOff(t *testing.T) {
	bwrap := brokenBwrap(t, "--unshare-user", "setting up uid map: Permission denied")
	for setting, remedy := range map[string]string{
		"kernel/unprivileged_userns_clone=0":                 "kernel.unprivileged_userns_clone=1",
		"user/max_user_namespaces=0":                         "user.max_user_namespaces=",
		"kernel/apparmor_restrict_unprivileged_userns=1":     "AppArmor profile",
		"kernel/something_else=1":                            "container",
		"kernel/unprivileged_userns_clone=1 (nothing wrong)": "container",
	} {
		t.Run(setting, func(t *testing.T) {
			sysctls := t.TempDir()
			name, value, _ := strings.Cut(setting, "=")
			if err := os.MkdirAll(filepath.Dir(filepath.Join(sysctls, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sysctls, name), []byte(value[:1]+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			h := openHost(t, func(c *Config) { c.Bwrap, c.sysctls = bwrap, sysctls })
			g, _ := h.Report().Get(UserNamespaces)
			if h.Report().Tier != TierNone || g.Available || g.Why == "" || !strings.Contains(g.Remedy, remedy) {
				t.Errorf("tier %s, %+v", h.Report().Tier, g)
			}
			if _, err := h.Command("ex_1", Policy{Args: []string{"true"}}); err == nil {
				t.Error("a command was made all the same")
			}
		})
	}
}

// F16: /proc can't be mounted.
func TestF16ProcMasked(t *testing.T) {
	bwrap := brokenBwrap(t, "--proc /proc", "cannot mount proc on /newroot/proc: Operation not permitted")
	h := openHost(t, func(c *Config) { c.Bwrap = bwrap })
	g, _ := h.Report().Get(ProcMount)
	if h.Report().Tier != TierNone || g.Available || !strings.Contains(g.Remedy, "systempaths=unmasked") {
		t.Errorf("tier %s, %+v", h.Report().Tier, g)
	}
}

// F16: --disable-userns fails where /proc/sys is read-only; seccomp then does
// its work.
func TestF16DisableUsernsFails(t *testing.T) {
	bwrap := brokenBwrap(t, "--disable-userns", "cannot open /proc/sys/user/max_user_namespaces")
	w := newWorld(t, func(c *Config) { c.Bwrap = bwrap })
	g, _ := w.host.Report().Get(NestedUserns)
	if !w.host.Report().Tier.AtLeast(TierBase) || !g.Available || g.Why != "by seccomp" {
		t.Errorf("tier %s, %+v", w.host.Report().Tier, g)
	}
	if r := w.shell(t, "unshare -U true 2>/dev/null && echo nested; echo done"); r.stdout != "done\n" {
		t.Errorf("stdout %q, %+v", r.stdout, r.Exit)
	}
}

func TestNoBwrap(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Bwrap = "/no/such/bwrap" })
	g, _ := h.Report().Get(Bubblewrap)
	if h.Report().Tier != TierNone || g.Available || !strings.Contains(g.Remedy, "install") {
		t.Errorf("tier %s, %+v", h.Report().Tier, g)
	}
}

// Without --bind-fd (bubblewrap 0.9 and older) paths are bound by name.
func TestOldBwrap(t *testing.T) {
	sandboxtest.RequireBwrap(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "bwrap")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = --help ] && exit 0\nexec bwrap \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) { c.Bwrap = path })
	if w.host.Report().has(BindByFD) {
		t.Error("an option was found that isn't there")
	}
	if r := w.shell(t, "touch x; ls /workspace; ls -l /proc/self/fd | grep -c -e private"); r.stdout != "x\n0\n" {
		t.Errorf("stdout %q, %+v", r.stdout, r.Exit)
	}
}

func TestRootfsIsShared(t *testing.T) {
	dir := t.TempDir()
	system, err := DetectSystem()
	if err != nil {
		t.Fatal(err)
	}
	first, err := BuildRootfs(dir, system, []string{"/data"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := BuildRootfs(dir, system, []string{"/data"})
	if err != nil || second != first {
		t.Errorf("%s and %s, %v", first, second, err)
	}
	third, err := BuildRootfs(dir, system, nil)
	if err != nil || third == first {
		t.Errorf("%s for another content, %v", third, err)
	}
	for _, name := range []string{"shadow", "gshadow", "sudoers", "machine-id", "fstab", "pip.conf", "npmrc", "ssh", "ssl/private"} {
		if _, err := os.Lstat(filepath.Join(first, "etc", name)); err == nil {
			t.Errorf("/etc/%s is shown to sandboxes", name)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("%d entries left, want the two root directories", len(entries))
	}
}
