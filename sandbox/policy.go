package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Places inside every sandbox.
const (
	WorkspaceDir = "/workspace"
	EnvDir       = "/opt/env"
	HomeDir      = "/home/agent"
	// InitPath is where the supervisor's binary, pid 1, is seen.
	InitPath = "/.skerry/init"
	// EgressDir is where Policy.Egress is seen; it has the gateway's EgressSocket.
	EgressDir    = "/.skerry/net"
	EgressSocket = "gateway.sock"
	// ControlDir is where pid 1 finds its supervisor if that did not start it.
	ControlDir = "/.skerry/control"
	// ProxyPort on 127.0.0.1 is where pid 1 leads to the gateway.
	ProxyPort = 3128
)

// OwnPlace names the place of every sandbox's own that the directory, shown at
// its own path, would cover, or that it must not lie in; "" for none.
func OwnPlace(dir string) string {
	inits := path.Dir(InitPath)
	for _, own := range []string{"/proc", "/dev", "/tmp", "/run", "/etc", "/var/tmp", HomeDir, WorkspaceDir, inits} {
		if own == dir || strings.HasPrefix(own, strings.TrimSuffix(dir, "/")+"/") {
			return own
		}
	}
	for _, own := range []string{"/proc", "/dev", WorkspaceDir, EnvDir, inits} {
		if dir == own || strings.HasPrefix(dir, own+"/") {
			return own
		}
	}
	return ""
}

// The user inside every sandbox.
const (
	UserName = "agent"
	UserID   = 1000
	GroupID  = 1000
)

// Network is what a sandbox can reach.
type Network string

// What a sandbox can reach. Neither has an interface but its own loopback.
const (
	NetworkNone Network = "none"
	// NetworkAllowlist: pid 1 leads connections to ProxyPort to the egress
	// gateway's socket in Policy.Egress, and nothing else leaves.
	NetworkAllowlist Network = "allowlist"
)

// ErrRootInSandbox says that sandboxed code would have run as the host's root.
var ErrRootInSandbox = errors.New("sandboxed code must not run as the host's uid or gid 0")

// PolicyError says which field of a policy is unusable and what to do.
type PolicyError struct {
	Field   string
	Problem string
	Err     error // may be nil
}

func (e *PolicyError) Error() string { return "sandbox policy: " + e.Field + ": " + e.Problem }

// Unwrap gives the error class, if there is one.
func (e *PolicyError) Unwrap() error { return e.Err }

// Policy is all that one execution may see and use.
type Policy struct {
	// Rootfs is the host path of the read-only root (see BuildRootfs): /etc,
	// mount points, nothing else.
	Rootfs string
	// System directories of the host are seen read-only at their own paths.
	System []string
	// Workspace is the host path of the directory seen at WorkspaceDir. It must
	// belong to HostUID.
	Workspace string
	// EnvPrefix, if not empty, is seen read-only at EnvDir.
	EnvPrefix string
	// Init is the host path of runnerd-shim.
	Init string
	// ReadOnly are further host paths; their targets must be mount points of
	// the rootfs or lie in a writable place of the sandbox.
	ReadOnly []Bind

	Args []string
	// Cwd inside the sandbox; empty is WorkspaceDir.
	Cwd string
	// Env adds to, and overrides, the environment every sandbox has.
	Env map[string]string

	// Sizes of the private file systems in memory; zero means the default.
	TmpBytes  int64
	ShmBytes  int64
	HomeBytes int64

	Network Network
	// Egress is the host's directory with EgressSocket, for NetworkAllowlist.
	Egress   string
	Hostname string
	// HostUID and HostGID are who the code is on the host. Zero means the
	// daemon's own, which root may not choose.
	HostUID uint32
	HostGID uint32

	// Secrets that the command gets; their values are nowhere in the spec.
	Secrets []Secret

	Limits Limits
	// CPUSet are the processors that the code starts on, as Processors.Take
	// gives them; empty: the daemon's own.
	CPUSet []int
	// ThreadsHint is how many threads libraries are told to start where
	// Limits.CPUs does not say it; 0: nothing is told.
	ThreadsHint int
	// CgroupNamespace hides the host's control group paths.
	CgroupNamespace bool
}

// SecretDir is where secrets in files are seen.
const SecretDir = "/run/secrets"

// Secret is a value of the operator's, in the host file Path, that the command
// gets in the variable Env or in the file of that name in SecretDir.
type Secret struct {
	Path string
	Env  string
	File string
}

// Bind is one host path seen at Target.
type Bind struct {
	Source string
	Target string
}

// Limits bound one execution; zero means no limit beyond the host's own.
type Limits struct {
	CPUs        float64
	MemoryBytes int64
	MaxProcs    int64
	NoFile      uint64
	FileSize    uint64
}

// Default sizes and limits.
const (
	DefaultTmpBytes  = 1 << 30
	DefaultShmBytes  = 1 << 30
	DefaultHomeBytes = 256 << 20
	DefaultMaxProcs  = 4096
	DefaultNoFile    = 65536
	runBytes         = 16 << 20
)

// withDefaults fills in what the caller left open.
func (p Policy) withDefaults() Policy {
	orDefault(&p.Cwd, WorkspaceDir)
	orDefault(&p.TmpBytes, DefaultTmpBytes)
	orDefault(&p.ShmBytes, DefaultShmBytes)
	orDefault(&p.HomeBytes, DefaultHomeBytes)
	orDefault(&p.Network, NetworkNone)
	orDefault(&p.Hostname, "skerry")
	orDefault(&p.Limits.MaxProcs, DefaultMaxProcs)
	orDefault(&p.Limits.NoFile, DefaultNoFile)
	orDefault(&p.HostUID, uint32(os.Getuid()))
	orDefault(&p.HostGID, uint32(os.Getgid()))
	return p
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// validate expects the defaults to be filled in.
func (p Policy) validate() error {
	if p.HostUID == 0 || p.HostGID == 0 {
		return &PolicyError{"HostUID", "the daemon is root: set an unprivileged uid and gid for the agent", ErrRootInSandbox}
	}
	if os.Getuid() != 0 && (p.HostUID != uint32(os.Getuid()) || p.HostGID != uint32(os.Getgid())) {
		return &PolicyError{"HostUID", fmt.Sprintf("only a daemon that is root can run code as another user (%d)", p.HostUID), nil}
	}
	if len(p.Args) == 0 || p.Args[0] == "" {
		return &PolicyError{"Args", "no program to run", nil}
	}
	if p.Network != NetworkNone && p.Network != NetworkAllowlist {
		return &PolicyError{"Network", fmt.Sprintf("%q is not supported; use %q or %q", p.Network, NetworkNone, NetworkAllowlist), nil}
	}
	if (p.Network == NetworkAllowlist) != (p.Egress != "") {
		return &PolicyError{"Egress", fmt.Sprintf("the gateway's directory goes with network %q, and with no other", NetworkAllowlist), nil}
	}
	if !(p.Limits.CPUs >= 0) || p.Limits.MemoryBytes < 0 || p.Limits.MaxProcs < 0 || p.TmpBytes < 0 || p.ShmBytes < 0 || p.HomeBytes < 0 {
		return &PolicyError{"Limits", "sizes and limits must not be negative", nil}
	}
	return errors.Join(p.validatePaths(), p.validateText(), p.validateSecrets())
}

func (p Policy) validateSecrets() error {
	for _, s := range p.Secrets {
		if s.File != "" && (path.Base(s.File) != s.File || s.File == "." || s.File == "..") {
			return &PolicyError{"Secrets", fmt.Sprintf("%q is not the name of one file", s.File), nil}
		}
	}
	return nil
}

func (p Policy) validatePaths() error {
	needed := []struct{ field, path string }{
		{"Rootfs", p.Rootfs}, {"Workspace", p.Workspace}, {"Init", p.Init},
	}
	for _, dir := range p.System {
		needed = append(needed, struct{ field, path string }{"System", dir})
	}
	for _, b := range p.ReadOnly {
		needed = append(needed, struct{ field, path string }{"ReadOnly", b.Source}, struct{ field, path string }{"ReadOnly", b.Target})
	}
	if p.EnvPrefix != "" {
		needed = append(needed, struct{ field, path string }{"EnvPrefix", p.EnvPrefix})
	}
	if p.Egress != "" {
		needed = append(needed, struct{ field, path string }{"Egress", p.Egress})
	}
	for _, n := range needed {
		if !filepath.IsAbs(n.path) || filepath.Clean(n.path) != n.path {
			return &PolicyError{n.field, fmt.Sprintf("%q is not a clean absolute path", n.path), nil}
		}
	}
	if !path.IsAbs(p.Cwd) {
		return &PolicyError{"Cwd", fmt.Sprintf("%q is not an absolute path", p.Cwd), nil}
	}
	return nil
}

// validateText refuses what can't be an argument or variable at all.
func (p Policy) validateText() error {
	for _, arg := range p.Args {
		if strings.ContainsRune(arg, 0) {
			return &PolicyError{"Args", "an argument has a NUL byte", nil}
		}
	}
	for name, value := range p.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return &PolicyError{"Env", fmt.Sprintf("%q is no name, or its value no text, of an environment variable", name), nil}
		}
	}
	if strings.ContainsRune(p.Cwd+p.Hostname, 0) {
		return &PolicyError{"Cwd", "a NUL byte", nil}
	}
	return nil
}
