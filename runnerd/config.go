package runnerd

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"skerry.internal/config"
)

// EnvPrefix is the prefix of environment variables that override Config.
const EnvPrefix = "SKERRY_RUNNERD_"

// Config is /etc/skerry/runnerd.yaml. Every key can be overridden by an
// environment variable SKERRY_RUNNERD_<KEY> and by a flag.
type Config struct {
	// DataDir holds the journal, the store, workspaces and executions. It needs
	// a local file system.
	DataDir string `yaml:"data_dir"`
	// Name of the runner; it must be the subject of its token.
	Name string `yaml:"name"`
	// Labels for placement.
	Labels map[string]string `yaml:"labels"`
	// Coordinators are endpoints to dial, tried in turn.
	Coordinators []string `yaml:"coordinators"`
	// TokenFile has the runner token.
	TokenFile string `yaml:"token_file"`
	// TLS settings for https coordinators.
	TLS TLS `yaml:"tls"`
	// MetricsListen serves /metrics, /healthz and /readyz; empty: not served.
	MetricsListen string     `yaml:"metrics_listen"`
	Log           config.Log `yaml:"log"`
	// Slots is how many executions run at once; 0: four for each core, at least 8.
	Slots int `yaml:"slots"`
	// DefaultTimeout and MaxTimeout are the wall-clock limits of an execution.
	DefaultTimeout config.Duration `yaml:"default_timeout"`
	MaxTimeout     config.Duration `yaml:"max_timeout"`
	// Grace is the time from SIGTERM to SIGKILL.
	Grace config.Duration `yaml:"grace"`
	// AgentUIDs are the host uids that agents run under when the daemon is root.
	AgentUIDs UIDs   `yaml:"agent_uids"`
	Limits    Limits `yaml:"limits"`
	// AllowSecretPaths lets file calls touch names such as .ssh and .env.
	AllowSecretPaths bool    `yaml:"allow_secret_paths"`
	Sandbox          Sandbox `yaml:"sandbox"`
	// KeepLogs is how long the log of an ended execution is kept, KeepExecutions
	// of how many executions at most.
	KeepLogs       config.Duration `yaml:"keep_logs"`
	KeepExecutions int             `yaml:"keep_executions"`
}

// TLS says whom to trust.
type TLS struct {
	// CAFile has the certificates that a coordinator's must chain to; empty: the system's.
	CAFile string `yaml:"ca_file"`
}

// UIDs is a range of uids that nothing else on the host uses.
type UIDs struct {
	First uint32 `yaml:"first"`
	Count uint32 `yaml:"count"`
}

// Limits of one execution and of what agents may store. 0 means no limit, but
// for queues and files, which always have one.
type Limits struct {
	// Memory of one execution in all; 0: no limit, and the host's out-of-memory
	// killer takes sandboxes first. A limit costs each launch the entry into a
	// control group, some milliseconds with version 1.
	Memory    config.Bytes `yaml:"memory"`
	Processes uint64       `yaml:"processes"`
	CPUs      float64      `yaml:"cpus"`
	OpenFiles uint64       `yaml:"open_files"`
	// FileBytes bounds each file, holes included: a snapshot reads them all.
	FileBytes config.Bytes `yaml:"file_bytes"`
	TmpBytes  config.Bytes `yaml:"tmp_bytes"`
	ShmBytes  config.Bytes `yaml:"shm_bytes"`
	// LogHead and LogTail bound what is kept of an execution's output.
	LogHead config.Bytes `yaml:"log_head"`
	LogTail config.Bytes `yaml:"log_tail"`
	// WorkspaceQueue bounds the writers that wait for one workspace.
	WorkspaceQueue int `yaml:"workspace_queue"`
	// UploadBytes bounds one written or uploaded file.
	UploadBytes config.Bytes `yaml:"upload_bytes"`
}

// Sandbox says how sandboxes are made.
type Sandbox struct {
	// Bwrap is the bubblewrap program; empty: found in PATH.
	Bwrap string `yaml:"bwrap"`
	// Shim is runnerd-shim; empty: beside the daemon's own program.
	Shim string `yaml:"shim"`
	// RequireTier makes the daemon refuse to start on a host that gives less.
	RequireTier string `yaml:"require_tier"`
	// ReadOnly are host paths that every sandbox sees read-only beside the system's.
	ReadOnly []string `yaml:"read_only"`
}

// DefaultConfig is what holds where the file says nothing.
func DefaultConfig() Config {
	host, _ := os.Hostname()
	return Config{
		DataDir: "/var/lib/skerry/runnerd", Name: host, Labels: map[string]string{}, Log: config.DefaultLog(),
		TokenFile: "/etc/skerry/runnerd.token", MetricsListen: "127.0.0.1:9464",
		DefaultTimeout: config.Duration(time.Hour), MaxTimeout: config.Duration(7 * 24 * time.Hour), Grace: config.Duration(5 * time.Second),
		AgentUIDs: UIDs{First: 2_000_000_000, Count: 10_000},
		Limits: Limits{Processes: 4096, OpenFiles: 65536, FileBytes: 64 << 30, TmpBytes: 1 << 30, ShmBytes: 1 << 30, LogHead: 8 << 20, LogTail: 24 << 20,
			WorkspaceQueue: 256, UploadBytes: 64 << 30},
		KeepLogs: config.Duration(30 * 24 * time.Hour), KeepExecutions: 20_000,
	}
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Validate implements config.Validator.
func (c Config) Validate() error {
	switch {
	case !filepath.IsAbs(c.DataDir):
		return &config.FieldError{Field: "data_dir", Problem: "is not an absolute path", Remedy: "give one, such as /var/lib/skerry/runnerd"}
	case !namePattern.MatchString(c.Name):
		return &config.FieldError{Field: "name", Problem: "is not a runner name", Remedy: "use 1 to 63 of a-z 0-9 . _ -, starting with a letter or digit"}
	case c.Slots < 0:
		return &config.FieldError{Field: "slots", Problem: "is negative", Remedy: "use 0 for the default"}
	case c.MaxTimeout <= 0 || c.DefaultTimeout <= 0 || c.DefaultTimeout > c.MaxTimeout:
		return &config.FieldError{Field: "default_timeout", Problem: "must be over 0 and at most max_timeout", Remedy: "correct the two"}
	case c.AgentUIDs.Count > 0 && (c.AgentUIDs.First == 0 || uint64(c.AgentUIDs.First)+uint64(c.AgentUIDs.Count) > 1<<32-2):
		return &config.FieldError{Field: "agent_uids", Problem: "must start above 0 and end below 4294967294", Remedy: "choose a range that nothing else uses"}
	case c.Limits.WorkspaceQueue <= 0:
		return &config.FieldError{Field: "limits.workspace_queue", Problem: "must be over 0", Remedy: "use the default, 256"}
	case c.Limits.UploadBytes == 0:
		return &config.FieldError{Field: "limits.upload_bytes", Problem: "must be over 0", Remedy: "use the default, 64GiB"}
	case c.KeepExecutions <= 0 || c.KeepLogs <= 0:
		return &config.FieldError{Field: "keep_executions", Problem: "keep_executions and keep_logs must be over 0", Remedy: "use the defaults"}
	}
	return c.Log.Validate("log")
}

func (c Config) slots() int {
	if c.Slots > 0 {
		return c.Slots
	}
	return max(8, 4*runtime.NumCPU())
}
