package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// SpecVersion is the version of spec.json that this package reads and writes.
const SpecVersion = 1

// Defaults for the durations and log limits that a Spec leaves at zero.
const (
	DefaultGrace        = 5 * time.Second
	DefaultDrain        = 500 * time.Millisecond
	DefaultHeadBytes    = 8 << 20
	DefaultTailBytes    = 24 << 20
	DefaultSegmentBytes = 4 << 20
)

// ErrSpec marks a spec that cannot be run as it stands.
var ErrSpec = errors.New("invalid execution spec")

// maxCPUs is the kernel's size of an affinity mask as x/sys has it.
const maxCPUs = 1024

// Spec says completely what one supervisor runs. The program in Argv must be
// bubblewrap (or something with the same manners) that ends up executing
// "runnerd-shim init" as pid 1 of a new pid namespace; or Launch says that such
// a process comes by itself.
type Spec struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	// Launch is empty or LaunchConnect.
	Launch string `json:"launch,omitempty"`
	// Argv is the complete host command, program first. "{fd:NAME}" stands for
	// the number of the inherited descriptor of the file NAME, "{path:NAME}" for
	// its path below /proc/self/fd, and "{fd:control}" for the control socket,
	// which must reach Init. Only whole arguments are placeholders; see Literal.
	Argv []string `json:"argv"`
	// Env is the environment of the host command, not of the sandbox.
	Env   []string  `json:"env,omitempty"`
	Files []FileArg `json:"files,omitempty"`
	// Credential is what the host command runs as; nil keeps the caller's own.
	Credential *Credential `json:"credential,omitempty"`
	// StageDir, used with Credential, is a directory that every user can reach.
	// In a mount namespace of its own the shim covers it with a tmpfs and binds
	// each host path of Files there, so that bubblewrap, which resolves a
	// descriptor back to a path, need not traverse the real parents.
	StageDir string `json:"stageDir,omitempty"`
	// Stdin names a file in the execution's directory; empty is /dev/null.
	Stdin   string        `json:"stdin,omitempty"`
	Timeout time.Duration `json:"timeoutNanos,omitempty"`
	// Grace is the time from SIGTERM to SIGKILL.
	Grace time.Duration `json:"graceNanos,omitempty"`
	// Drain is how long processes left behind by the command may go on.
	Drain   time.Duration `json:"drainNanos,omitempty"`
	Log     LogLimits     `json:"log"`
	Limits  Limits        `json:"limits"`
	Cgroups []CgroupDir   `json:"cgroups,omitempty"`
	// CPUs are the processors that the command starts on; none: the shim's own.
	CPUs []int `json:"cpus,omitempty"`
	// Quota, if set, is watched while the command runs.
	Quota *Quota `json:"quota,omitempty"`
	// Forward, if set, is what init listens to inside.
	Forward *Forward `json:"forward,omitempty"`
	// Input, if set, makes the execution interactive; Stdin is empty then.
	Input *Input `json:"input,omitempty"`
	// Secrets that init gives to the command.
	Secrets []Secret `json:"secrets,omitempty"`
}

// FileArg is one descriptor that the host command inherits. Exactly one of
// Path, Data and Args is set.
type FileArg struct {
	Name string `json:"name"`
	// Path is a host path, opened O_PATH without following a final symlink.
	Path string `json:"path,omitempty"`
	// Data is handed over as the content of an anonymous file.
	Data []byte `json:"data,omitempty"`
	// Args are handed over NUL-terminated (bubblewrap's --args), after their
	// own placeholders are filled in. This keeps environment values out of the
	// command line, which every user of the host can read.
	Args []string `json:"args,omitempty"`
}

// Credential is a host uid and gid, without supplementary groups.
type Credential struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// LogLimits bound what stays on disk, counted in bytes on disk.
type LogLimits struct {
	HeadBytes    int64 `json:"headBytes,omitempty"`
	TailBytes    int64 `json:"tailBytes,omitempty"`
	SegmentBytes int64 `json:"segmentBytes,omitempty"`
}

// Limits of the command and all it starts; zero means none. MaxProcs and
// MemoryBytes become resource limits of each process only where no control
// group of the spec carries them.
type Limits struct {
	MaxProcs    uint64  `json:"maxProcs,omitempty"`
	MemoryBytes uint64  `json:"memoryBytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	NoFile      uint64  `json:"noFile,omitempty"`
	FileSize    uint64  `json:"fileSize,omitempty"`
	// Core is the core dump limit; zero means that no core is written.
	Core uint64 `json:"core,omitempty"`
}

// CgroupDir is one control group directory that the shim creates, fills with
// the command before it starts, and removes at the end.
type CgroupDir struct {
	Path string `json:"path"`
	// V2 tells the unified hierarchy from a version 1 controller.
	V2 bool `json:"v2,omitempty"`
	// Controllers that this directory limits, such as "memory" or "pids".
	Controllers []string        `json:"controllers,omitempty"`
	Settings    []CgroupSetting `json:"settings,omitempty"`
}

// CgroupSetting is one value to write into a file of the directory.
type CgroupSetting struct {
	File  string `json:"file"`
	Value string `json:"value"`
	// Optional settings may be missing on this kernel (swap accounting).
	Optional bool `json:"optional,omitempty"`
}

func (s *Spec) applyDefaults() {
	setDefault(&s.Grace, DefaultGrace)
	setDefault(&s.Drain, DefaultDrain)
	setDefault(&s.Log.HeadBytes, DefaultHeadBytes)
	setDefault(&s.Log.TailBytes, DefaultTailBytes)
	setDefault(&s.Log.SegmentBytes, DefaultSegmentBytes)
}

func setDefault[T ~int64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Validate reports the first thing that makes the spec unusable.
func (s *Spec) Validate() error {
	if s.Version != SpecVersion {
		return fmt.Errorf("%w: version %d, this supervisor knows %d", ErrSpec, s.Version, SpecVersion)
	}
	if err := s.validateLaunch(); err != nil {
		return err
	}
	if s.Stdin != "" && filepath.Base(s.Stdin) != s.Stdin {
		return fmt.Errorf("%w: stdin %q must be a file name in the execution's directory", ErrSpec, s.Stdin)
	}
	if s.Timeout < 0 || s.Grace < 0 || s.Drain < 0 {
		return fmt.Errorf("%w: negative timeout, grace or drain", ErrSpec)
	}
	if s.Credential != nil && (s.Credential.UID == 0 || s.Credential.GID == 0) {
		return fmt.Errorf("%w: credential must not be uid or gid 0", ErrSpec)
	}
	if err := errors.Join(s.Forward.validate(), s.Quota.validate()); err != nil {
		return err
	}
	for _, cpu := range s.CPUs {
		if cpu < 0 || cpu >= maxCPUs {
			return fmt.Errorf("%w: no processor has the number %d", ErrSpec, cpu)
		}
	}
	if err := s.validateInput(); err != nil {
		return err
	}
	if err := s.validateSecrets(); err != nil {
		return err
	}
	return s.validateFiles()
}

func (s *Spec) validateFiles() error {
	seen := map[string]bool{controlName: true}
	for _, f := range s.Files {
		if f.Name == "" || strings.ContainsAny(f.Name, "{}:") || seen[f.Name] {
			return fmt.Errorf("%w: file name %q is empty, reserved or used twice", ErrSpec, f.Name)
		}
		seen[f.Name] = true
		if f.Path != "" && !filepath.IsAbs(f.Path) {
			return fmt.Errorf("%w: file %s: path %q is not absolute", ErrSpec, f.Name, f.Path)
		}
	}
	for _, c := range s.Cgroups {
		if !filepath.IsAbs(c.Path) {
			return fmt.Errorf("%w: cgroup path %q is not absolute", ErrSpec, c.Path)
		}
	}
	return nil
}

func (s *Spec) limitedByCgroup(controller string) bool {
	for _, c := range s.Cgroups {
		for _, name := range c.Controllers {
			if name == controller {
				return true
			}
		}
	}
	return false
}

func readSpec(path string) (Spec, error) {
	var s Spec
	b, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("read spec: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	s.applyDefaults()
	return s, s.Validate()
}
