package runnerd

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"golang.org/x/net/http/httpproxy"

	"skerry.internal/config"
	"skerry.internal/runnerd/upkeep"
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
	// JoinTokenFile has a join token, by which a runner without a certificate gets
	// one; afterwards the file may go. Where it is named, or there is a certificate,
	// coordinators must be https and TokenFile is not used.
	JoinTokenFile string `yaml:"join_token_file"`
	// TokenFile has the runner token.
	TokenFile string `yaml:"token_file"`
	// Proxy is the URL of the HTTP proxy to reach coordinators by; empty: as
	// HTTPS_PROXY and NO_PROXY say; "none": no proxy.
	Proxy string `yaml:"proxy"`
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
	Store     Store  `yaml:"store"`
	REAPI     REAPI  `yaml:"reapi"`
	// Network has the network policies that executions may run under.
	Network Network `yaml:"network"`
	// Peer is where other runners read this one's store; Transfers bounds that.
	Peer      Peer      `yaml:"peer"`
	Transfers Transfers `yaml:"transfers"`
	// AllowSecretPaths lets file calls touch names such as .ssh and .env.
	AllowSecretPaths bool    `yaml:"allow_secret_paths"`
	Sandbox          Sandbox `yaml:"sandbox"`
	// KeepLogs is how long the log of an ended execution is kept, KeepExecutions
	// of how many executions at most.
	KeepLogs       config.Duration `yaml:"keep_logs"`
	KeepExecutions int             `yaml:"keep_executions"`
	// ForwardIdle is how long a forwarded connection may carry nothing.
	ForwardIdle config.Duration `yaml:"forward_idle"`
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
// for queues, uploads and what each execution has a limit of at any rate: there
// 0 of processes, open_files, tmp_bytes and shm_bytes is the default.
type Limits struct {
	// Memory of one execution in all; 0: no limit, and the host's out-of-memory
	// killer takes sandboxes first. A limit costs each launch the entry into a
	// control group, some milliseconds with version 1.
	Memory    config.Bytes `yaml:"memory"`
	Processes uint64       `yaml:"processes"`
	// CPUs of one execution: a quota of processor time; code sees as many
	// processors, rounded up. 0: no limit.
	CPUs float64 `yaml:"cpus"`
	// ThreadsHint is told to libraries (OMP_NUM_THREADS and its like) where CPUs
	// is 0; 0: nothing is told, and they start a thread for each processor.
	ThreadsHint int    `yaml:"threads_hint"`
	OpenFiles   uint64 `yaml:"open_files"`
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
	// WorkspaceBytes and WorkspaceEntries are the quotas of one workspace. A
	// command that leaves it over one ends with verdict quota_exceeded; its files
	// are kept, and writes are refused until there is room again.
	WorkspaceBytes   config.Bytes `yaml:"workspace_bytes"`
	WorkspaceEntries uint64       `yaml:"workspace_entries"`
	// ProjectQuota "auto" sets both also as a project quota where the file system
	// of data_dir enforces them (ext4 or xfs mounted with prjquota, daemon root);
	// "off" never.
	ProjectQuota string `yaml:"project_quota"`
}

// Store says how the content store is kept in order.
type Store struct {
	// CollectEvery is the time between two collections; 0: under pressure only.
	CollectEvery config.Duration `yaml:"collect_every"`
	// KeepSnapshots is how many of its latest snapshots each workspace keeps, and
	// MinSnapshots how many when space is short; at least 2. 0: all of them.
	KeepSnapshots int `yaml:"keep_snapshots"`
	MinSnapshots  int `yaml:"min_snapshots"`
	// ScrubEvery is the time between two readings of the whole store, at most
	// ScrubRate bytes a second; 0: never.
	ScrubEvery config.Duration `yaml:"scrub_every"`
	ScrubRate  config.Bytes    `yaml:"scrub_rate"`
	// MaxBytes and MaxObjects bound the store on disk; 0: no bound. MinFree and MinFreeInodes
	// are kept free of the data directory's file system. New work is refused when
	// there is less.
	MaxBytes      config.Bytes `yaml:"max_bytes"`
	MaxObjects    uint64       `yaml:"max_objects"`
	MinFree       config.Bytes `yaml:"min_free"`
	MinFreeInodes uint64       `yaml:"min_free_inodes"`
}

// REAPI is the remote cache for build tools; see docs/interop.md.
type REAPI struct {
	// Listen is where it is served; empty: not at all. Without a certificate it
	// must be a loopback address.
	Listen string `yaml:"listen"`
	// TokenFile has the token that clients show.
	TokenFile string `yaml:"token_file"`
	CertFile  string `yaml:"cert_file"`
	KeyFile   string `yaml:"key_file"`
	// MaxBytes and MaxBlobs bound what is kept; then the least recently used goes.
	MaxBytes config.Bytes `yaml:"max_bytes"`
	MaxBlobs uint64       `yaml:"max_blobs"`
}

// Bounds of limits: the kernel's least quota is a millisecond in a period of a
// tenth of a second, and a program is not loaded into less memory.
const (
	leastCPUs   = 0.01
	mostCPUs    = 1 << 20
	leastMemory = config.Bytes(1 << 20)
)

// Values of Limits.ProjectQuota.
const (
	projectAuto = "auto"
	projectOff  = "off"
)

// DefaultConfig is what holds where the file says nothing.
func DefaultConfig() Config {
	host, _ := os.Hostname()
	return Config{
		DataDir: "/var/lib/skerry/runnerd", Name: host, Labels: map[string]string{}, Log: config.DefaultLog(),
		TokenFile: "/etc/skerry/runnerd.token", MetricsListen: "127.0.0.1:9464",
		DefaultTimeout: config.Duration(time.Hour), MaxTimeout: config.Duration(7 * 24 * time.Hour), Grace: config.Duration(5 * time.Second),
		AgentUIDs: UIDs{First: 2_000_000_000, Count: 10_000},
		Limits: Limits{Processes: 4096, OpenFiles: 65536, FileBytes: 64 << 30, TmpBytes: 1 << 30, ShmBytes: 1 << 30, LogHead: 8 << 20, LogTail: 24 << 20,
			WorkspaceQueue: 256, UploadBytes: 64 << 30, WorkspaceBytes: 1 << 40, WorkspaceEntries: 20_000_000, ProjectQuota: projectAuto},
		Store: Store{CollectEvery: config.Duration(time.Hour), KeepSnapshots: 1000, MinSnapshots: 10,
			ScrubEvery: config.Duration(7 * 24 * time.Hour), ScrubRate: 16 << 20, MinFree: 256 << 20, MinFreeInodes: 1000},
		Network:  Network{Default: "none", Policies: map[string]NetworkPolicy{}, UpstreamProxy: UpstreamProxy{NoProxy: []string{}}, DenyAddresses: []netip.Prefix{}, NAT64Prefixes: []netip.Prefix{}},
		REAPI:    REAPI{MaxBytes: 64 << 30, MaxBlobs: 1_000_000},
		Sandbox:  defaultSandbox(),
		KeepLogs: config.Duration(30 * 24 * time.Hour), KeepExecutions: 20_000,
		ForwardIdle: config.Duration(time.Hour), Transfers: Transfers{MaxRunning: 4},
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
	case c.Limits.CPUs != 0 && !(c.Limits.CPUs >= leastCPUs && c.Limits.CPUs <= mostCPUs): // not a number neither
		return &config.FieldError{Field: "limits.cpus", Problem: fmt.Sprintf("is %v, not 0 or from %v to %v", c.Limits.CPUs, leastCPUs, mostCPUs), Remedy: "use 0 for no limit"}
	case c.Limits.ThreadsHint < 0 || c.Limits.ThreadsHint > mostCPUs:
		return &config.FieldError{Field: "limits.threads_hint", Problem: fmt.Sprintf("is not from 0 to %d", mostCPUs), Remedy: "use 0 to tell nothing"}
	case c.Limits.Memory > 0 && c.Limits.Memory < leastMemory:
		return &config.FieldError{Field: "limits.memory", Problem: "is less than any program needs", Remedy: fmt.Sprintf("use 0 for no limit, or at least %v", leastMemory)}
	case c.Grace < 0:
		return &config.FieldError{Field: "grace", Problem: "is negative", Remedy: "use the default, 5s"}
	case c.Limits.ProjectQuota != projectAuto && c.Limits.ProjectQuota != projectOff:
		return &config.FieldError{Field: "limits.project_quota", Problem: "is neither auto nor off", Remedy: "use the default, auto"}
	case c.Limits.UploadBytes == 0:
		return &config.FieldError{Field: "limits.upload_bytes", Problem: "must be over 0", Remedy: "use the default, 64GiB"}
	case c.Store.KeepSnapshots < 0 || c.Store.KeepSnapshots == 1:
		return &config.FieldError{Field: "store.keep_snapshots", Problem: "must be 0 (all) or at least 2", Remedy: "use the default, 1000"}
	case c.Store.MinSnapshots < 2:
		return &config.FieldError{Field: "store.min_snapshots", Problem: "must be at least 2", Remedy: "use the default, 10"}
	case c.Store.CollectEvery < 0 || c.Store.ScrubEvery < 0:
		return &config.FieldError{Field: "store.collect_every", Problem: "store.collect_every and store.scrub_every must not be negative", Remedy: "use 0 to turn one off"}
	case c.REAPI.Listen != "" && c.REAPI.TokenFile == "":
		return &config.FieldError{Field: "reapi.token_file", Problem: "is needed to serve the remote cache", Remedy: "name a file with a random token, mode 0600"}
	case c.ForwardIdle <= 0:
		return &config.FieldError{Field: "forward_idle", Problem: "must be over 0", Remedy: "use the default, 1h"}
	case c.KeepExecutions <= 0 || c.KeepLogs <= 0:
		return &config.FieldError{Field: "keep_executions", Problem: "keep_executions and keep_logs must be over 0", Remedy: "use the defaults"}
	}
	for field, n := range map[string]uint64{"limits.workspace_entries": c.Limits.WorkspaceEntries, "store.max_objects": c.Store.MaxObjects,
		"limits.processes": c.Limits.Processes, "limits.open_files": c.Limits.OpenFiles, "limits.file_bytes": uint64(c.Limits.FileBytes),
		"store.min_free_inodes": c.Store.MinFreeInodes, "reapi.max_blobs": c.REAPI.MaxBlobs} {
		if n > math.MaxInt64 {
			return &config.FieldError{Field: field, Problem: "is over 9223372036854775807", Remedy: "use 0 for no limit"}
		}
	}
	if err := errors.Join(c.Network.validate(), c.Peer.validate(), c.Transfers.validate(), c.Sandbox.validate(c.AgentUIDs)); err != nil {
		return err
	}
	if _, err := c.proxy(); err != nil {
		return err
	}
	return c.Log.Validate("log")
}

// noProxy is the value of Proxy for none.
const noProxy = "none"

// proxy gives the proxy to reach a URL by, nil: none.
func (c Config) proxy() (func(*url.URL) (*url.URL, error), error) {
	switch c.Proxy {
	case "":
		return httpproxy.FromEnvironment().ProxyFunc(), nil
	case noProxy:
		return nil, nil
	}
	u, err := url.Parse(c.Proxy)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, &config.FieldError{Field: "proxy", Problem: "is no URL of an HTTP proxy", Remedy: "write for example http://proxy:3128, or none"}
	}
	return func(*url.URL) (*url.URL, error) { return u, nil }, nil
}

func (c Config) slots() int {
	if c.Slots > 0 {
		return c.Slots
	}
	return max(8, 4*runtime.NumCPU())
}

// executionDir is an execution's directory; "" gives that of all.
func (c Config) executionDir(id string) string { return filepath.Join(c.DataDir, "executions", id) }

// quotaDir is where project quotas are looked for; empty: they are off.
func (c Config) quotaDir() string {
	if c.Limits.ProjectQuota == projectOff {
		return ""
	}
	return c.DataDir
}

func (s Store) upkeep() upkeep.Config {
	if s.KeepSnapshots > 0 {
		s.MinSnapshots = min(s.MinSnapshots, s.KeepSnapshots)
	}
	return upkeep.Config{CollectEvery: s.CollectEvery.D(), KeepSnapshots: s.KeepSnapshots, MinSnapshots: s.MinSnapshots,
		ScrubEvery: s.ScrubEvery.D(), ScrubRate: int64(s.ScrubRate), MaxBytes: int64(s.MaxBytes), MaxObjects: int64(s.MaxObjects), MinFree: int64(s.MinFree), MinFreeInodes: int64(s.MinFreeInodes)}
}
