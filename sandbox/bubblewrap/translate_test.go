package bubblewrap

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const policyDocument = "../testdata/spec.json"

func readSpec(t *testing.T) *specs.Spec {
	t.Helper()
	b, err := os.ReadFile(policyDocument)
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

func testBackend(change func(*Config)) *Backend {
	config := Config{
		Path: "/usr/bin/bwrap", BindFD: true, DisableUserns: true, Init: "/.skerry/init",
		SystemDirs: []string{"/usr", "/lib64"}, StageDirs: []string{"/tmp"},
	}
	if change != nil {
		change(&config)
	}
	return New(config)
}

// The policy's own golden document becomes this command line.
func TestCommandGolden(t *testing.T) {
	spec := readSpec(t)
	// Which of them there are to mask depends on the kernel.
	spec.Linux.MaskedPaths = []string{"/proc/no-such-file", "/proc/version", "/proc/tty", "/sys/firmware"}
	got, err := testBackend(nil).Command(spec, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Files {
		if got.Files[i].Name == "seccomp" {
			if len(got.Files[i].Data) == 0 || len(got.Files[i].Data)%8 != 0 {
				t.Errorf("seccomp program of %d bytes", len(got.Files[i].Data))
			}
			got.Files[i].Data = []byte("compiled elsewhere")
		}
	}
	b, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "command.json")
	if *update {
		if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(b)+"\n" != string(want) {
		t.Errorf("the command differs; if the change is meant, run the test with -update. Got:\n%s", b)
	}
}

// Whatever bubblewrap can't do is refused by name.
func TestRefusesWhatItCannotExpress(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*specs.Spec)
		say    string
	}{
		"hooks":              {func(s *specs.Spec) { s.Hooks = &specs.Hooks{} }, "hooks"},
		"annotations":        {func(s *specs.Spec) { s.Annotations = map[string]string{"a": "b"} }, "annotations"},
		"domain name":        {func(s *specs.Spec) { s.Domainname = "x" }, "domainname"},
		"terminal":           {func(s *specs.Spec) { s.Process.Terminal = true }, "terminal"},
		"selinux":            {func(s *specs.Spec) { s.Process.SelinuxLabel = "x" }, "selinuxLabel"},
		"apparmor":           {func(s *specs.Spec) { s.Process.ApparmorProfile = "x" }, "apparmorProfile"},
		"oom score":          {func(s *specs.Spec) { n := 1; s.Process.OOMScoreAdj = &n }, "oomScoreAdj"},
		"groups":             {func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{1} }, "user"},
		"umask":              {func(s *specs.Spec) { n := uint32(7); s.Process.User.Umask = &n }, "user"},
		"capabilities":       {func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"CAP_KILL"} }, "capabilities"},
		"capabilities left":  {func(s *specs.Spec) { s.Process.Capabilities = nil }, "capabilities"},
		"new privileges":     {func(s *specs.Spec) { s.Process.NoNewPrivileges = false }, "privileges"},
		"other rlimit":       {func(s *specs.Spec) { s.Process.Rlimits[0].Type = "RLIMIT_AS" }, "RLIMIT_AS"},
		"soft limit":         {func(s *specs.Spec) { s.Process.Rlimits[1].Soft = 1 }, "soft"},
		"no command":         {func(s *specs.Spec) { s.Process.Args = nil }, "arguments"},
		"bad environment":    {func(s *specs.Spec) { s.Process.Env = []string{"X"} }, "environment"},
		"writable root":      {func(s *specs.Spec) { s.Root.Readonly = false }, "root"},
		"joined name space":  {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/user" }, "name space"},
		"time name space":    {func(s *specs.Spec) { s.Linux.Namespaces[0].Type = specs.TimeNamespace }, "time"},
		"shared pids":        {func(s *specs.Spec) { s.Linux.Namespaces = slices.Delete(s.Linux.Namespaces, 1, 2) }, "pid"},
		"root mapped":        {func(s *specs.Spec) { s.Linux.UIDMappings[0].HostID = 0 }, "uid"},
		"root inside":        {func(s *specs.Spec) { s.Process.User.UID, s.Linux.UIDMappings[0].ContainerID = 0, 0 }, "uidMappings"},
		"more ids":           {func(s *specs.Spec) { s.Linux.GIDMappings[0].Size = 2 }, "gidMappings"},
		"sysctl":             {func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"a": "b"} }, "sysctl"},
		"devices":            {func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x"}} }, "devices"},
		"cgroup path":        {func(s *specs.Spec) { s.Linux.CgroupsPath = "/x" }, "cgroupsPath"},
		"block io":           {func(s *specs.Spec) { s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{} }, "blockIO"},
		"cpu set":            {func(s *specs.Spec) { s.Linux.Resources.CPU.Cpus = "0" }, "cpu"},
		"kernel memory":      {func(s *specs.Spec) { n := int64(1); s.Linux.Resources.Memory.Kernel = &n }, "memory"}, //nolint:staticcheck // a document may still have it
		"mount type":         {func(s *specs.Spec) { s.Mounts[0].Type = "overlay" }, "overlay"},
		"mount option":       {func(s *specs.Spec) { s.Mounts[0].Options = append(s.Mounts[0].Options, "noexec") }, "noexec"},
		"unclean target":     {func(s *specs.Spec) { s.Mounts[0].Destination = "/a/../b" }, "target"},
		"id mapped mount":    {func(s *specs.Spec) { s.Mounts[0].UIDMappings = []specs.LinuxIDMapping{{}} }, "idmapped"},
		"tmpfs without size": {func(s *specs.Spec) { s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "tmpfs"}) }, "size"},
		"masked in a mount":  {func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"/usr/share"} }, "/usr/share"},
		"seccomp flags":      {func(s *specs.Spec) { s.Linux.Seccomp.Flags = []specs.LinuxSeccompFlag{"x"} }, "flags"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := readSpec(t)
			tc.change(spec)
			_, err := testBackend(nil).Command(spec, 0)
			if err == nil || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("got %v, want a refusal that says %q", err, tc.say)
			}
			if name != "seccomp flags" && !errors.Is(err, ErrUnsupported) {
				t.Errorf("got %v, want ErrUnsupported", err)
			}
		})
	}
}

func TestCredentialFollowsTheDaemon(t *testing.T) {
	spec := readSpec(t)
	uid := spec.Linux.UIDMappings[0].HostID
	asUser, err := testBackend(nil).Command(spec, int(uid))
	if err != nil || asUser.Credential != nil || asUser.StageDir != "" {
		t.Errorf("as the same user: %+v, %q, %v", asUser.Credential, asUser.StageDir, err)
	}
	if _, err := testBackend(nil).Command(spec, int(uid)+1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("as another user: %v", err)
	}
	asRoot, err := testBackend(nil).Command(spec, 0)
	if err != nil || asRoot.Credential == nil || asRoot.Credential.UID != uid {
		t.Errorf("as root: %+v, %v", asRoot.Credential, err)
	}
}

// Sources that the agent can't reach are staged, where nothing else is covered.
func TestStaging(t *testing.T) {
	spec := readSpec(t)
	for i := range spec.Mounts {
		if spec.Mounts[i].Type == "bind" {
			spec.Mounts[i].Source = "/usr"
		}
	}
	spec.Root.Path = "/usr"
	open, err := testBackend(func(c *Config) { c.SystemDirs = nil }).Command(spec, 0)
	if err != nil || open.StageDir != "" {
		t.Errorf("reachable paths are staged at %q, %v", open.StageDir, err)
	}
	spec.Root.Path = filepath.Join(t.TempDir(), "absent")
	closed, err := testBackend(nil).Command(spec, 0)
	if err != nil || closed.StageDir != "/tmp" {
		t.Errorf("staged at %q, %v", closed.StageDir, err)
	}
	if _, err := testBackend(func(c *Config) { c.StageDirs = []string{"/usr", "/absent"} }).Command(spec, 0); !errors.Is(err, ErrUnsupported) {
		t.Errorf("no place to stage: %v", err)
	}
}
