// Package coordinator keeps the replicated state of a cluster (runners, agents,
// tokens, workspaces), places each agent's workspace on a runner and routes the
// agent's calls there over the link that the runner dialled. It holds no files
// and runs nothing itself.
package coordinator

import (
	"net"
	"time"

	"skerry.internal/config"
	"skerry.internal/coordinator/placement"
)

// EnvPrefix is the prefix of environment variables that override Config.
const EnvPrefix = "SKERRY_COORDINATOR_"

// DefaultConfigPath is read when it exists and no other file is named.
const DefaultConfigPath = "/etc/skerry/coordinator.yaml"

// Config of one coordinator. DefaultConfig gives the values to start from.
type Config struct {
	// Name is this coordinator's in its cluster, for ever: it stands in the log.
	Name string `yaml:"name"`
	// DataDir holds the Raft log, snapshots and, after the first start, admin.token.
	DataDir string `yaml:"data_dir"`
	// Listen is host:port of the API and of runners' links. Without TLS only a
	// loopback address is accepted.
	Listen string `yaml:"listen"`
	// MetricsListen is host:port of /metrics, /healthz and /readyz; empty: none.
	// It answers without a token.
	MetricsListen string `yaml:"metrics_listen"`
	// Advertise is https://host:port of the API as the other coordinators reach
	// it; for a cluster only.
	Advertise string  `yaml:"advertise"`
	Cluster   Cluster `yaml:"cluster"`
	TLS       TLS     `yaml:"tls"`
	Raft      Raft    `yaml:"raft"`
	Limits    Limits  `yaml:"limits"`
	// RunnerGrace is how long a runner whose link ended counts as up, in the hope
	// that it dials again at once.
	RunnerGrace config.Duration `yaml:"runner_grace"`
	Placement   Placement       `yaml:"placement"`
	Replication Replication     `yaml:"replication"`
	Log         config.Log      `yaml:"log"`
}

// Placement says how a runner is chosen for an agent's first workspace.
type Placement struct {
	// Policy is spread (the least busy runner) or pack (the busiest one that has a
	// free slot).
	Policy string `yaml:"policy"`
}

// TLS says how the API is served.
type TLS struct {
	// CertFile and KeyFile are the certificate that agents see; both empty: the
	// cluster's own, or no TLS.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// Cluster serves TLS with the certificate of the cluster's own authority, which
	// runners that join insist on. A coordinator that is one of several does so
	// always.
	Cluster bool `yaml:"cluster"`
	// Names are further names and addresses that the cluster's certificate is to be
	// good for.
	Names []string `yaml:"names"`
}

// Enabled reports whether the API is served with TLS.
func (t TLS) Enabled() bool { return t.CertFile != "" }

// Raft tunes the replicated log.
type Raft struct {
	// HeartbeatTimeout without a leader starts an election; ElectionTimeout
	// without a result starts another. 0: 50ms for a lone coordinator, 700ms in a
	// cluster.
	HeartbeatTimeout config.Duration `yaml:"heartbeat_timeout"`
	ElectionTimeout  config.Duration `yaml:"election_timeout"`
	// A snapshot is taken when, checked each SnapshotInterval, at least
	// SnapshotThreshold entries came since the last; TrailingLogs entries stay, so
	// that a follower that was away shortly, or spent the time with restoring a
	// snapshot, needs no other snapshot.
	SnapshotInterval  config.Duration `yaml:"snapshot_interval"`
	SnapshotThreshold uint64          `yaml:"snapshot_threshold"`
	TrailingLogs      uint64          `yaml:"trailing_logs"`
	// ApplyTimeout bounds how long a change waits to be taken up by the log.
	ApplyTimeout config.Duration `yaml:"apply_timeout"`
	// StallTimeout is how long a write to the log may take before a leader gives
	// way to the others; for a cluster only.
	StallTimeout config.Duration `yaml:"stall_timeout"`
}

// defaultTrailing is how many entries stay behind a snapshot (F45). A follower
// that restores one needs the entries after it, and they go away only with the
// next snapshot but this many: between two lie at least 2 minutes, in which a
// million workspaces are restored many times over, and this many entries are
// several seconds of the highest rate and hours of a usual one. They cost some
// 20 MiB of disk.
const defaultTrailing = 32768

// Limits bound what callers can make the coordinator hold.
type Limits struct {
	MaxRequest config.Bytes `yaml:"max_request"`
	MaxHeader  config.Bytes `yaml:"max_header"`
	// MaxInFlight is the number of calls at once, waiting ones included.
	MaxInFlight uint32 `yaml:"max_in_flight"`
	// ShutdownGrace is what running calls get to end when the daemon stops.
	ShutdownGrace config.Duration `yaml:"shutdown_grace"`
}

// DefaultConfig is a single coordinator on loopback.
func DefaultConfig() Config {
	return Config{
		Name:          "coordinator-1",
		DataDir:       "/var/lib/skerry/coordinator",
		Listen:        "127.0.0.1:7420",
		MetricsListen: "127.0.0.1:7421",
		Raft: Raft{
			SnapshotInterval:  config.Duration(2 * time.Minute),
			SnapshotThreshold: 8192,
			TrailingLogs:      defaultTrailing,
			ApplyTimeout:      config.Duration(5 * time.Second),
			StallTimeout:      config.Duration(2 * time.Second),
		},
		Cluster: Cluster{Join: []string{}, Stabilization: config.Duration(5 * time.Second)},
		Limits: Limits{
			MaxRequest:    16 << 20,
			MaxHeader:     64 << 10,
			MaxInFlight:   8192,
			ShutdownGrace: config.Duration(5 * time.Second),
		},
		TLS:         TLS{Names: []string{}},
		RunnerGrace: config.Duration(2 * time.Second),
		Placement:   Placement{Policy: placement.Spread},
		Replication: defaultReplication(),
		Log:         config.DefaultLog(),
	}
}

// Validate gives the first value that cannot be used, as a *config.FieldError.
func (c *Config) Validate() error {
	for _, check := range []func() error{
		c.validateAddresses, c.validateCluster, c.validateRaft, c.validateLimits, c.validatePlacement, c.validateReplication, func() error { return c.Log.Validate("log") },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validateAddresses() error {
	if c.DataDir == "" {
		return bad("data_dir", "is empty", "name a directory on a local disk")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return bad("tls", "only one of cert_file and key_file is set", "set both, or neither")
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return bad("listen", "is no host:port", "write for example 127.0.0.1:7420")
	}
	if !c.servesTLS() && !loopback(host) {
		return bad("listen", "tokens would cross the network in clear text on "+c.Listen,
			"set tls.cluster, or tls.cert_file and tls.key_file, or listen on 127.0.0.1")
	}
	if c.MetricsListen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.MetricsListen); err != nil {
		return bad("metrics_listen", "is no host:port", "write for example 127.0.0.1:7421, or nothing for none")
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (c *Config) validateRaft() error {
	const least = 5 * time.Millisecond
	switch r := c.Raft; {
	case r.HeartbeatTimeout != 0 && r.HeartbeatTimeout.D() < least:
		return bad("raft.heartbeat_timeout", "is under 5ms", "use 50ms or more")
	case r.ElectionTimeout != 0 && (r.ElectionTimeout < r.HeartbeatTimeout || r.ElectionTimeout.D() < least):
		return bad("raft.election_timeout", "is under raft.heartbeat_timeout", "use the same value or more")
	case r.SnapshotInterval.D() < least:
		return bad("raft.snapshot_interval", "is under 5ms", "use 2m")
	case r.StallTimeout.D() < 100*time.Millisecond:
		return bad("raft.stall_timeout", "is under 100ms", "use 2s")
	case r.ApplyTimeout <= 0:
		return bad("raft.apply_timeout", "is 0", "use 5s")
	}
	return nil
}

func (c *Config) validateLimits() error {
	switch l := c.Limits; {
	case l.MaxRequest < 64<<10 || l.MaxRequest > 1<<30:
		return bad("limits.max_request", "is outside 64KiB..1GiB", "use 16MiB")
	case l.MaxHeader < 4<<10 || l.MaxHeader > 16<<20:
		return bad("limits.max_header", "is outside 4KiB..16MiB", "use 64KiB")
	case l.MaxInFlight == 0:
		return bad("limits.max_in_flight", "is 0", "use 8192")
	}
	return nil
}

func (c *Config) validatePlacement() error {
	switch c.Placement.Policy {
	case placement.Spread, placement.Pack:
		return nil
	}
	return bad("placement.policy", "is unknown", "use spread or pack")
}

func bad(field, problem, remedy string) error {
	return &config.FieldError{Field: field, Problem: problem, Remedy: remedy}
}
